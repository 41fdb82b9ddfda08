"""The choices of a vLLM generator. Imports nothing heavy: settings are read without torch and without vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalerl.errors import InputError


@dataclass(frozen=True)
class VLLMOptions:
    """How vLLM runs.

    Attributes:
        url: of a `vllm serve` that exists already; null: each generator starts an engine of its own.
        tensor_parallel: GPUs that one engine's model is split over.
        gpu_memory: share of each GPU's memory that an engine takes.
        kv_cache_gib: of the KV cache, instead of what that share leaves; null: 1 on CPU.
        check: how much of every tensor is compared with the trainer's after each update.
        transfer: of weights to vLLM's workers. shared: a file in shared memory, on any device of this machine.
            ipc, nccl: vLLM's own, between GPUs; these cannot be checked.
    """

    url: str | None = None
    tensor_parallel: int = 1
    gpu_memory: float = 0.9
    kv_cache_gib: float | None = None
    check: Literal["sampled", "full", "none"] = "sampled"
    transfer: Literal["shared", "ipc", "nccl"] = "shared"

    def __post_init__(self) -> None:
        if not 1 <= self.tensor_parallel <= 64:
            raise InputError(f"tensor_parallel = {self.tensor_parallel}: it must be 1 to 64")
        if not 0 < self.gpu_memory <= 1:
            raise InputError(f"gpu_memory = {self.gpu_memory}: it is a share, above 0 and at most 1")
        if self.kv_cache_gib is not None and not 0 < self.kv_cache_gib < 1e6:
            raise InputError(f"kv_cache_gib = {self.kv_cache_gib}: it must be above 0")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise InputError(f"url = {self.url!r}: it must begin with http:// or https://")
        if self.transfer != "shared" and self.check != "none":
            raise InputError(
                f"check = {self.check!r}: what transfer = {self.transfer} brings cannot be compared; set it to 'none'"
            )
        if self.transfer == "ipc" and self.tensor_parallel > 1:
            raise InputError(
                f"transfer = 'ipc': it reaches one GPU, tensor_parallel = {self.tensor_parallel}; use nccl"
            )
        if self.transfer != "shared" and self.url is not None:
            raise InputError(
                f"transfer = {self.transfer!r}: a server takes weights by shared memory; set it to 'shared'"
            )
