"""The body of a Llama-like model in few passes over memory, with gradients written by hand.

A small model's training step is bound by reading and writing activations, not by matmuls: Hugging Face's RMS norm alone
makes a dozen passes, forward and backward. Here a norm's weight is folded into the matmul after it, query, key and
value share one matmul as gate and up do, and each backward pass makes the few passes that its formula needs. Parameters
are read from the Hugging Face model at every call, or once a step: nothing is kept that could be stale. Where kernels
can be compiled, those passes are theirs (`fused_compiled.py`).

States are computed once for all rows that begin alike (`prefix_tree.py`); attention alone sees whole rows.

Only for CPUs, and only where the result has been compared with the model's own (`fused_body`). Rows are padded on the
right, so plain causal attention is exact.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scalerl.engines import fused_compiled, fused_torch
from scalerl.engines.fused_compiled import Rotation
from scalerl.engines.fused_torch import linear, norm, norm_linear, rotated
from scalerl.engines.kernels import Kernels, kernels
from scalerl.engines.model import body
from scalerl.engines.prefix_tree import PrefixTree, prefix_tree

ARCHITECTURES = ("llama", "qwen3")
_TOLERANCE = 1e-4  # of the largest state or gradient, in fp32
_NOISE = 1e-6  # of the largest gradient of all: what a gradient that should be 0 may be
_log = logging.getLogger(__name__)


def fused_body(model: nn.Module, bf16: bool, recompute: bool = False) -> FusedBody | None:
    """(rows, width) ids -> (rows, width, d) last hidden state; None where the architecture is not covered.

    Args:
        bf16: matmuls in bf16; norms, rotation, attention and the residual stream stay in fp32.
        recompute: each layer once more in the backward pass, for memory.
    """
    if not covered(model):
        return None
    run = FusedBody(model, bf16, recompute)
    if not _agrees(model):
        return None
    if run.kernels is not None and not _kernels_agree(model):
        _log.warning("%s: the compiled kernels disagree with torch's operations and are not used", type(model).__name__)
        run.kernels = None
    return run


@dataclass(frozen=True)
class LayerWeights:
    """What one layer multiplies with: in the master's dtype for the gradient, and cast once for all micro-batches."""

    masters: tuple[Tensor, Tensor, Tensor, Tensor]  # query-key-value, output, gate-up, down
    casts: tuple[Tensor, Tensor, Tensor, Tensor]
    head_scale: Tensor | None  # (heads + kv_heads, head_dim), of the norms of query and key


class FusedBody:
    """See `fused_body`. Within `step` the weights are folded once for all calls, outside of it at every call."""

    def __init__(self, model: nn.Module, bf16: bool, recompute: bool) -> None:
        self.body: Any = body(model)
        config: Any = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.epsilon = float(config.rms_norm_eps)
        weight = next(model.parameters())
        self.dtype = torch.bfloat16 if bf16 else weight.dtype
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.kernels: Kernels | None = kernels(self.dtype, head_dim) if weight.dtype == torch.float32 else None
        self.recompute = recompute
        self._folded: list[LayerWeights] | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Micro-batches of one step: their backward passes add to the folded weights, leaving adds to the model's own.

        The parameters' gradients are complete only after it, and no weight may change within.
        """
        graph = [fold(layer, self.dtype) for layer in self.body.layers]
        roots = [t for layer in graph for t in (*layer.masters, layer.head_scale) if t is not None]
        leaves = {id(root): root.detach().requires_grad_(root.requires_grad) for root in roots}
        self._folded = [_cut(layer, leaves) for layer in graph]
        try:
            yield
        finally:
            self._folded = None
        reached = [root for root in roots if leaves[id(root)].grad is not None]
        if reached:
            torch.autograd.backward(reached, [leaves[id(root)].grad for root in reached])

    def __call__(self, token_ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(rows, width) ids, (rows,) lengths without padding or None -> (rows, width, d), of no meaning at padding."""
        tree = prefix_tree(token_ids, lengths)
        x = functional.embedding(tree.tokens, self.body.embed_tokens.weight)
        if self.kernels is not None:
            x = self._compiled(self.kernels, x, tree)
            return _rows(norm(x, self.body.norm.weight, self.epsilon), tree.node)
        cos, sin = (table[0, :, None] for table in self.body.rotary_emb(x, tree.positions[None]))
        half = cos.shape[-1] // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)  # signs of rotate_half
        for i, layer in enumerate(self.body.layers):
            x = self._again(self._layer, self._weights(i), x, tree, cos, sin, layer.self_attn.scaling)
        return _rows(norm(x, self.body.norm.weight, self.epsilon), tree.node)

    def _weights(self, i: int) -> LayerWeights:
        return self._folded[i] if self._folded is not None else fold(self.body.layers[i], self.dtype)

    def _again(self, layer: Callable[..., Any], *arguments: Any) -> Any:
        """A layer's output, of which the backward pass keeps only the input if so asked."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(layer, *arguments, use_reentrant=False)
        return layer(*arguments)

    def _compiled(self, run: Kernels, x: Tensor, tree: PrefixTree) -> Tensor:
        """(u, d) residual stream after all layers."""
        tables = self.body.rotary_emb(x, torch.arange(tree.node.shape[1])[None])
        cos, sin = (table[0].contiguous() for table in tables)
        sin[:, : sin.shape[1] // 2].neg_()  # signs of rotate_half
        pair: tuple[Tensor, Tensor | None] = (x, None)
        for i, layer in enumerate(self.body.layers):
            at = Rotation(run, tree, cos, sin, self.heads, self.kv_heads, self.epsilon, layer.self_attn.scaling)
            pair = self._again(self._compiled_layer, self._weights(i), at, *pair)
        return pair[0] if pair[1] is None else pair[0] + pair[1]

    def _compiled_layer(self, w: LayerWeights, at: Rotation, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        x, qkv = fused_compiled.add_norm_linear(x, y, w.masters[0], w.casts[0], at.run, at.epsilon)
        mixed = fused_compiled.attention(qkv.view(len(x), at.heads + 2 * at.kv_heads, -1), w.head_scale, at)
        y = linear(mixed, w.masters[1], w.casts[1])
        x, gate_up = fused_compiled.add_norm_linear(x, y, w.masters[2], w.casts[2], at.run, at.epsilon)
        return x, fused_compiled.swiglu_linear(gate_up, w.masters[3], w.casts[3], at.run)

    def _layer(self, w: LayerWeights, x: Tensor, tree: PrefixTree, cos: Tensor, sin: Tensor, scaling: float) -> Tensor:
        """(u, d) residual stream after one layer, a row for each node of the tree."""
        qkv = norm_linear(x, w.masters[0], w.casts[0], self.epsilon)
        qkv = qkv.view(1, len(x), self.heads + 2 * self.kv_heads, -1)
        states = rotated(qkv, w.head_scale, cos, sin, self.epsilon, self.heads, self.kv_heads)
        query, key, value = (_rows(t[0].flatten(1), tree.paths).view(*tree.paths.shape, *t.shape[2:]) for t in states)
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, enable_gqa=True,
            scale=scaling,
        )  # fmt: skip
        mixed = mixed.transpose(1, 2).flatten(2)
        x = x + linear(_rows(mixed.flatten(0, 1), tree.place), w.masters[1], w.casts[1])
        gate_up = norm_linear(x, w.masters[2], w.casts[2], self.epsilon)
        return x + fused_torch.swiglu_linear(gate_up, w.masters[3], w.casts[3])


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a table; as an embedding, whose backward pass adds up rows many times faster than index_select's."""
    return functional.embedding(index, table)


