"""Weights on their way through Ray's object store: put once a version, read by any node, without a copy on one node.

A version is a list of chunks, each about a layer large, held by references: whoever holds a version's `StoredWeights`
pins it, and Ray frees it when nobody does. So there is nothing to acquire and nothing to release. The ranks of a
sharded trainer put chunks by turns, and none of them ever holds more than one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalerl.engines.weights import Metadata
from scalerl.errors import ScaleRLError
from scalerl.protocols import WeightSource

CHUNK_BYTES = 256 << 20
"""Of a chunk, unless a single tensor is larger."""


@dataclass(frozen=True)
class Chunk:
    """Some tensors of one version. `tensors`: reference to {name: array}; what numpy has no dtype for lies in bytes."""

    metadata: tuple[Metadata, ...]
    tensors: Any


@dataclass(frozen=True)
class StoredWeights:
    """A `WeightSource` whose tensors are fetched chunk by chunk; read-only, and shared by all readers of a node."""

    version: int
    chunks: tuple[Chunk, ...] = field(repr=False)

    def metadata(self) -> Sequence[Metadata]:
        return [item for chunk in self.chunks for item in chunk.metadata]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for chunk in self.chunks:
            try:
                arrays = ray.get(chunk.tensors)
            except ray.exceptions.ObjectLostError as error:
                raise ScaleRLError(f"weights of version {self.version} are lost: their trainer has died") from error
            for name, dtype, shape in chunk.metadata:
                yield name, _tensor(arrays[name], getattr(torch, dtype), shape)

    def release(self) -> None:
        """Nothing to do: the references are what holds it."""


def put_own_chunks(
    source: WeightSource, dtype: torch.dtype | None, rank: int = 0, ranks: int = 1, chunk_bytes: int = CHUNK_BYTES
) -> dict[int, Chunk]:
    """Put this rank's share of a version into the store; all ranks call it together.

    Args:
        source: iterating it gathers, where it is sharded. dtype: of the floating-point tensors; None keeps theirs.

    Returns:
        Chunks by their place in the version.
    """
    metadata = [(name, _published(own, dtype), shape) for name, own, shape in source.metadata()]
    places = _places(metadata, chunk_bytes)
    found: dict[int, Chunk] = {}
    held: dict[str, NDArray[Any]] = {}
    items: list[Metadata] = []
    for i, (name, tensor) in enumerate(source):
        place = places[i]
        if place % ranks == rank:
            held[name] = _array(tensor, getattr(torch, metadata[i][1]))
            items.append(metadata[i])
        del tensor
        if items and (i + 1 == len(places) or places[i + 1] != place):
            found[place] = Chunk(tuple(items), ray.put(held))
            held, items = {}, []
    return found


def together(version: int, parts: Iterable[Mapping[int, Chunk]]) -> StoredWeights:
    """What all ranks have put, in order."""
    chunks = {place: chunk for part in parts for place, chunk in part.items()}
    return StoredWeights(version, tuple(chunks[place] for place in sorted(chunks)))


def _places(metadata: Sequence[Metadata], chunk_bytes: int) -> list[int]:
    """Which chunk each tensor belongs to: neighbours together, as many as fit."""
    places, place, room = [], 0, chunk_bytes
    for _, dtype, shape in metadata:
        size = int(np.prod(shape, dtype=np.int64)) * getattr(torch, dtype).itemsize
        if size > room and room < chunk_bytes:
            place, room = place + 1, chunk_bytes
        places.append(place)
        room -= size
    return places


def _published(own: str, dtype: torch.dtype | None) -> str:
    floating = getattr(torch, own).is_floating_point
    return own if dtype is None or not floating else str(dtype).removeprefix("torch.")


def _array(tensor: Tensor, dtype: torch.dtype) -> NDArray[Any]:
    flat = tensor.detach().to("cpu", dtype, copy=True).contiguous().reshape(-1)
    array: NDArray[Any] = flat.view(torch.uint8).numpy()
    return array


def _tensor(array: NDArray[Any], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is read-only, and is only read
        return torch.from_numpy(array).view(dtype).reshape(shape)
