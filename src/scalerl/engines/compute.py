"""How a body is computed on this machine: in which dtype, compiled or not, with recomputation or not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from scalerl.engines.fused import fused_body
from scalerl.engines.model import body, count_parameters

Body = Callable[[Tensor, Tensor | None], Tensor]
"""(rows, width) token ids, padded on the right, and (rows,) lengths without padding or None where there is none
-> (rows, width, d) last hidden state."""

_ATTENTION = "scalerl_fp32_sdpa"
_PROBE_FLOPS = 2e11
_LONG_SECONDS = 0.5
"""A pass this long is steady: one after the first is enough to tell."""


def make_body(model: nn.Module, bf16: bool, activation_checkpointing: bool = False, compiled: bool = False) -> Body:
    """The body as a function, with matmuls in bf16 if asked: our own fused one where it covers the model."""
    if not compiled:
        fused = fused_body(model, bf16, activation_checkpointing)
        if fused is not None:
            return fused
    return plain_body(model, bf16, activation_checkpointing, compiled)


def plain_body(model: nn.Module, bf16: bool, activation_checkpointing: bool = False, compiled: bool = False) -> Body:
    """Hugging Face's own body, of any architecture."""
    kind = next(model.parameters()).device.type
    prepare(model, activation_checkpointing, kind)
    module: Any = body(model)
    run = torch.compile(module, dynamic=True) if compiled else module

    def forward(token_ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=bf16):
            hidden: Tensor = run(input_ids=token_ids, use_cache=False).last_hidden_state
        return hidden

    return forward


def prepare(model: nn.Module, activation_checkpointing: bool, device: str) -> None:
    """What must be set in a Hugging Face model before its own body is trained on "cpu" or "cuda"."""
    if device == "cpu":
        _fp32_attention(model)
    if activation_checkpointing:
        _recompute_activations(model)


def choose_dtype(model: nn.Module, tokens: int, width: int = 64) -> Literal["fp32", "bf16"]:
    """Which of the two is faster for one forward and backward pass of this very model: measured, never assumed.

    bf16 must win by a tenth: at equal speed the better precision is for free. A large model is asked with fewer tokens,
    or the answer would take minutes.
    """
    if next(model.parameters()).dtype == torch.float64:
        return "fp32"
    affordable = max(2 * width, int(_PROBE_FLOPS / (6 * count_parameters(model, active=True))))
    rows = max(1, min(tokens, affordable) // width)
    vocabulary: int = model.config.vocab_size  # type: ignore[union-attr,assignment]
    ids = torch.randint(vocabulary, (rows, width), generator=torch.Generator().manual_seed(0))  # rows unlike each other
    seconds = {bf16: _pass_seconds(model, ids, bf16) for bf16 in (False, True)}
    return "bf16" if seconds[True] < 0.9 * seconds[False] else "fp32"


def _pass_seconds(model: nn.Module, token_ids: Tensor, bf16: bool) -> float:
    """Best of three after one to warm up, of one where they are long; no gradient is left behind."""
    run = make_body(model, bf16)
    parameters = [p for p in body(model).parameters() if p.requires_grad]
    best = float("inf")
    for i in range(4):
        started = time.perf_counter()
        torch.autograd.grad(run(token_ids, None).float().sum(), parameters, allow_unused=True)
        best = min(best, time.perf_counter() - started)
        if i and best > _LONG_SECONDS:
            break
    return best


def _recompute_activations(model: nn.Module) -> None:
    """Hugging Face does so only in training mode; the dropouts that this would switch on stay off."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "resid_dropout", "hidden_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    enable: Any = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    model.train()


def _fp32_attention(model: nn.Module) -> None:
    """Keep attention in fp32 on CPUs: the backward pass of torch's bf16 kernel there is ten times slower."""
    if model.config._attn_implementation != "sdpa":  # type: ignore
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
        if query.dtype != torch.bfloat16:
            return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
        mask = mask.float() if mask is not None and mask.is_floating_point() else mask
        with torch.autocast("cpu", enabled=False):
            out, none = sdpa_attention_forward(module, query.float(), key.float(), value.float(), mask, **kwargs)
        return out.bfloat16(), none

    AttentionInterface.register(_ATTENTION, attend)
    AttentionMaskInterface.register(_ATTENTION, sdpa_mask)
    model.set_attn_implementation(_ATTENTION)  # type: ignore[operator]
