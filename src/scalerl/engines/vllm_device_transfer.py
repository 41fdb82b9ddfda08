"""Weights to vLLM's workers between GPUs, by vLLM's own transfer engines; the sender is the generator's process.

ipc   a worker on one GPU maps memory that the sender fills on the same GPU.
nccl  a broadcast from a GPU of the sender's own, the first one behind those that the engine has.

There is nothing like it on CPU, so no test of this project has run it: only that vLLM takes what is given here.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Coroutine, Iterator
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    WeightSource,
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory


class DeviceTransfer:
    """Sends one set of weights after another.

    Args:
        llm: the `AsyncLLM`. loop: that it runs in; every call here comes from another thread.
        kind: "ipc" or "nccl". workers: GPUs of the engine. dtype: of its weights.
    """

    def __init__(self, llm: Any, loop: asyncio.AbstractEventLoop, kind: str, workers: int, dtype: torch.dtype) -> None:
        self._source = Moved(torch.device("cuda", 0 if kind == "ipc" else workers), dtype)
        self._client, self._kind, self._workers = _Client(llm, loop), kind, workers
        self._sender: Any = None

    def send(self, source: Any) -> None:
        """Start, transfer and finish an update."""
        self._source.source = source
        if self._sender is None:  # the handshake reads names and shapes
            info = sender_info(self._kind, self._workers, self._source.largest())
            self._sender = WeightTransferTrainerFactory.trainer_init(info, client=self._client, source=self._source)
        self._sender.send_weights()
        self._source.source = None


class Moved(WeightSource):  # type: ignore[misc]  # vLLM may be absent where types are checked
    """A `WeightSource` of ours as one of vLLM's, its tensors on a GPU one after the other."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.source: Any = None

    def metadata(self) -> list[Any]:
        """Of what iteration yields."""
        return [
            ParamMeta(name, self._kept(getattr(torch, kind)), shape) for name, kind, shape in self.source.metadata()
        ]

    def largest(self) -> int:
        """Bytes of the largest tensor."""
        found: int = max(math.prod(m.shape) * m.dtype.itemsize for m in self.metadata())
        return found

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.source:
            yield name, tensor.detach().to(self.device, self._kept(tensor.dtype))

    def _kept(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype if dtype.is_floating_point else dtype


def sender_info(kind: str, workers: int, largest: int) -> Any:
    """What vLLM's sender is told. `largest`: bytes of a tensor; its buffer of 1 GiB would refuse a larger one."""
    if kind == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
        from vllm.distributed.weight_transfer.packed_tensor import DEFAULT_PACKED_BUFFER_SIZE_BYTES

        size = max(largest, DEFAULT_PACKED_BUFFER_SIZE_BYTES)
        return IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=size)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return NCCLTrainerInitInfo(rank=0, master_address="127.0.0.1", master_port=port, world_size=1 + workers)


class _Client:
    """vLLM's `VLLMWeightSyncClient`: the engine's coroutines as plain calls."""

    def __init__(self, llm: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._llm, self._loop = llm, loop

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._wait(self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info)))

    def start_weight_update(self) -> None:
        self._wait(self._llm.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        self._wait(self._llm.update_weights(WeightTransferUpdateRequest(update_info=update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._wait(self._llm.finish_weight_update(weight_version))

    def _wait(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
