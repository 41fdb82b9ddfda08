"""vLLM in this process's keeping, through `AsyncLLM` and other public interfaces only.

Nothing is tokenized or detokenized, and nothing renormalises what is sampled from: no top-p, no top-k, no penalties.
Log-probabilities are those of the distribution that was sampled, at the recipe's temperature ("processed").
"""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

from scalerl.engines.generator import GeneratorSettings
from scalerl.engines.token_requests import Completion, Started, TokenRequest
from scalerl.engines.vllm_options import VLLMOptions
from scalerl.engines.vllm_transfer import BACKEND, PARENT, SharedFile, transfer_failure, write_shared
from scalerl.errors import EngineDied, InputError
from scalerl.protocols import WeightSource

_RARELY = 1 << 30
"""Tokens between two outputs of a request: its first, which tells that it has started, and its last."""
_SHUTDOWN_SECONDS = 10.0
"""It takes six of them, and then nothing of it is left in shared memory."""
_CPU_BLOCK = 32
"""Tokens of a block of the KV cache, the fewest that vLLM's CPU attention takes: short prompts are shared too."""


class VLLMEngine:
    """A `TokenEngine`. Starting takes about half a minute.

    Args:
        folder: of the model and its config, as Hugging Face writes it.
        dtype: of weights and KV cache, as torch names it. threads: on CPU.
    """

    def __init__(
        self, folder: Path, settings: GeneratorSettings, options: VLLMOptions, dtype: str = "float32", threads: int = 1
    ) -> None:
        self.folder, self.settings, self.options, self.dtype, self.threads = folder, settings, options, dtype, threads
        self._llm: Any = None
        self._devices: Any = None
        self._numbers = itertools.count()

    async def open(self, version: int) -> None:
        """Start the engine's processes.

        Raises:
            InputError: vLLM is not installed, or refuses the model or the settings.
        """
        _prepare_environment(self.threads, self.options.transfer)
        self._loop = asyncio.get_running_loop()
        try:
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise InputError(f"engines.generator = vllm: vLLM is not there ({error}); pip install vllm") from error
        try:
            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._arguments()))
        except (ValueError, RuntimeError) as error:
            raise InputError(f"engines.vllm: vLLM does not start with {self.folder}: {_line(error)}") from error
        await self._llm.update_weight_version(str(version))

    def _arguments(self) -> dict[str, Any]:
        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.platforms import current_platform

        settings, options, on_cpu = self.settings, self.options, current_platform.is_cpu()
        gib = options.kv_cache_gib or (1.0 if on_cpu else None)
        arguments: dict[str, Any] = {
            "model": str(self.folder),
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # the model's own would bring top-p and penalties along
            "dtype": self.dtype,
            "seed": settings.seed,
            "max_num_seqs": settings.slots,
            "max_model_len": settings.prompt_tokens + settings.limits.most,
            "tensor_parallel_size": options.tensor_parallel,
            "gpu_memory_utilization": options.gpu_memory,
            "kv_cache_memory_bytes": None if gib is None else int(gib * 2**30),
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "hf_overrides": {"head_dtype": "float32"} if settings.fp32_head else {"head_dtype": "model"},
            "weight_transfer_config": WeightTransferConfig(
                backend=BACKEND if options.transfer == "shared" else options.transfer
            ),
            "disable_log_stats": True,
        }
        return arguments | ({"block_size": _CPU_BLOCK, "enforce_eager": True} if on_cpu else {})

    async def complete(self, request: TokenRequest, started: Started) -> Completion:
        """As the protocol's; `EngineDied` where the engine is gone."""
        from vllm.inputs import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        prompt = tokens_input(list(request.token_ids), cache_salt=request.salt)
        output: Any = None
        try:
            async for latest in self._llm.generate(prompt, _sampling(request), f"r{next(self._numbers)}"):
                output = latest
                started()
        except EngineDeadError as error:
            raise EngineDied("vLLM's engine process has died; its output tells why") from error
        completion = output.outputs[0]
        if completion.finish_reason not in ("stop", "length"):
            raise EngineDied(f"vLLM ended a request with {completion.finish_reason!r}")
        flat = completion.logprobs
        logprobs = [flat.logprobs[start] for start in flat.start_indices]  # the sampled token comes first
        versions = [int(s.version) for s in completion.weight_versions for _ in range(s.end - s.start)]
        return Completion(list(completion.token_ids), logprobs, versions)

    def stage(self, version: int, source: WeightSource) -> SharedFile | WeightSource:
        """Write the weights to shared memory; between GPUs they go as they are."""
        import torch

        if self.options.transfer != "shared":
            return source
        return write_shared(version, source, getattr(torch, self.dtype), self.options.check)

    async def pause(self) -> None:
        """Clearing the cache, which is the default, would recompute every running rollout under new weights."""
        await self._llm.pause_generation(mode="keep", clear_cache=False)

    async def load(self, version: int, staged: SharedFile | WeightSource) -> None:
        """Raises `ScaleRLError`, naming the tensor, where the model does not hold what was sent."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        with transfer_failure(version):
            if isinstance(staged, SharedFile):
                with staged:
                    await self._llm.start_weight_update()
                    await self._llm.update_weights(WeightTransferUpdateRequest(update_info=staged.info))
                    await self._llm.finish_weight_update(str(version))
            else:
                await asyncio.to_thread(self._device_transfer().send, staged)
                await self._llm.update_weight_version(str(version))

    def _device_transfer(self) -> Any:
        import torch

        from scalerl.engines.vllm_device_transfer import DeviceTransfer

        if self._devices is None:
            options, dtype = self.options, getattr(torch, self.dtype)
            self._devices = DeviceTransfer(self._llm, self._loop, options.transfer, options.tensor_parallel, dtype)
        return self._devices

    async def resume(self) -> None:
        """As the protocol's."""
        await self._llm.resume_generation()

    async def close(self) -> None:
        """As the protocol's."""
        if self._llm is not None:
            llm, self._llm = self._llm, None
            await asyncio.to_thread(llm.shutdown, _SHUTDOWN_SECONDS)


def _sampling(request: TokenRequest) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        temperature=request.temperature, top_p=1.0, top_k=0, min_p=0.0, max_tokens=request.most, seed=request.seed,
        ignore_eos=True, stop_token_ids=list(request.stop), detokenize=False, logprobs=0, flat_logprobs=True,
        output_kind=RequestOutputKind.CUMULATIVE, stream_interval=_RARELY,
    )  # fmt: skip


def _prepare_environment(threads: int, transfer: str) -> None:
    """Before vLLM is imported. Its own binding to cores would take all of them, beside a trainer that needs some."""
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # a thread asks for them, and a fork would lack the others
    os.environ[PARENT] = str(os.getpid())
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if transfer == "ipc":  # its handles name classes, which vLLM sends to its own processes only so
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
