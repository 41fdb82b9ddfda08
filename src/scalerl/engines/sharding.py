"""A policy whose parameters are spread over ranks by `torch.distributed.fsdp.fully_shard`.

Each decoder layer is a group of its own: gathered before it is computed, given back after. Embedding, last norm and
head form the root's group, which is always gathered in fp32, so that the head's matmul runs in fp32 on the very master
weights, tied or not (TRAPS 4-6); the layers compute in bf16 where that is asked for, and reduce gradients in fp32.

The gradients of ranks are added up, never averaged: the weights of a batch sum to 1 over all of them (TRAPS 10).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from scalerl.engines.compute import prepare
from scalerl.engines.head import token_logprobs
from scalerl.engines.micro_batches import MicroBatch
from scalerl.engines.model import body, head_weight, named_tensors
from scalerl.engines.trainer import TrainerSettings
from scalerl.engines.weights import TensorSource
from scalerl.errors import InputError


class ShardedPolicy(nn.Module):
    """Micro-batch -> log-probabilities: one module, so that body and head share the root's gathered parameters."""

    def __init__(self, model: nn.Module, settings: TrainerSettings, bf16: bool) -> None:
        super().__init__()
        self.model = model
        self.temperature, self.fp32_head = settings.temperature, settings.fp32_head
        self.bf16_head = bf16 and not settings.fp32_head

    def forward(self, token_ids: Tensor, sites: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, width) ids, (n,) flat indices of the states that predict, (n,) targets -> (n,) log-probabilities and
        (n,) entropies, as in `head.token_logprobs`."""
        module: Any = body(self.model)
        hidden: Tensor = module(input_ids=token_ids, use_cache=False).last_hidden_state
        chosen = hidden.reshape(-1, hidden.shape[-1]).index_select(0, sites)
        if self.bf16_head:
            chosen = chosen.bfloat16()
        return token_logprobs(chosen, head_weight(self.model), targets, self.temperature, self.fp32_head)

    def logprobs(self, part: MicroBatch) -> tuple[Tensor, Tensor]:
        """The same of a micro-batch; a forward pass without a gradient leaves no parameter gathered."""
        found: tuple[Tensor, Tensor] = self(part.token_ids, part.sites, part.targets)
        if not torch.is_grad_enabled():
            self.reshard()  # type: ignore[operator]  # of FSDPModule, which `fully_shard` mixes in
        return found


def shard(model: nn.Module, settings: TrainerSettings, bf16: bool, device: str) -> ShardedPolicy:
    """Spread a model over all ranks, in place; every rank calls it.

    Args:
        model: with the same weights on all ranks; or rank 0's counts, where any other's are on the meta device.
        bf16: the dtype that the layers compute in; else their own. device: "cpu" or "cuda".

    Raises:
        InputError: the model has no list of decoder layers.
    """
    layers = getattr(body(model), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise InputError(f"model_type {model.config.model_type}: no list of decoder layers to shard; use 1 trainer")  # type: ignore[union-attr]
    prepare(model, settings.activation_checkpointing, device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    apart = torch.tensor(next(model.parameters()).is_meta)
    dist.all_reduce(apart, dist.ReduceOp.MAX)
    weights = {n: t.detach() for n, t in named_tensors(model).items()} if apart and dist.get_rank() == 0 else {}
    policy = ShardedPolicy(model, settings, bf16)
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in layers:
        if settings.compiled:
            layer.compile(dynamic=True)
        _allocate(layer, device)
        fully_shard(
            layer,
            mesh=mesh,
            reshard_after_forward=settings.reshard_after_forward,
            mp_policy=low if bf16 else MixedPrecisionPolicy(),
        )
    _allocate(policy, device)
    fully_shard(policy, mesh=mesh, reshard_after_forward=False)
    if apart:
        _hand_out(model, weights)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sums
    return policy


def _allocate(module: nn.Module, device: str) -> None:
    """Memory, without values, for what is on the meta device; tied parameters stay one."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in made:
                    empty = torch.empty_like(parameter, device=device)
                    made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                part._parameters[name] = made[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_meta:
                part._buffers[name] = torch.empty_like(buffer, device=device)


@torch.no_grad()
def _hand_out(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Rank 0's weights, tensor by tensor, to the shards of all; `weights` is empty on the others."""
    for name, own in named_tensors(model).items():
        if isinstance(own, DTensor):
            whole = weights.pop(name, torch.empty(own.shape, dtype=own.dtype))
            own.to_local().copy_(distribute_tensor(whole, own.device_mesh, own.placements).to_local())
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)


class ShardedSource(TensorSource):
    """Over tensors that are spread over ranks: each is gathered when its turn comes, on all ranks at once.

    All ranks must iterate to the end, together. No more than one gathered tensor is alive here; what a consumer keeps
    is its own affair.
    """

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.tensors.items():
            whole = getattr(tensor.detach(), "full_tensor", None)
            yield name, tensor.detach() if whole is None else whole()
