"""Bytes of a log as UTF-8 text: opens plain, gzip, bzip2 and xz files, turns UTF-16/32 into UTF-8, drops a BOM.

PowerShell's `>` writes UTF-16 and cluster scripts gzip old logs, so both are simply read, and a note says so.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from scalerl.errors import InputError

HEAD = 64 * 1024
_LONGEST_HEAD = 4 * 1024 * 1024  # tables of thousands of columns have long lines
_HEAD_LINES = 3
BLOCK = 512 * 1024  # the rows of a block stay in the cache while they become columns
_PACKED = ((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"))
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_head(path: Path) -> bytes:
    """The first 64 KiB after unpacking and turning into UTF-8; b"" for a directory.

    Of text with longer lines, the first three of them, up to 4 MiB.
    """
    head = b""
    for piece in () if path.is_dir() else _decoded(path, HEAD, []):
        head += piece
        if len(head) < HEAD:
            continue
        ends = max(head.count(b"\n"), head.count(b"\r"))
        if ends >= _HEAD_LINES or len(head) >= _LONGEST_HEAD or b"\0" in head:
            break
    if head.count(b"\n", 0, HEAD) >= _HEAD_LINES:
        return head[:HEAD]
    return head


def blocks(path: Path, notes: list[str]) -> Iterator[bytes]:
    """The text in blocks that end at a line end (the last may not). What was done goes to `notes`."""
    rest = b""
    for piece in _decoded(path, BLOCK, notes):
        cut = piece.rfind(b"\n") + 1
        if cut == 0:
            rest += piece
            continue
        yield rest + piece[:cut]
        rest = piece[cut:]
    if rest:
        yield rest


def read_text(path: Path, notes: list[str]) -> str:
    """The whole text; bytes that are not UTF-8 become U+FFFD and are counted in a note."""
    data = b"".join(_decoded(path, BLOCK, notes))
    text = data.decode("utf-8", errors="replace")
    broken = text.count("�") - data.count("�".encode())
    if broken > 0:
        notes.append(f"{broken:,} bytes are not UTF-8 text and were replaced.")
    return text


def is_text(head: bytes) -> bool:
    """Whether the head looks like text: no NUL, few control characters."""
    if b"\x00" in head:
        return False
    control = len(head.translate(None, bytes(range(32, 256)) + b"\t\n\r\x0b\x0c\x1b\x08"))
    broken = head.decode("utf-8", errors="ignore").encode()
    return control <= len(head) // 100 and len(broken) >= 0.9 * len(head)


def _decoded(path: Path, size: int, notes: list[str]) -> Iterator[bytes]:
    pieces = _unpacked(path, size, notes)
    first = next(pieces, b"")
    encoding = _encoding(first)
    if encoding is None:
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from pieces
        return
    notes.append(f"The file is {encoding.upper()}, not UTF-8; it was converted.")
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    yield decoder.decode(first).removeprefix("\ufeff").encode("utf-8", errors="replace")
    for piece in pieces:
        yield decoder.decode(piece).encode("utf-8", errors="replace")
    yield decoder.decode(b"", final=True).encode("utf-8", errors="replace")


def _encoding(first: bytes) -> str | None:
    for bom, name in _BOMS:
        if first.startswith(bom):
            return name
    probe = first[:1024]
    if len(probe) >= 8 and probe.count(0) >= 0.4 * len(probe):  # UTF-16 of ASCII text without a BOM
        even, odd = probe[::2], probe[1::2]
        if not even.count(0) and odd.count(0) >= 0.9 * len(odd):
            return "utf-16-le"
        if not odd.count(0) and even.count(0) >= 0.9 * len(even):
            return "utf-16-be"
    return None


def _unpacked(path: Path, size: int, notes: list[str]) -> Iterator[bytes]:
    try:
        with path.open("rb") as raw:
            magic = raw.read(6)
            raw.seek(0)
            packing = next((name for start, name in _PACKED if magic.startswith(start)), None)
            if packing is None:
                while piece := raw.read(size):
                    yield piece
                return
            notes.append(f"The file is packed with {packing}; it was unpacked.")
            yield from _packed(raw, size, path, packing, notes)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its rights"
        ) from error


def _packed(raw: IO[bytes], size: int, path: Path, packing: str, notes: list[str]) -> Iterator[bytes]:
    """Pieces of a packed stream, member by member; a stream cut short gives what it holds, with a note."""
    unpacker = _UNPACKERS[packing]()
    got, error = 0, "it ends too soon"
    data = b""
    while data or (data := raw.read(64 * 1024)):
        try:
            piece = unpacker.decompress(data)
        except (zlib.error, OSError, EOFError, lzma.LZMAError) as fault:
            error = str(fault)
            break
        got += len(piece)
        if piece:
            yield piece
        data = b""
        if unpacker.eof:
            data = unpacker.unused_data.lstrip(b"\0")
            unpacker = _UNPACKERS[packing]()
            if not data and not (data := raw.read(64 * 1024)):
                return
    if got == 0:
        raise InputError(f"{path}: is a broken {packing} file ({error}); pack the log again, or give it unpacked")
    notes.append(f"The {packing} file is cut off or broken ({error}): what it holds before was read.")


_UNPACKERS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}