def fold(layer: Any, dtype: torch.dtype) -> LayerWeights:
    """What a layer of a covered model (`covered`) multiplies with; the casts have this dtype and no gradient."""
    attention, mlp = layer.self_attn, layer.mlp
    qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
    masters = (
        qkv * layer.input_layernorm.weight,
        attention.o_proj.weight,
        gate_up * layer.post_attention_layernorm.weight,
        mlp.down_proj.weight,
    )
    a, b, c, d = (m.detach().to(dtype) for m in masters)
    head_scale = None
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm.weight, attention.k_norm.weight
        heads, kv_heads = (proj.weight.shape[0] // len(query) for proj in (attention.q_proj, attention.k_proj))
        head_scale = torch.cat([query.expand(heads, -1), key.expand(kv_heads, -1)])
    return LayerWeights(masters, (a, b, c, d), head_scale)


def _cut(layer: LayerWeights, leaves: dict[int, Tensor]) -> LayerWeights:
    """The same with leaves in the place of what the graph computed."""
    a, b, c, d = (leaves[id(m)] for m in layer.masters)
    return LayerWeights((a, b, c, d), layer.casts, None if layer.head_scale is None else leaves[id(layer.head_scale)])


def covered(model: nn.Module) -> bool:
    """Whether the formulas here are this architecture's."""
    config: Any = model.config
    if config.model_type not in ARCHITECTURES or next(model.parameters()).device.type != "cpu":
        return False
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        return False
    biased = any(isinstance(m, nn.Linear) and m.bias is not None for m in body(model).modules())
    return not biased and str(config.hidden_act) == "silu"


@torch.no_grad()
def _agrees(model: nn.Module) -> bool:
    """Whether the hidden states of a few random rows are the model's own."""
    ids = _random_ids(model)
    expected = body(model)(input_ids=ids, use_cache=False).last_hidden_state
    run = FusedBody(model, False, False)
    run.kernels = None
    difference = (run(ids) - expected).abs().max()
    return bool(difference <= _TOLERANCE * expected.abs().max())


def _kernels_agree(model: nn.Module) -> bool:
    """Whether states and gradients of a few random rows are the same as without."""
    run, ids = FusedBody(model, False, False), _random_ids(model)
    parameters = [p for p in body(model).parameters() if p.requires_grad]
    outcomes = []
    for used in (run.kernels, None):
        run.kernels = used
        with torch.enable_grad():
            hidden = run(ids)
            pull = torch.linspace(0, 1e3, hidden.numel()).view_as(hidden).sin()  # a norm's output has a constant square
            gradients = torch.autograd.grad((hidden * pull).sum(), parameters) if parameters else ()
        outcomes.append((hidden.detach(), *gradients))
    noise = _NOISE * max(t.abs().max() for t in outcomes[1])
    return all((a - b).abs().max() <= _TOLERANCE * b.abs().max() + noise for a, b in zip(*outcomes, strict=True))


def _random_ids(model: nn.Module) -> Tensor:
    config: Any = model.config
    return torch.randint(config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(0))
