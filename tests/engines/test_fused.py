"""The fused body: the model's own values and gradients, in fp64 to rounding, or not used at all."""

from typing import Any

import pytest
import torch
from tiny_models import DENSE, LLAMA, MOE, UNTIED, in_fp64
from torch import Tensor, nn

from scalerl.engines import fused, fused_compiled
from scalerl.engines.compute import plain_body
from scalerl.engines.fused import fused_body
from scalerl.engines.kernels import kernels
from scalerl.engines.model import body, build_model
from scalerl.engines.prefix_tree import prefix_tree


def varied(config: dict[str, Any], dtype: torch.dtype = torch.float64) -> nn.Module:
    """Norm weights start at 1, where a forgotten one would not show."""
    model = build_model(config)
    model = in_fp64(model) if dtype == torch.float64 else model.to(dtype)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=rng))
    return model


def outcome(model: nn.Module, run: Any, shape: tuple[int, int]) -> tuple[Tensor, list[Tensor]]:
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(40, shape, generator=rng)
    hidden = run(ids)
    pull = torch.randn(hidden.shape, generator=rng, dtype=torch.float64).to(hidden.dtype)
    return hidden.detach(), list(torch.autograd.grad((hidden * pull).sum(), list(body(model).parameters())))


@pytest.mark.parametrize("config", [DENSE, UNTIED, LLAMA, DENSE | {"num_key_value_heads": 4}])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 40)])
@pytest.mark.parametrize("recompute", [False, True])
def test_values_and_gradients_are_the_model_s(config: dict[str, Any], shape: tuple[int, int], recompute: bool) -> None:
    model = varied(config)
    run = fused_body(model, bf16=False, recompute=recompute)
    assert run is not None
    expected, expected_gradients = outcome(model, plain_body(model, bf16=False), shape)
    found, gradients = outcome(model, run, shape)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))
    for gradient, true in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, true, rtol=0, atol=1e-11 * float(true.abs().max() + 1))


@pytest.mark.parametrize("recompute", [False, True])
def test_rows_that_begin_alike_give_each_their_own_part_of_the_gradient(recompute: bool) -> None:
    model = varied(DENSE)
    run = fused_body(model, bf16=False, recompute=recompute)
    assert run is not None
    lengths = torch.tensor([6, 3, 9, 9, 9, 1])
    ids = torch.randint(40, (6, 9), generator=torch.Generator().manual_seed(3))
    ids[1:5, :5], ids[3] = ids[0, :5], ids[2]  # a prompt in common, a row twice, one that is another's beginning
    inside = torch.arange(9) < lengths[:, None]
    pull = torch.randn(6, 9, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) * inside[..., None]
    results = []
    for body_of in (run, plain_body(model, bf16=False)):
        hidden = body_of(ids * inside, lengths)
        gradients = torch.autograd.grad((hidden.square() * pull).sum(), list(body(model).parameters()))
        results.append((hidden[inside].detach(), *gradients))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11 * float(expected.abs().max() + 1))


def test_a_step_of_many_calls_adds_the_same_gradient() -> None:
    model = varied(DENSE)
    run = fused_body(model, bf16=False)
    assert run is not None
    rows = torch.randint(40, (3, 2, 8), generator=torch.Generator().manual_seed(2))
    with run.step():
        for ids in rows:
            run(ids).square().sum().backward()
    found = [p.grad.clone() for p in body(model).parameters() if p.grad is not None]
    plain = plain_body(model, bf16=False)
    expected = torch.autograd.grad(sum(plain(ids).square().sum() for ids in rows), list(body(model).parameters()))
    for gradient, true in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, true, rtol=0, atol=1e-11 * float(true.abs().max() + 1))


COMPILED = [DENSE | {"head_dim": 32}, LLAMA | {"head_dim": 64}, DENSE | {"head_dim": 96, "num_key_value_heads": 1}]
needs_kernels = pytest.mark.skipif(kernels(torch.float32, 32) is None, reason="no C++ compiler")


