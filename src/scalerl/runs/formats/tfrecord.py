"""The record framing of TensorBoard event files: length, checksum of the length, data, checksum of the data.

A record whose data checksum is wrong is skipped. A wrong checksum of a length loses the thread; the reader
then looks for the next place where a length and its checksum agree. What was lost is counted, never hidden.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

_HEADER = struct.Struct("<QI")
_SHORT = 512  # up to here, checksums of many records are computed at once
_PATIENCE = 200_000  # positions tried when the thread is lost, so that a gigabyte of zeros does not take hours


@cache
def _table() -> NDArray[np.uint32]:
    """CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) of each single byte."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(0x82F63B78), crc >> 1)
    return crc


@cache
def _list_table() -> list[int]:
    return [int(x) for x in _table()]


def masked_crc(data: bytes) -> int:
    """CRC-32C of `data`, rotated and offset as the record format has it."""
    table, crc = _list_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _masked_crcs(raw: NDArray[np.uint8], start: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.uint32]:
    """`masked_crc` of many short pieces of `raw` at once, one byte of every piece a step."""
    order = np.argsort(-size, kind="stable")
    start, size = start[order], size[order]
    crc = np.full(start.size, 0xFFFFFFFF, dtype=np.uint32)
    table = _table()
    longer = start.size  # pieces are sorted from long to short: those still running are a prefix
    for i in range(int(size[0]) if size.size else 0):
        longer = int(np.searchsorted(-size[:longer], -i, side="left"))
        piece = crc[:longer]
        crc[:longer] = table[(piece ^ raw[start[:longer] + i]) & 0xFF] ^ (piece >> 8)
    crc ^= np.uint32(0xFFFFFFFF)
    masked = ((crc >> 15) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    result = np.empty_like(masked)
    result[order] = masked
    return result


def starts_with_record(head: bytes) -> bool:
    """Whether `head` opens with a plausible record (its length and the checksum of the length agree)."""
    if len(head) < 12:
        return False
    size, check = _HEADER.unpack_from(head)
    return 0 < size < 1 << 32 and bool(masked_crc(head[:8]) == check)


@dataclass(frozen=True)
class Records:
    """Where the records of one file lie, and what could not be read.

    `start`, `stop`: (n,) byte ranges. `damaged`: records left out for a wrong checksum. `lost_bytes`: bytes
    between records that belong to none. `cut_bytes`: bytes of an unfinished record at the end.
    """

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    damaged: int
    lost_bytes: int
    cut_bytes: int


def find_records(data: bytes) -> Records:
    """All records of `data` with right checksums."""
    starts, stops, checks, lost, cut = _walk(data)
    start, stop = np.array(starts, dtype=np.int64), np.array(stops, dtype=np.int64)
    good = _checksums_hold(data, start, stop, np.array(checks, dtype=np.uint32))
    return Records(start[good], stop[good], int((~good).sum()), lost, cut)


def _walk(data: bytes) -> tuple[list[int], list[int], list[int], int, int]:
    starts: list[int] = []
    stops: list[int] = []
    checks: list[int] = []
    at, end, lost = 0, len(data), 0
    unpack, uint32 = _HEADER.unpack_from, struct.Struct("<I").unpack_from
    trusted: dict[int, int] = {}  # few lengths occur, and the same length has the same checksum
    while at + 12 <= end:
        size, check = unpack(data, at)
        known = trusted.get(size)
        if known is None:
            known = trusted[size] = masked_crc(data[at : at + 8])
        if known != check:
            found = _next_record(data, at + 1)
            if found < 0:
                return starts, stops, checks, lost + end - at, 0
            lost += found - at
            at = found
            continue
        stop = at + 12 + size
        if stop + 4 > end:
            found = _next_record(data, at + 12)  # a length that was itself overwritten may overshoot the file
            if found < 0:
                return starts, stops, checks, lost, end - at
            lost += found - at
            at = found
            continue
        starts.append(at + 12)
        stops.append(stop)
        checks.append(uint32(data, stop)[0])
        at = stop + 4
    return starts, stops, checks, lost, end - at


def _next_record(data: bytes, at: int) -> int:
    """The next position whose length and checksum agree, or -1. (Below 4 GiB, bytes 4-8 are zero.)"""
    for _ in range(_PATIENCE):
        zeros = data.find(b"\0\0\0\0", at + 4)
        if zeros < 0 or zeros + 8 > len(data):
            return -1
        at = zeros - 4
        size, check = _HEADER.unpack_from(data, at)
        if 0 < size <= len(data) - at - 16 and masked_crc(data[at : at + 8]) == check:
            return at
        at += 1
    return -1


def _checksums_hold(
    data: bytes, start: NDArray[np.int64], stop: NDArray[np.int64], expected: NDArray[np.uint32]
) -> NDArray[np.bool_]:
    raw, size = np.frombuffer(data, dtype=np.uint8), stop - start
    good = np.ones(start.size, dtype=bool)
    short = np.flatnonzero(size <= _SHORT)
    for block in np.array_split(short, max(1, short.size // 65_536)):
        good[block] = _masked_crcs(raw, start[block], size[block]) == expected[block]
    # Longer records are pictures and histograms mostly: a slow checksum, and only up to 64 KiB.
    for i in np.flatnonzero((size > _SHORT) & (size <= 65_536)):
        good[i] = masked_crc(data[start[i] : stop[i]]) == expected[i]
    return good
