"""What bench/gpu.py calculates with: peaks of cards, FLOPs and bytes of a model, sizes that fit. Without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

GIB = 2**30


@dataclass(frozen=True)
class Peak:
    """What a card can do at most: FLOP/s of dense bf16 matmuls that add up in fp32, and bytes/s of its memory."""

    flops: float
    bandwidth: float


PEAKS: tuple[tuple[str, float, float], ...] = (  # part of the name, TFLOP/s, GB/s; the more special name first
    ("GB200", 2500, 8000), ("B300", 2250, 8000), ("B200", 2250, 8000),
    ("GH200 144G", 989, 4900), ("GH200", 989, 4000), ("H200 NVL", 835, 4800), ("H200", 989, 4800),
    ("H100 NVL", 835, 3900), ("H100 PCIe", 756, 2000), ("H100", 989, 3350), ("H800", 989, 3350), ("H20", 148, 4000),
    ("A100 80GB PCIe", 312, 1935), ("A100-PCIE-40GB", 312, 1555), ("A100-SXM4-40GB", 312, 1555),
    ("A100-SXM4-80GB", 312, 2039), ("A100-SXM-80GB", 312, 2039),
    ("L40S", 362, 864), ("L40", 181, 864), ("L4", 121, 300), ("A40", 150, 696), ("A30", 165, 933),
    ("A10G", 70, 600), ("A10", 125, 600), ("RTX A6000", 155, 768), ("RTX 6000 Ada", 364, 960),
    ("RTX 5090", 210, 1792), ("RTX 4090", 165, 1008), ("RTX 3090", 71, 936),
)  # fmt: skip
"""From the vendor's data sheets, without sparsity; consumer cards at their rate with fp32 accumulation."""


def known_peak(card: str) -> Peak | None:
    """By the name that the driver gives; None for a card that is not in the table."""
    for name, flops, bandwidth in PEAKS:
        if re.search(rf"\b{re.escape(name)}\b", card):
            return Peak(flops * 1e12, bandwidth * 1e9)
    return None


@dataclass(frozen=True)
class Shape:
    """A model as the formulae see it.

    Attributes:
        body: parameters outside embedding and head that one token uses. head: of the head's matrix.
        stored: all parameters, tied ones once. hidden: width of the residual stream.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    body: int
    head: int
    stored: int

    def forward_flops(self, tokens: float, sites: float, keys: float) -> float:
        """Of `tokens` through the body, `sites` of them through the head; `keys`: attended to, added up over tokens.

        Two a parameter and token for the matmuls; a query meets a key in two matmuls of the heads' width.
        """
        attention = 4.0 * self.layers * self.heads * self.head_dim * keys
        return 2.0 * self.body * tokens + 2.0 * self.head * sites + attention

    def training_flops(self, lengths: Sequence[int], targets: int) -> float:
        """6 N D and attention: three times the forward pass; what is computed again for memory does not count."""
        return 3.0 * self.forward_flops(sum(lengths), targets, causal_keys(lengths))

    @property
    def cache_bytes(self) -> int:
        """Of one token in a bf16 KV cache."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    def decode_bytes(self, sequences: int, prompt: int, completion: int) -> float:
        """What decoding must read at least: all bf16 weights once a step, and each sequence's cache so far."""
        weights = 2.0 * (self.body + self.head) * completion
        cache = self.cache_bytes * sequences * (completion * prompt + completion * (completion - 1) / 2)
        return weights + cache

    def generation_flops(self, sequences: int, prompt: int, completion: int) -> float:
        """Prompts and completions; only what is sampled from meets the head."""
        keys = causal_keys([prompt + completion - 1]) * sequences
        return self.forward_flops(sequences * (prompt + completion - 1), sequences * completion, keys)


def causal_keys(lengths: Sequence[int]) -> float:
    """Keys that the tokens of sequences attend to: 1 + 2 + ... + n each."""
    return float(sum(n * (n + 1) / 2 for n in lengths))


def mismatch(delta: np.ndarray[Any, Any]) -> dict[str, float]:
    """Of trainer's less generator's log-probabilities, as in bench/head.py.

    Raises:
        ValueError: one of them is not finite.
    """
    if not delta.size or not np.isfinite(delta).all():
        raise ValueError(f"{int((~np.isfinite(delta)).sum())} of {delta.size} log-probabilities are not finite")
    delta = delta.astype(np.float64)
    ratio = np.exp(delta)
    return {
        "tokens": int(delta.size),
        "mismatch_kl": digits(np.mean(ratio - 1 - delta)),
        "delta_mean": digits(delta.mean()),
        "delta_mean_abs": digits(np.abs(delta).mean()),
        "delta_max_abs": digits(np.abs(delta).max()),
        "ratio_max": digits(ratio.max()),
        "share_outside_.8_to_1.25": digits(((ratio < 0.8) | (ratio > 1.25)).mean()),
    }


