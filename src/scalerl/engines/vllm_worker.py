"""The workers' side of the weight transfer, inside vLLM's own processes: map the file, load it, check what came of it.

What is checked is what the model computes with. On CPU vLLM packs a linear layer's weight into a form that cannot be
read back; such a layer is asked for columns of its matrix by unit vectors, whose products are exact.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from scalerl.engines.vllm_transfer import MARK, columns, digest

_log = logging.getLogger("scalerl.engines")
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_UNIT_VECTORS = 512
"""Columns asked for at once."""


@dataclass
class SharedFileInit(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM may be absent where types are checked
    """Nothing has to be agreed beforehand."""


@dataclass
class SharedFileUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """As `vllm_transfer.write_shared` makes it."""

    path: str
    version: int
    check: str
    digests: dict[str, str] = field(default_factory=dict)


class SharedFileEngine(WeightTransferEngine[SharedFileInit, SharedFileUpdate]):  # type: ignore[misc]
    """Loads, finishes and checks in one call, so that a set which lacks a tensor is refused before anything changes."""

    init_info_cls, update_info_cls = SharedFileInit, SharedFileUpdate

    def init_transfer_engine(self, init_info: SharedFileInit) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        """Nothing yet: see `receive_weights`."""

    def finish_weight_update(self) -> None:
        """Nothing any more: see `receive_weights`."""

    def shutdown(self) -> None:
        """Nothing is held between two updates."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Without the base's synchronisation of an accelerator where there is none."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: SharedFileUpdate) -> None:
        """Load all tensors of the file and compare.

        Raises:
            RuntimeError: naming a tensor that was not sent, or that the model does not hold as it was sent.
        """
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        whole = self.parallel_config.tensor_parallel_size == 1
        with safe_open(update_info.path, framework="pt") as file:
            sent = set(file.keys())
            expected = set(_parts(self.model)) - self._tied() if whole else set()
            plain_names = whole and sent - self._tied() <= expected
            if plain_names and (missing := sorted(expected - sent)):
                raise RuntimeError(f"{MARK} {missing[0]} was not sent, nor were {len(missing) - 1} others")
            initialize_layerwise_reload(self.model)
            loaded = self.model.load_weights((name, file.get_tensor(name).to(self.device)) for name in sorted(sent))
            finalize_layerwise_reload(self.model, self.model_config)
        self._repack_tied_head()
        if not plain_names and loaded is not None:
            missing = sorted({name for name, _ in self.model.named_parameters()} - loaded)
            if missing:
                raise RuntimeError(f"{MARK} nothing that was sent went into {missing[0]} and {len(missing) - 1} others")
        if self._tied() and update_info.digests:
            update_info.digests.setdefault(_HEAD, update_info.digests[_EMBEDDING])
        _compare(self.model, update_info, whole)

    def _repack_tied_head(self) -> None:
        """vLLM packs a head on CPU when it is loaded; a tied one is not loaded again, and would stay the first one."""
        head: Any = getattr(self.model, "lm_head", None)
        if self._tied() and hasattr(head, "cpu_linear"):
            head.quant_method.process_weights_after_loading(head)

    def _tied(self) -> set[str]:
        return {_HEAD} if getattr(self.model_config.hf_text_config, "tie_word_embeddings", False) else set()


def _compare(model: nn.Module, update: SharedFileUpdate, whole: bool) -> None:
    parts, unread = _parts(model), []
    for name, expected in update.digests.items():
        if name not in parts or not whole:
            unread.append(name)
            continue
        for how, tensor, which in parts[name].read(update.version, update.check):
            if digest(tensor, which) != expected:
                raise RuntimeError(f"{MARK} {name} is not what the trainer has ({update.check} check, {how})")
    if not unread:
        return
    how = f"{unread[0]} and {len(unread) - 1} others cannot be compared with what vLLM made of them"
    if whole:
        raise RuntimeError(f"{MARK} {how}; engines.vllm.check = none goes on without knowing")
    _log.warning("%s, since a GPU has a part of each", how)


@dataclass
class _Part:
    """Rows of a parameter of vLLM's that are one tensor of the checkpoint."""

    module: nn.Module
    parameter: str
    rows: slice

    def read(self, version: int, check: str) -> Iterator[tuple[str, Tensor, list[int] | None]]:
        """(how it was read, the tensor or its columns, which columns of it to compare)."""
        held: Tensor = getattr(self.module, self.parameter)
        if held.numel():
            part = held[self.rows]
            yield "as stored", part, columns(tuple(part.shape), version, check)
        packed = getattr(self.module, "cpu_linear", None)
        if packed is not None and self.parameter == "weight":
            sizes = (getattr(self.module, name, 0) for name in ("input_size_per_partition", "input_size"))
            inputs = int(next((size for size in sizes if size), held.shape[-1]))
            which = columns((0, inputs), version, check)
            yield "as computed", self._columns(packed, which or list(range(inputs)), inputs, held), None

    def _columns(self, packed: Any, which: list[int], inputs: int, held: Tensor) -> Tensor:
        found = []
        for start in range(0, len(which), _UNIT_VECTORS):
            some = which[start : start + _UNIT_VECTORS]
            units = torch.zeros(len(some), inputs, dtype=held.dtype)
            units[torch.arange(len(some)), some] = 1
            found.append(packed(units, held, None)[:, self.rows])
        return torch.cat(found).T


def _parts(model: nn.Module) -> dict[str, _Part]:
    """What the model holds, by the names of a checkpoint; fused projections taken apart."""
    fused: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    found = {}
    for path, module in model.named_modules():
        above, _, last = path.rpartition(".")
        for parameter in dict(module.named_parameters(recurse=False)):
            names, sizes = fused.get(last), getattr(module, "output_partition_sizes", None)
            if names is None or sizes is None or len(names) != len(sizes):
                found[f"{path}.{parameter}"] = _Part(module, parameter, slice(0, _rows(module)))
                continue
            start = 0
            for name, size in zip(names, sizes, strict=True):
                found[f"{above}.{name}.{parameter}"] = _Part(module, parameter, slice(start, start + size))
                start += size
    return found


def _rows(module: nn.Module) -> int | None:
    """Of the vocabulary without the rows that vLLM pads it with; None: all."""
    size = getattr(module, "org_vocab_size", None)
    return None if size is None else int(size)
