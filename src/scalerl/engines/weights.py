"""Weights on their way from trainer to generators: in shared memory, whole, and without a copy on the reader's side.

A few buffers each hold all tensors of one policy version. The writer fills one that nobody looks at, then points to it.
A reader holds a buffer while it computes with views of it, so no forward pass ever meets a half-written set (TRAPS 21);
holding one by its version pins it, for an evaluation of exactly that policy.

What may die: a reader at any moment. Its hold is a file lock that the kernel drops with the process, and the writer
then takes the buffer back.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from scalerl.errors import ScaleRLError

_ALIGNMENT = 64  # bytes: vector loads never straddle a tensor's start
_NONE = -1
Metadata = tuple[str, str, tuple[int, ...]]


class TensorSource:
    """A `WeightSource` over tensors that exist already."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)

    def metadata(self) -> Sequence[Metadata]:
        return [(name, _dtype_name(t.dtype), tuple(t.shape)) for name, t in self.tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, tensor.detach()) for name, tensor in self.tensors.items())


class HeldWeights(TensorSource):
    """Weights of one version, as views of a buffer that stays as it is until `release`."""

    def __init__(self, version: int, tensors: Mapping[str, Tensor], reader: WeightReader, buffer: int) -> None:
        super().__init__(tensors)
        self.version = version
        self._reader, self._buffer = reader, buffer

    def release(self) -> None:
        """Let the buffer go; the views must not be read any more. A second call does nothing."""
        if self._buffer != _NONE:
            self._reader._let_go(self._buffer)
            self._buffer = _NONE

    def __enter__(self) -> HeldWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True)
class _Entry:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int  # bytes

    @property
    def size(self) -> int:
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


