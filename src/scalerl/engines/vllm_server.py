"""A `vllm serve` that exists already, by its URL: token ids in, token ids out, and vLLM's own endpoints for RL.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --tokens-only --generation-config vllm \\
        --logprobs-mode processed_logprobs --hf-overrides '{"head_dtype": "float32"}' \\
        --weight-transfer-config '{"backend": "scalerl"}'

The server runs on this machine, since weights go through its memory, in an environment where scalerl is installed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from scalerl.engines.generator import GeneratorSettings
from scalerl.engines.token_requests import Completion, Started, TokenRequest
from scalerl.engines.vllm_options import VLLMOptions
from scalerl.engines.vllm_transfer import BACKEND, SharedFile, transfer_failure, write_shared
from scalerl.errors import EngineDied, InputError
from scalerl.protocols import WeightSource

_RARELY = 1 << 30
"""Tokens between two pieces of a stream: the first one, which tells that the request has started, and the last."""


class VLLMServer:
    """A `TokenEngine`.

    Args:
        dtype: of the server's weights, as torch names it.
    """

    def __init__(self, settings: GeneratorSettings, options: VLLMOptions, dtype: str = "float32") -> None:
        assert options.url is not None  # else there is no server
        self.settings, self.options, self.dtype, self.url = settings, options, dtype, options.url.rstrip("/")
        self._session: Any = None

    async def open(self, version: int) -> None:
        """Make sure that the server samples and takes weights as a generator must.

        Raises:
            InputError: it is not there, or was started in another way.
        """
        try:
            import aiohttp
        except ImportError as error:
            raise InputError("engines.vllm.url: aiohttp is not installed; pip install aiohttp") from error
        unlimited = aiohttp.ClientTimeout(total=None, connect=10)
        self._session = aiohttp.ClientSession(timeout=unlimited, connector=aiohttp.TCPConnector(limit=0))
        try:
            _check(self.url, await self._get("/server_info?config_format=json"), self.settings)
            await self._post("/update_weight_version", {"new_version": str(version)})
            await self.complete(TokenRequest((0,), 1, (), 1.0, "probe"), lambda: None)
        except EngineDied as error:
            raise InputError(
                f"engines.vllm.url = {self.url}: {error}; start it with VLLM_SERVER_DEV_MODE=1 and the options that "
                "the page on vLLM names"
            ) from error

    async def complete(self, request: TokenRequest, started: Started) -> Completion:
        """As the protocol's; `EngineDied` where the server is gone or refuses."""
        body = {
            "token_ids": list(request.token_ids), "cache_salt": request.salt, "stream": True,
            "sampling_params": {
                "temperature": request.temperature, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": request.seed,
                "max_tokens": request.most, "ignore_eos": True, "stop_token_ids": list(request.stop),
                "detokenize": False, "logprobs": 0, "stream_interval": _RARELY,
            },
        }  # fmt: skip
        token_ids: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        async for piece in self._stream("/inference/v1/generate", body):
            if "choices" not in piece:
                raise EngineDied(f"{self.url}: {piece.get('error', piece)}")
            for choice in piece["choices"]:
                token_ids += choice["token_ids"]
                logprobs += [token["logprob"] for token in choice["logprobs"]["content"]]
                spans = choice.get("weight_versions") or []  # with the last piece, of the whole completion
                versions += [int(s["version"]) for s in spans for _ in range(s["end"] - s["start"])]
            if token_ids:
                started()
        if not token_ids or len(versions) != len(token_ids):
            raise EngineDied(f"{self.url}: ended a request without all of its {request.most} tokens or their versions")
        return Completion(token_ids, logprobs, versions)

    def stage(self, version: int, source: WeightSource) -> SharedFile:
        """Write the weights to shared memory."""
        import torch

        return write_shared(version, source, getattr(torch, self.dtype), self.options.check)

    async def pause(self) -> None:
        """Clearing the cache, which is the default, would recompute every running rollout under new weights."""
        await self._post("/pause?mode=keep&clear_cache=false")

    async def load(self, version: int, staged: SharedFile) -> None:
        """Raises `ScaleRLError`, naming the tensor, where the model does not hold what was sent."""
        with staged, transfer_failure(version):
            await self._post("/start_weight_update")
            await self._post("/update_weights", {"update_info": staged.info})
            await self._post("/finish_weight_update", {"weight_version": str(version)})

    async def resume(self) -> None:
        """As the protocol's."""
        await self._post("/resume")

    async def close(self) -> None:
        """The server goes on."""
        if self._session is not None:
            await self._session.close()

    async def _get(self, path: str) -> Any:
        async with self._answer("GET", path) as answer:
            return await answer.json(content_type=None)

    async def _post(self, path: str, body: Any = None) -> None:
        async with self._answer("POST", path, body) as answer:
            await answer.read()

    async def _stream(self, path: str, body: Any) -> AsyncIterator[Any]:
        """What server-sent events carry; leaving early closes the connection, at which the server aborts."""
        async with self._answer("POST", path, body) as answer:
            async for line in answer.content:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    yield json.loads(line[6:])

    @contextlib.asynccontextmanager
    async def _answer(self, method: str, path: str, body: Any = None) -> AsyncIterator[Any]:
        import aiohttp

        try:
            async with self._session.request(method, self.url + path, json=body) as answer:
                if answer.status != 200:
                    raise EngineDied(f"{path.split('?')[0]} answers {answer.status}: {(await answer.text())[:2000]}")
                yield answer
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineDied(f"{self.url} does not answer ({type(error).__name__}: {error})") from error


def _check(url: str, info: Any, settings: GeneratorSettings) -> None:
    config = info["vllm_config"]
    model, transfer = config["model_config"], config.get("weight_transfer_config") or {}
    if model["logprobs_mode"] != "processed_logprobs":
        raise InputError(f"engines.vllm.url = {url}: start the server with --logprobs-mode processed_logprobs")
    if transfer.get("backend") != BACKEND:
        raise InputError(
            f'engines.vllm.url = {url}: start the server with --weight-transfer-config \'{{"backend": "{BACKEND}"}}\''
        )
    needed = settings.prompt_tokens + settings.limits.most
    if model["max_model_len"] < needed:
        raise InputError(
            f"engines.vllm.url = {url}: its --max-model-len is {model['max_model_len']}, and rollouts take {needed}"
        )
