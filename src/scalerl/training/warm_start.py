"""The small model of the arithmetic task: a Qwen3 with random weights, then supervised steps on worked examples.

Reinforcement can only raise what the policy sometimes does, so it must be shown the form of a trace first. A tenth of
the steps shown are wrong, which leaves errors to unlearn. The result is a Hugging Face folder, kept in a cache under a
hash of the settings: the same settings make it once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scalerl.cache import cache_folder
from scalerl.engines.compute import Body, make_body
from scalerl.engines.head import token_logprobs
from scalerl.engines.model import build_model, export_model, head_weight
from scalerl.errors import InputError
from scalerl.pipeline.checkpoint import alive
from scalerl.tasks.arithmetic import Arithmetic, Example
from scalerl.tasks.tokenizer import VOCABULARY, save_tokenizer
from scalerl.training.settings import WarmStart

RECIPE = 2
"""Raised when this file or the examples change: old caches are not taken for what comes out now."""
_DAY = 24 * 3600.0
_CHUNK = 16  # batches whose examples are sorted by length together
Progress = Callable[[int, int, float], None]
"""progress(step, steps, loss)"""


def warm_start(settings: WarmStart, threads: int = 1, progress: Progress = lambda *_: None) -> Path:
    """The folder of the model, made unless the cache has it.

    Args:
        settings: all that decides the result. progress: called after each step.
        threads: of torch. One is nearly as fast as two for a model of this size, and on a machine that is busy
            otherwise, where two wait for each other, several times faster.

    Raises:
        InputError: the cache folder cannot be written.
    """
    folder = cache_folder() / "warm-start" / content_hash(settings)
    if (folder / "config.json").is_file():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder.parent).close()  # better known now than after minutes
        _remove_abandoned(folder.parent)
    except OSError as error:
        raise InputError(
            f"{folder.parent}: cannot be written ({error.strerror}); set SCALERL_CACHE to a folder that can"
        ) from error
    model = trained(settings, threads, progress)
    scratch = Path(tempfile.mkdtemp(prefix=f".making-{os.getpid()}@{socket.gethostname()}@", dir=folder.parent))
    try:
        export_model(model, scratch)
        save_tokenizer(scratch)
        (scratch / "warm_start.json").write_text(json.dumps(asdict(settings), indent=1) + "\n")
        try:
            scratch.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _remove_abandoned(cache: Path) -> None:
    """What killed processes had begun; that of another machine, whose processes are not seen here, after a day."""
    for path in cache.glob(".making-*"):
        maker, _, rest = path.name.removeprefix(".making-").partition("@")
        here = rest.rpartition("@")[0] == socket.gethostname()
        with contextlib.suppress(FileNotFoundError):  # it has just been finished
            if not alive(int(maker)) if here and maker.isdigit() else time.time() - path.stat().st_mtime > _DAY:
                shutil.rmtree(path, ignore_errors=True)


def content_hash(settings: WarmStart) -> str:
    """Of everything that the result depends on, but for the versions of torch and its kernels' last bits."""
    content = json.dumps({"recipe": RECIPE, **asdict(settings)}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def trained(settings: WarmStart, threads: int = 1, progress: Progress = lambda *_: None) -> nn.Module:
    """The model after its supervised steps: AdamW, warm-up over a twentieth of the steps, then linear to a tenth."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = build_model(_config(settings), settings.seed)
        run = make_body(model, bf16=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), fused=True)
        for step, (inputs, targets) in enumerate(_batches(settings)):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * _schedule(step, settings.steps)
            loss = _loss(model, run, inputs, targets)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            progress(step + 1, settings.steps, loss.item())
    finally:
        torch.set_num_threads(before)
    return model


def _schedule(step: int, steps: int) -> float:
    rise = max(1, steps // 20)
    return (step + 1) / rise if step < rise else 1 - 0.9 * (step - rise) / max(1, steps - rise)


def _loss(model: nn.Module, run: Body, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over the completions' tokens; targets of -1 count for nothing."""
    hidden = run(inputs, None)
    sites = torch.nonzero(targets.reshape(-1) >= 0)[:, 0]
    chosen = hidden.reshape(-1, hidden.shape[-1]).index_select(0, sites)
    return -token_logprobs(chosen, head_weight(model), targets.reshape(-1)[sites], 1.0)[0].mean()


def _batches(settings: WarmStart) -> Iterator[tuple[Tensor, Tensor]]:
    """(batch, width) inputs and targets, all examples of a batch about equally long."""
    task = Arithmetic(level=settings.level)
    examples = task.warm_start(
        settings.steps * settings.batch, corruption=settings.corruption, interrupted=settings.interrupted,
        min_steps=settings.min_steps, max_steps=settings.max_steps, seed=settings.seed,
    )  # fmt: skip
    rng = np.random.default_rng([settings.seed, 17])
    size = settings.batch
    for begin in range(0, len(examples), _CHUNK * size):
        chunk = sorted(examples[begin : begin + _CHUNK * size], key=lambda e: len(e.prompt_ids) + len(e.completion_ids))
        for i in rng.permutation(len(chunk) // size).tolist():
            yield _padded(chunk[i * size : (i + 1) * size])


def _padded(examples: list[Example]) -> tuple[Tensor, Tensor]:
    width = max(len(e.prompt_ids) + len(e.completion_ids) for e in examples) - 1
    inputs = torch.zeros(len(examples), width, dtype=torch.long)
    targets = torch.full_like(inputs, -1)
    for row, e in enumerate(examples):
        ids = torch.tensor([*e.prompt_ids, *e.completion_ids])
        inputs[row, : len(ids) - 1] = ids[:-1]
        targets[row, len(e.prompt_ids) - 1 : len(ids) - 1] = ids[len(e.prompt_ids) :]
    return inputs, targets


def _config(settings: WarmStart) -> dict[str, Any]:
    positions = max(512, 6 * settings.max_steps + 32)  # a chain takes 2 tokens a step, its trace 4
    return {
        "model_type": "qwen3", "vocab_size": len(VOCABULARY), "hidden_size": settings.hidden_size,
        "num_hidden_layers": settings.layers, "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads, "head_dim": settings.head_dim,
        "intermediate_size": settings.intermediate_size, "max_position_embeddings": positions,
        "tie_word_embeddings": True,
        "pad_token_id": VOCABULARY["<pad>"], "bos_token_id": VOCABULARY["<bos>"], "eos_token_id": VOCABULARY["<eos>"],
    }  # fmt: skip