class SharedWeights:
    """Buffers in shared memory for one writer and some readers; pass it to spawned processes as an argument.

    Args:
        tensors: names, shapes and dtypes to hold; values are not read.
        buffers: at least 3: the newest, one that a generator uses, one to write. Each pinned version takes another.
        dtype: of the published floating-point tensors; None keeps each tensor's own.
        readers: how many readers there may be at once.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], buffers: int = 4, dtype: torch.dtype | None = None, readers: int = 8
    ) -> None:
        if buffers < 3:
            raise ValueError(f"{buffers} weight buffers: at least 3 are needed (newest, in use, being written)")
        self._entries = _layout(tensors, dtype)
        size = max((e.offset + e.size for e in self._entries), default=0)
        self._memory = torch.zeros(buffers, _aligned(size), dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._versions = torch.full((buffers,), _NONE, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._newest = torch.full((1,), _NONE, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._holds = torch.zeros(readers, buffers, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._locks = tempfile.mkdtemp(prefix="scalerl-weights-")
        weakref.finalize(self, _remove_locks, self._locks, os.getpid())

    def publish(
        self, version: int, tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]], timeout: float = 60.0
    ) -> None:
        """Copy a whole set into a free buffer, converting dtypes, and make it the newest.

        Waits while every buffer is held by a living reader. Pairs are taken one by one, so that they need not all
        exist at once.

        Raises:
            ScaleRLError: none became free within `timeout` seconds.
        """
        buffer = self._free_buffer(timeout)
        views = self._views(buffer)
        for name, tensor in tensors.items() if isinstance(tensors, Mapping) else tensors:
            if name not in views:
                raise ValueError(f"the set of tensors differs from the buffers': {name} is not theirs, or came twice")
            views.pop(name).copy_(tensor.detach())
        if views:
            raise ValueError(f"the set of tensors differs from the buffers': {next(iter(views))} is missing")
        with self._locked():
            self._versions[buffer] = version
            self._newest[0] = buffer

    def reader(self) -> WeightReader:
        """A place at the table of readers, for this process; the kernel frees it when the process ends."""
        return WeightReader(self)

    def metadata(self) -> Sequence[Metadata]:
        """(name, dtype, shape) as they are published."""
        return [(e.name, _dtype_name(e.dtype), e.shape) for e in self._entries]

    @property
    def newest_version(self) -> int:
        """-1 before the first publication."""
        with self._locked():
            newest = int(self._newest[0])
            return _NONE if newest == _NONE else int(self._versions[newest])

    def versions(self) -> list[int]:
        """Versions that can be held now, oldest first."""
        with self._locked():
            return sorted(v for v in self._versions.tolist() if v != _NONE)

    @property
    def bytes_per_version(self) -> int:
        return sum(e.size for e in self._entries)

    def _free_buffer(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while True:
            with self._locked():
                self._bury_dead_readers()
                held = self._holds.sum(0)
                newest = int(self._newest[0])
                free = [b for b in range(len(held)) if b != newest and not held[b]]
                if free:
                    oldest = min(free, key=lambda b: int(self._versions[b]))
                    self._versions[oldest] = _NONE  # nobody may start to hold it while it is written
                    return oldest
            if time.monotonic() > deadline:
                raise ScaleRLError(
                    f"no free weight buffer within {timeout:g} s: {len(held)} buffers are newest, in use or pinned; "
                    "raise the number of buffers or release evaluations sooner"
                )
            time.sleep(0.001)

    def _bury_dead_readers(self) -> None:
        for place in torch.nonzero(self._holds.any(1))[:, 0].tolist():
            handle = _try_lock(self._place_file(place))
            if handle is not None:
                self._holds[place] = 0
                os.close(handle)

    def _views(self, buffer: int) -> dict[str, Tensor]:
        memory = self._memory[buffer]
        return {e.name: memory[e.offset : e.offset + e.size].view(e.dtype).view(e.shape) for e in self._entries}

    def _place_file(self, place: int) -> str:
        return str(Path(self._locks) / f"reader-{place}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """File locks rather than semaphores: the kernel opens those of a killed process."""
        handle = os.open(str(Path(self._locks) / "table"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


class NewestWeights:
    """A `WeightSource` that iterates over what is newest at that moment, and holds it until it iterates again."""

    def __init__(self, shared: SharedWeights) -> None:
        self._shared, self._reader = shared, shared.reader()
        self._held: HeldWeights | None = None

    def metadata(self) -> Sequence[Metadata]:
        return self._shared.metadata()

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        held, before = self._reader.acquire(), self._held
        if held is None:
            raise ScaleRLError("no weights have been published yet")
        self._held = held
        if before is not None:
            before.release()
        return iter(held)


class WeightReader:
    """One reader's side. Not for use by several threads at once."""

    def __init__(self, shared: SharedWeights) -> None:
        self._shared = shared
        self._place, self._handle = self._take_place()
        self._close = weakref.finalize(self, os.close, self._handle)

    def acquire(self, version: int | None = None) -> HeldWeights | None:
        """Hold the newest weights, or exactly `version`; None if there are none (any more).

        What is held stays whole however many versions are published; several can be held at once.
        """
        shared = self._shared
        with shared._locked():
            if version is None:
                buffer = int(shared._newest[0])
            else:
                match = torch.nonzero(shared._versions == version)
                buffer = int(match[0, 0]) if version != _NONE and len(match) else _NONE
            if buffer == _NONE:
                return None
            shared._holds[self._place, buffer] += 1
            found = int(shared._versions[buffer])
        return HeldWeights(found, shared._views(buffer), self, buffer)

    def close(self) -> None:
        """Let go of everything and leave the table."""
        with self._shared._locked():
            self._shared._holds[self._place] = 0
        self._close()

    def _let_go(self, buffer: int) -> None:
        with self._shared._locked():
            self._shared._holds[self._place, buffer] -= 1

    def _take_place(self) -> tuple[int, int]:
        with self._shared._locked():
            for place in range(len(self._shared._holds)):
                handle = _try_lock(self._shared._place_file(place))
                if handle is not None:
                    self._shared._holds[place] = 0
                    return place, handle
        raise ScaleRLError(f"{len(self._shared._holds)} readers hold the weights already; make room for more readers")


def _layout(tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> list[_Entry]:
    entries, offset = [], 0
    for name, tensor in tensors.items():
        kept = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        entry = _Entry(name, kept, tuple(tensor.shape), offset)
        entries.append(entry)
        offset = _aligned(offset + entry.size)
    return entries


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _try_lock(path: str) -> int | None:
    """An open, locked file descriptor, or None where a living process has the lock."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _remove_locks(path: str, owner: int) -> None:
    """Only the process that made them: a child's copy ends earlier."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
