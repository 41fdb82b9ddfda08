"""Models: every tensor listed once, exported folders that load again, and refusals that teach (TRAPS 8)."""

from pathlib import Path

import pytest
import torch
from tiny_models import CONFIGS, DENSE, tiny

from scalerl.engines.model import (
    bind_tensors,
    build_model,
    checksum,
    count_parameters,
    empty_model,
    export_model,
    head_weight,
    load_model,
    named_tensors,
)  # fmt: skip
from scalerl.errors import InputError


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_parameter_is_listed_once(kind: str) -> None:
    model = tiny(kind)
    listed = named_tensors(model)
    assert {id(t) for t in listed.values()} == {id(p) for p in model.parameters()}
    assert len(listed) == len(list(model.parameters()))
    assert ("lm_head.weight" in listed) == (kind != "tied")


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_exported_folder_loads_again_bit_for_bit(kind: str, tmp_path: Path) -> None:
    model = tiny(kind)
    export_model(model, tmp_path)
    again = load_model(tmp_path)
    assert checksum(named_tensors(again).items()) == checksum(named_tensors(model).items())


def test_the_checksum_sees_one_changed_value() -> None:
    model = tiny()
    before = checksum(named_tensors(model).items())
    with torch.no_grad():
        list(named_tensors(model).values())[-1][0] += 1e-3
    assert checksum(named_tensors(model).items()) != before


def test_bound_tensors_are_views_and_a_tied_head_follows() -> None:
    model, other = tiny(), tiny(seed=1)
    views = {name: t.detach().clone() for name, t in named_tensors(other).items()}
    bind_tensors(model, views)
    assert checksum(named_tensors(model).items()) == checksum(named_tensors(other).items())
    assert head_weight(model).data_ptr() == views["model.embed_tokens.weight"].data_ptr()


def test_binding_a_set_that_lacks_a_tensor_is_refused() -> None:
    views = named_tensors(tiny("untied"))
    del views["lm_head.weight"]
    with pytest.raises(InputError, match=r"1 tensors, the first is lm_head\.weight"):
        bind_tensors(tiny("untied"), views)


def test_parameters_are_counted_without_embedding_and_idle_experts() -> None:
    attention = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 2 * 16
    dense = 2 * (attention + 3 * 64 * 96 + 2 * 64) + 64
    assert count_parameters(tiny()) == dense + 40 * 64  # the head is a matmul, the embedding is not
    expert = 3 * 64 * 32
    moe = 2 * (attention + 4 * expert + 4 * 64 + 2 * 64) + 64 + 40 * 64
    assert count_parameters(tiny("moe")) == moe
    assert count_parameters(tiny("moe"), active=True) == moe - 2 * 2 * expert


def test_building_leaves_the_random_state_alone_and_is_repeatable() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = tiny(seed=7)
    assert torch.equal(torch.rand(2), expected)
    assert checksum(named_tensors(first).items()) == checksum(named_tensors(tiny(seed=7)).items())


def test_unusable_models_are_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no causal language model"):
        load_model(tmp_path)
    with pytest.raises(InputError, match="model_type is missing"):
        build_model({"hidden_size": 64})
    with pytest.raises(InputError, match="unknown model_type 'qwen33'"):
        build_model(DENSE | {"model_type": "qwen33"})
    with pytest.raises(InputError, match=r"hidden_size.* expected int, got str"):
        build_model(DENSE | {"hidden_size": "wide"})
    with pytest.raises(InputError, match=r"no model can be made of it \(RuntimeError: .*sizes fit"):
        build_model(DENSE | {"head_dim": 3})
    granite = {k: v for k, v in DENSE.items() if k != "head_dim"} | {"model_type": "granite", "logits_scaling": 4.0}
    with pytest.raises(InputError, match="its logits are not hidden state x head"):
        build_model(granite)


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_empty_model_has_all_but_the_values(kind: str, tmp_path: Path) -> None:
    export_model(tiny(kind), tmp_path)
    empty, full = empty_model(tmp_path), load_model(tmp_path)
    assert all(tensor.is_meta for tensor in named_tensors(empty).values())
    assert [(n, t.shape, t.dtype) for n, t in named_tensors(empty).items()] == [
        (n, t.shape, t.dtype) for n, t in named_tensors(full).items()
    ]
    assert empty.training == full.training