def digits(value: Any) -> float:
    """Three of them."""
    return float(f"{float(value):.3g}")


def _qwen3(hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, inner: int, vocabulary: int) -> Any:
    return {
        "model_type": "qwen3", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": inner, "vocab_size": vocabulary,
        "max_position_embeddings": 4096, "tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 1,
        "initializer_range": round(0.9 / math.sqrt(hidden), 4),
    }  # fmt: skip


MODELS: dict[str, tuple[float, dict[str, Any]]] = {  # parameters; the shapes of Qwen3 but for the smaller two
    "qwen3-4b": (4.02e9, _qwen3(2560, 36, 32, 8, 128, 9728, 151_936)),
    "qwen3-1.7b": (1.72e9, _qwen3(2048, 28, 16, 8, 128, 6144, 151_936)),
    "qwen3-0.6b": (0.596e9, _qwen3(1024, 28, 16, 8, 128, 3072, 151_936)),
    "qwen3-0.1b": (0.12e9, _qwen3(512, 12, 8, 4, 64, 1536, 151_936)),
    "qwen3-cpu": (4.2e6, _qwen3(256, 4, 4, 2, 64, 768, 4096)),
}
_TRAINER_BYTES, _ROOM = 20, 5e9
"""A parameter takes fp32 weights, gradient and two moments, bf16 in the generator and its way there; and two CUDA
contexts, graphs and buffers take room."""


def choose_model(memory: float | None) -> str:
    """The largest model whose generator and trainer share a card of so many bytes; None: a CPU's."""
    if memory is None:
        return "qwen3-cpu"
    on_cards = [name for name in MODELS if name != "qwen3-cpu"]
    fits = [name for name in on_cards if _TRAINER_BYTES * MODELS[name][0] + _ROOM <= 0.75 * memory]
    return (fits or on_cards[-1:])[0]


@dataclass(frozen=True)
class Sizes:
    """How much is asked.

    Attributes:
        prompt, completion: tokens of a request whose speed is measured. at_once: how many run together, by turns.
        longest, running: most tokens, and number, of the requests that weights are updated under.
        kv_cache_gib, gpu_memory: of the generator, see `VLLMOptions`.
        sequence, micro_batch, step: tokens of the trainer's longest sequence, of a micro-batch, of a step.
        probes: rollouts of a mismatch. updates: of the weights.
    """

    prompt: int
    completion: int
    at_once: tuple[int, ...]
    longest: int
    running: int
    kv_cache_gib: float
    gpu_memory: float
    sequence: int
    micro_batch: int
    step: int
    probes: int
    updates: int

    @property
    def slots(self) -> int:
        """Most requests that run at once."""
        return max(self.at_once)


def choose_sizes(shape: Shape, memory: float | None) -> Sizes:
    """For a card of so many bytes, or a CPU.

    A fifth of the card is the KV cache's; activations get 60 % of what the trainer's states leave alone, at about 80
    bytes a token, layer and unit of width.
    """
    if memory is None:
        return Sizes(96, 64, (1, 4, 16), 320, 8, 1.0, 0.9, 128, 512, 1024, 8, 3)
    prompt, completion, longest, sequence = 192, 512, 2048, 1024
    cache = 0.2 * memory
    slots = int(min(256, max(4, cache // (shape.cache_bytes * (prompt + completion)))))
    running = int(min(64, slots, max(2, cache // (shape.cache_bytes * (prompt + longest)))))
    left = memory - 18 * shape.stored - 4e9
    fit = int(0.6 * left / (80 * shape.layers * shape.hidden)) // sequence * sequence
    micro_batch = min(16_384, max(sequence, fit))
    share = min(0.9, (2 * shape.stored + cache + 6e9) / memory)
    at_once = tuple(sorted({1, min(32, slots), slots}))
    return Sizes(
        prompt, completion, at_once, longest, running, round(cache / GIB, 2), round(share, 2), sequence, micro_batch,
        4 * micro_batch, 32, 5,
    )  # fmt: skip
