"""A tiny decoder of the protobuf wire format, so that event files are read without protobuf or TensorFlow.

It knows no schema: a message becomes a list of (field number, value). Callers know which numbers they want.
Left out on purpose: groups (wire types 3 and 4, not used by anyone here) and encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Value = int | bytes
"""Varints are ints (unsigned); 32-bit, 64-bit and length-delimited fields are their raw bytes."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are not a protobuf message."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The base-128 number that starts at `at`, and the position after it."""
    result = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result, at
            shift += 7
            if shift > 63:
                raise WireError("a number of more than 64 bits")
    except IndexError:
        raise WireError("cut off within a number") from None


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field, in order.

    Raises:
        WireError: cut off, an unknown wire type, or field number 0.
    """
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        if tag < 0x80:
            at += 1
        else:
            tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise WireError("field number 0")
        if wire == VARINT:
            value, at = varint(data, at)
            yield number, value
            continue
        if wire == BYTES:
            size, at = varint(data, at)
        elif wire == FIXED64:
            size = 8
        elif wire == FIXED32:
            size = 4
        else:
            raise WireError(f"wire type {wire}")
        stop = at + size
        if stop > end:
            raise WireError("cut off within a field")
        yield number, data[at:stop]
        at = stop


def as_bytes(value: Value) -> bytes:
    """`value` of a length-delimited or fixed field; WireError if it is a varint."""
    if isinstance(value, int):
        raise WireError("a number where bytes belong")
    return value


def as_text(value: Value) -> str:
    """`value` as UTF-8; bad bytes become U+FFFD, since a name with a scar is better than a lost series."""
    return as_bytes(value).decode("utf-8", errors="replace")


def as_int(value: Value) -> int:
    """`value` of a varint, read as a signed 64-bit number."""
    if not isinstance(value, int):
        raise WireError("bytes where a number belongs")
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


def as_float(value: Value) -> float:
    """A 32- or 64-bit little-endian float."""
    raw = as_bytes(value)
    if len(raw) == 4:
        return float(struct.unpack("<f", raw)[0])
    if len(raw) == 8:
        return float(struct.unpack("<d", raw)[0])
    raise WireError(f"a float of {len(raw)} bytes")
