"""The framing of `.wandb` files: LevelDB's log format with W&B's own header and checksum.

Blocks of 32 KiB hold fragments: checksum (4 bytes), length (2), kind (1), data. A record is one fragment, or
a first, some middle and a last one. After damage, reading goes on at the next fragment or block that holds.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from scalerl.runs.table import count

MAGIC = b":W&B"
_HEADER = 7  # of the file and of a fragment
_BLOCK = 32 * 1024
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class WandbLog:
    """The records of one file, and what of it could not be read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.damaged = 0
        self.lost = 0
        self.cut = 0

    def records(self) -> Iterator[bytes]:
        """The records whose checksums hold; the rest is counted in `damaged`, `lost` and `cut` (bytes)."""
        parts: list[bytes] | None = None
        for kind, piece in self._fragments():
            if kind in (_FULL, _FIRST):
                if parts is not None:
                    self.damaged += 1  # a record without its end
                parts = None if kind == _FULL else [piece]
                if kind == _FULL:
                    yield piece
            elif parts is None:
                continue  # its beginning was damaged, and counted there
            elif kind == _MIDDLE:
                parts.append(piece)
            elif kind == _LAST:
                yield b"".join([*parts, piece])
                parts = None
            else:
                parts = None  # a damaged fragment takes its record with it
        if parts is not None and not self.cut:
            self.cut = sum(map(len, parts))

    def notes(self, name: str, rows: int) -> list[str]:
        """What was lost, for the user; call it after `records` has run."""
        notes = []
        if not self._data:
            notes.append(f"{name} is empty.")
        if self.cut:
            notes.append(
                f"{name} is cut off: {count(rows, 'row')} kept, the last {count(self.cut, 'byte')} lost."
            )
        if self.damaged or self.lost:
            what = count(self.damaged, "damaged record") if self.damaged else "damage"
            notes.append(f"{name}: {what} left out ({count(self.lost, 'byte')}); {count(rows, 'row')} kept.")
        return notes

    def _fragments(self) -> Iterator[tuple[int, bytes]]:
        data, end, at = self._data, len(self._data), _HEADER
        while at < end:
            block_end = min((at // _BLOCK + 1) * _BLOCK, end)
            if block_end - at < _HEADER:
                if block_end == end and end % _BLOCK and data[at:end].strip(b"\0"):
                    self.cut += end - at
                at = block_end
                continue
            check, size, kind = struct.unpack_from("<IHB", data, at)
            stop = at + _HEADER + size
            if check == size == kind == 0:
                if data[at:block_end].strip(b"\0"):
                    yield self._skip(at, block_end)
                at = block_end  # space that was reserved and not written
            elif kind in (_FULL, _FIRST, _MIDDLE, _LAST) and stop > end and block_end == end:
                self.cut += end - at
                return
            elif kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or stop > block_end:
                yield self._skip(at, block_end)
                at = block_end
            elif self._holds(data[at + _HEADER : stop], kind, check):
                yield kind, data[at + _HEADER : stop]
                at = stop
            else:  # the length may be damaged too: trust it only if a good fragment follows
                goal = stop if self._good_at(stop, block_end) else block_end
                yield self._skip(at, goal)
                at = goal

    def _skip(self, start: int, stop: int) -> tuple[int, bytes]:
        self.damaged += 1
        self.lost += stop - start
        return 0, b""

    def _good_at(self, at: int, block_end: int) -> bool:
        if block_end - at < _HEADER:
            return True
        check, size, kind = struct.unpack_from("<IHB", self._data, at)
        stop = at + _HEADER + size
        return stop <= block_end and kind > 0 and self._holds(self._data[at + _HEADER : stop], kind, check)

    def _holds(self, piece: bytes, kind: int, check: int) -> bool:
        return zlib.crc32(piece, zlib.crc32(bytes([kind]))) == check  # not LevelDB's CRC-32C
