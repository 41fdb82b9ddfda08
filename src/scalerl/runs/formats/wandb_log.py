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
_DAMAGED, _FULL, _FIRST, _MIDDLE, _LAST = range(5)
_FRAGMENT = struct.Struct("<IHB")
_CRC_OF_KIND = [zlib.crc32(bytes([kind])) for kind in range(5)]


class WandbLog:
    """The records of one file, and what of it could not be read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._patience = 2_000_000  # positions tried after damage; then whole blocks are skipped, which is fast
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
            notes.append(f"{name} is cut off: {count(rows, 'row')} kept, the last {count(self.cut, 'byte')} lost.")
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
            if self._holds(at):
                _, size, kind = _FRAGMENT.unpack_from(data, at)
                yield kind, data[at + _HEADER : at + _HEADER + size]
                at += _HEADER + size
                continue
            goal = self._next(at + 1, block_end)
            if goal == end:
                self.cut += end - at  # nothing follows: unfinished, or the zeros of a disk that lost power
                return
            self.damaged += 1
            self.lost += goal - at
            yield _DAMAGED, b""
            at = goal

    def _next(self, at: int, block_end: int) -> int:
        """The next place in the block where a fragment begins, or the block's end."""
        if self._patience <= 0:
            return block_end
        self._patience -= block_end - at
        return next((i for i in range(at, block_end - _HEADER + 1) if self._holds(i)), block_end)

    def _holds(self, at: int) -> bool:
        """Whether a fragment begins at `at`: a known kind, within its block, with the right checksum."""
        data, kind = self._data, self._data[at + 6]
        if not _FULL <= kind <= _LAST:
            return False
        check, size, _ = _FRAGMENT.unpack_from(data, at)
        start = at + _HEADER
        if start + size > (at // _BLOCK + 1) * _BLOCK or start + size > len(data):
            return False
        return bool(zlib.crc32(data[start : start + size], _CRC_OF_KIND[kind]) == check)  # not LevelDB's CRC-32C
