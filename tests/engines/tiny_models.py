"""Small models and batches for the tests of the engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scalerl.engines.model import build_model
from scalerl.types import Batch

DENSE: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 40, "tie_word_embeddings": True,
    "max_position_embeddings": 256, "initializer_range": 0.1,
}  # fmt: skip
UNTIED = DENSE | {"tie_word_embeddings": False}
MOE = UNTIED | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MIXTRAL = UNTIED | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
LLAMA = DENSE | {"model_type": "llama"}
CONFIGS = {"tied": DENSE, "untied": UNTIED, "moe": MOE}


def tiny(kind: str = "tied", dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    model = build_model(CONFIGS[kind], seed)
    if dtype != torch.float64:
        return model.to(dtype)
    if kind == "moe":
        model.set_experts_implementation("eager")  # type: ignore[operator]  # the grouped matmul knows no fp64
    return in_fp64(model)


def in_fp64(model: nn.Module) -> nn.Module:
    """The model in fp64 throughout: Hugging Face's norms would compute in fp32 whatever they are given."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                exact = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)  # type: ignore[arg-type]
                exact.weight = child.weight  # type: ignore[assignment]
                setattr(module, name, exact)
    return model.double()


def random_batch(seed: int = 0, sequences: int = 12, longest: int = 24, off_policy: float = 0.5) -> Batch:
    """Sequences of 2 to `longest` tokens; prompts of at least one token, and a few untrained tokens inside."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, longest + 1, sequences)
    prompt = rng.integers(1, lengths)
    positions = np.concatenate([np.arange(n) for n in lengths])
    sequence_ids = np.repeat(np.arange(sequences), lengths)
    mask = (positions >= prompt[sequence_ids]) & (rng.random(len(positions)) > 0.1)
    mask |= positions == prompt[sequence_ids]
    weights = np.where(mask, rng.random(len(positions)), 0)
    return Batch(
        token_ids=rng.integers(0, 40, len(positions)),
        positions=positions,
        sequence_ids=sequence_ids,
        generator_logprobs=np.where(mask, -3.7 + off_policy * rng.normal(size=len(positions)), 0).astype(np.float32),
        advantages=rng.normal(size=len(positions)).astype(np.float32),
        weights=(weights / weights.sum()).astype(np.float32),
        loss_mask=mask,
        policy_version=0,
    )


def select(batch: Batch, order: NDArray[np.int64]) -> Batch:
    """The batch with its sequences in this order, under their old ids."""
    at = np.concatenate([np.zeros(0, np.int64), *(np.flatnonzero(batch.sequence_ids == i) for i in order)])
    return Batch(
        batch.token_ids[at], batch.positions[at], batch.sequence_ids[at], batch.generator_logprobs[at],
        batch.advantages[at], batch.weights[at], batch.loss_mask[at], batch.policy_version,
    )  # fmt: skip


def slow_logprobs(model: nn.Module, batch: Batch, temperature: float = 1.0) -> Tensor:
    """(n,) by Hugging Face's own forward, one sequence at a time; nothing predicts a first token: 0 there."""
    found = []
    for i in np.unique(batch.sequence_ids):
        ids = torch.from_numpy(batch.token_ids[batch.sequence_ids == i])
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1] / temperature
        chosen = torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), ids[1:]]
        found.append(torch.cat([chosen.new_zeros(1), chosen]))
    return torch.cat(found)


def slow_cispo_gradient(model: nn.Module, batch: Batch, bound: float, temperature: float = 1.0) -> dict[str, Tensor]:
    """Gradient of - sum w sg(min(rho, bound)) A log pi, token by token, with autograd through Hugging Face's model."""
    logprobs = slow_logprobs(model, batch, temperature)
    loss = logprobs.new_zeros(())
    for t in np.flatnonzero(batch.loss_mask):
        ratio = min(float(torch.exp(logprobs[t].detach() - batch.generator_logprobs[t])), bound)
        loss = loss - float(batch.weights[t]) * ratio * float(batch.advantages[t]) * logprobs[t]
    parameters = dict(model.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