def shared_rows(lengths: list[int], width: int) -> tuple[Tensor, Tensor]:
    """Rows of which the first half begins with the same 5 tokens; one stands there twice, one begins another."""
    ids = torch.randint(40, (len(lengths), width), generator=torch.Generator().manual_seed(3))
    ids[: len(ids) // 2, :5] = ids[0, :5]
    ids[1] = ids[2]
    return ids * (torch.arange(width) < torch.tensor(lengths)[:, None]), torch.tensor(lengths)


@needs_kernels
@pytest.mark.parametrize("config", COMPILED)
@pytest.mark.parametrize("lengths", [[1] * 6, [6, 3, 9, 9, 9, 1], [70, 70, 64, 33, 40, 65, 32, 2]])
@pytest.mark.parametrize("recompute", [False, True])
def test_compiled_values_and_gradients_are_the_model_s(
    config: dict[str, Any], lengths: list[int], recompute: bool
) -> None:
    model = varied(config, torch.float32)
    run = fused_body(model, bf16=False, recompute=recompute)
    assert run is not None
    assert run.kernels is not None
    ids, length = shared_rows(lengths, max(lengths))
    inside = torch.arange(ids.shape[1]) < length[:, None]
    pull = torch.randn(*ids.shape, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    outcomes = []
    for made, call in ((model, run), (exact := varied(config), plain_body(exact, bf16=False))):
        hidden = call(ids, length)[inside]
        gradients = torch.autograd.grad((hidden * pull[inside]).sum(), list(body(made).parameters()))
        outcomes.append([t.double() for t in (hidden.detach(), *gradients)])
    for found, expected in zip(*outcomes, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max() + 1))


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_attention_is_bit_for_bit_the_same_for_any_number_of_threads(dtype: torch.dtype) -> None:
    run = kernels(dtype, 32)
    assert run is not None
    tree = prefix_tree(*shared_rows([70, 70, 64, 33, 40, 65, 32, 2], 70))
    rng = torch.Generator().manual_seed(0)
    cos, sin = torch.randn(2, 70, 32, generator=rng)
    at = fused_compiled.Rotation(run, tree, cos, sin, 4, 2, 1e-6, 0.2)
    qkv = torch.randn(len(tree.tokens), 8, 32, generator=rng).to(dtype).requires_grad_()
    scale = torch.randn(6, 32, generator=rng).requires_grad_()
    threads, outcomes = torch.get_num_threads(), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            mixed = fused_compiled.attention(qkv, scale, at)
            outcomes.append((mixed, *torch.autograd.grad(mixed.float().square().sum(), (qkv, scale))))
    finally:
        torch.set_num_threads(threads)
    for one, many in zip(*outcomes, strict=True):
        assert torch.equal(one, many)


@needs_kernels
def test_a_frozen_model_has_kernels_too() -> None:
    model = varied(COMPILED[0], torch.float32).requires_grad_(False)
    run = fused_body(model, bf16=False)
    assert run is not None
    assert run.kernels is not None


@needs_kernels
def test_kernels_with_wrong_gradients_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fused_compiled._SwigluLinear.backward
    monkeypatch.setattr(
        fused_compiled._SwigluLinear,
        "backward",
        staticmethod(lambda ctx, g: (right(ctx, g)[0] * 1.1, *right(ctx, g)[1:])),
    )
    run = fused_body(varied(COMPILED[0], torch.float32), bf16=True)
    assert run is not None
    assert run.kernels is None


@pytest.mark.parametrize("config", [DENSE, DENSE | {"head_dim": 32}])
def test_bf16_is_as_near_as_autocast_s(config: dict[str, Any]) -> None:
    model = varied(config, torch.float32)
    true, true_gradients = outcome(model, plain_body(model, bf16=False), (8, 30))
    errors = []
    for run in (fused_body(model, bf16=True), plain_body(model, bf16=True)):
        found, gradients = outcome(model, run, (8, 30))
        errors.append((found - true).norm() / true.norm())
        errors += [(g - t).norm() / t.norm() for g, t in zip(gradients, true_gradients, strict=True)]
    half = len(errors) // 2
    assert max(errors[:half]) < 0.05
    assert max(errors[:half]) < 1.5 * max(errors[half:])


def test_parameters_are_read_at_every_call() -> None:
    model = varied(DENSE)
    run = fused_body(model, bf16=False)
    assert run is not None
    ids = torch.arange(5)[None]
    before = run(ids)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert not torch.allclose(run(ids), before)
    torch.testing.assert_close(run(ids), plain_body(model, bf16=False)(ids))


@pytest.mark.parametrize(
    "config",
    [
        MOE,
        DENSE | {"attention_bias": True},
        DENSE | {"hidden_act": "gelu"},
        DENSE | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
    ],
)
def test_what_is_not_covered_is_left_to_the_model(config: dict[str, Any]) -> None:
    assert fused_body(build_model(config), bf16=False) is None


def test_what_does_not_agree_is_left_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = varied(DENSE)
    model.config.rms_norm_eps = 0.1  # type: ignore[union-attr]  # the modules keep the epsilon they were built with
    assert fused_body(model, bf16=False) is None
    monkeypatch.setattr(fused, "ARCHITECTURES", ())
    assert fused_body(varied(DENSE), bf16=False) is None
