"""Hugging Face causal language models, dense or mixture of experts, as the engines see them.

A model is a body (token ids -> last hidden state) and a head (one matrix, `head.py`); everything else of the class is
left alone. Tensors are listed once: a head tied to the embedding has no entry of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scalerl.engines.head import head_logits
from scalerl.errors import InputError


def load_model(path: str | Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Load a Hugging Face folder in `dtype`; `InputError` where it cannot be read or its head is not plain."""
    from transformers import AutoModelForCausalLM

    try:
        with _no_progress_bars():
            model: nn.Module = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: no causal language model of Hugging Face's format ({reason})") from error
    return _ready(model, str(path))


def empty_model(path: str | Path) -> nn.Module:
    """The model of a folder in fp32, on the meta device: all but its values."""
    from transformers import AutoConfig, AutoModelForCausalLM

    make: Any = AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model: nn.Module = make(AutoConfig.from_pretrained(path), dtype=torch.float32)
    return model.eval()


def build_model(config: Mapping[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Make a model with random weights.

    Args:
        config: a Hugging Face config as a mapping, e.g. {"model_type": "qwen3", "hidden_size": 128, ...}.
        seed: of the weights; the global random state is left as it was.

    Raises:
        InputError: no model can be made of it, saying why.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    make: Any = AutoModelForCausalLM.from_config
    settings = dict(config)
    kind = settings.pop("model_type", None)
    if kind is None:
        raise InputError("model config: key model_type is missing; name the architecture, e.g. model_type: qwen3")
    try:
        resolved = AutoConfig.for_model(kind, **settings)
    except Exception as error:  # validators raise types of their own
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"model config: unknown model_type {kind!r}, or a setting it does not take ({reason})"
        ) from error
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: nn.Module = make(resolved)
        return _ready(model.to(dtype), f"model_type {kind}")
    except InputError:
        raise
    except Exception as error:  # sizes that do not fit together come as whatever an architecture runs into
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise InputError(f"model config: no model can be made of it ({reason}); check that its sizes fit") from error


def export_model(
    model: nn.Module,
    path: str | Path,
    tokenizer: Any = None,
    dtype: torch.dtype | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a folder that `transformers` loads: safetensors and config, and the tokenizer if given.

    Args:
        tensors: whole ones, where the model's own are only shards.
    """
    own = named_tensors(model) if tensors is None else tensors
    tensors = {name: tensor.detach().to(dtype or tensor.dtype) for name, tensor in own.items()}
    with _no_progress_bars():
        model.save_pretrained(path, state_dict=tensors)  # type: ignore[operator]
    if tokenizer is not None:
        tokenizer.save_pretrained(path)


def body(model: nn.Module) -> nn.Module:
    """The model without its head: returns `last_hidden_state`, after the final norm."""
    decoder: nn.Module = model.get_decoder()  # type: ignore[operator]
    return decoder


def head_weight(model: nn.Module) -> Tensor:
    """(v, d) matrix of the head: the embedding's own storage where tied."""
    weight: Tensor = model.get_output_embeddings().weight  # type: ignore[operator]
    return weight


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer once, by the name that a Hugging Face folder gives it."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


def bind_tensors(model: nn.Module, views: Mapping[str, Tensor]) -> None:
    """Let a model's tensors *be* these views: no copy, and a tied head follows its embedding."""
    tensors = named_tensors(model)
    if tensors.keys() != views.keys():
        different = sorted(tensors.keys() ^ views.keys())
        raise InputError(f"weights and model differ in {len(different)} tensors, the first is {different[0]}")
    for name, tensor in tensors.items():
        if tensor.shape != views[name].shape:
            raise InputError(f"weights {name}: shape {tuple(views[name].shape)}, the model has {tuple(tensor.shape)}")
        tensor.data = views[name]


def checksum(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Hash of names, dtypes, shapes and bytes of all tensors: equal on both sides after a weight update."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def count_parameters(model: nn.Module, active: bool = False) -> int:
    """Parameters outside the embedding and the head; `active` counts only the experts that one token uses.

    This is the N of 2 N FLOPs a generated token and 6 N a trained one. The head is added, since it is a matmul.
    """
    embedding = model.get_input_embeddings().weight  # type: ignore[operator]
    head = head_weight(model)
    config = model.config
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    share = config.num_experts_per_tok / experts if active and experts else 1.0  # type: ignore[union-attr]
    total = float(head.numel())
    for name, parameter in model.named_parameters():
        if parameter is not embedding and parameter is not head:
            total += parameter.numel() * (share if ".experts." in name else 1.0)
    return round(total)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """A bar of one shard says nothing, and would tear the terminal's own display."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            logging.enable_progress_bar()


@torch.no_grad()
def _ready(model: nn.Module, where: str) -> nn.Module:
    """Switch dropout off, and make sure that body and head alone give the model's own logits."""
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    vocabulary = head_weight(model).shape[0]
    ids = torch.arange(4, device=head_weight(model).device)[None] % vocabulary
    expected = model(input_ids=ids, use_cache=False).logits.float()
    logits = head_logits(body(model)(input_ids=ids, use_cache=False).last_hidden_state, head_weight(model), fp32=False)
    tolerance = 1e-2 if expected.dtype == torch.bfloat16 else 1e-3
    if not torch.allclose(logits.float(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())):
        raise InputError(f"{where}: its logits are not hidden state x head (soft cap, bias or scaling); not supported")
    return model
