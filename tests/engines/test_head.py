"""The head: closed forms, precision of the matmul itself, and an embedding that stays as it is (TRAPS 1, 4-7, 14)."""

import numpy as np
import pytest
import torch
from tiny_models import tiny

from scalerl.engines.generator import GeneratorSettings, TorchGenerator
from scalerl.engines.head import head_logits, token_logprobs
from scalerl.engines.length_control import LengthLimits
from scalerl.engines.model import body, head_weight
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.recipe.assemble import make_batch
from scalerl.recipe.recipe import Recipe
from scalerl.types import Group, Prompt


def drawn(n: int, d: int, v: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(n, d, generator=rng, dtype=dtype), torch.randn(v, d, generator=rng, dtype=dtype)
    return hidden, weight, torch.randint(v, (n,), generator=rng)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("chunk_elements", [1, 100, 1 << 20])
def test_values_and_gradients_are_those_of_the_formula(temperature: float, chunk_elements: int) -> None:
    hidden, weight, targets = drawn(7, 5, 11, torch.float64)
    hidden.requires_grad_(), weight.requires_grad_()
    logprobs, entropy = token_logprobs(hidden, weight, targets, temperature, chunk_elements=chunk_elements)
    law = torch.distributions.Categorical(logits=hidden @ weight.T / temperature)
    torch.testing.assert_close(logprobs, law.log_prob(targets), rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, law.entropy(), rtol=0, atol=1e-12)
    assert not entropy.requires_grad
    assert torch.autograd.gradcheck(
        lambda h, w: token_logprobs(h, w, targets, temperature, chunk_elements=chunk_elements)[0], (hidden, weight)
    )


def test_the_matmul_runs_in_fp32_even_under_autocast() -> None:
    hidden, weight, targets = drawn(64, 128, 40, torch.float32)
    hidden, weight = hidden.bfloat16(), weight.bfloat16()
    exact = (hidden.double() @ weight.double().T).log_softmax(-1)[torch.arange(64), targets]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fp32, _ = token_logprobs(hidden, weight, targets)
        cast_too_late, _ = token_logprobs(hidden, weight, targets, fp32=False)
    assert fp32.dtype == torch.float32
    assert (fp32 - exact).abs().max() < 1e-4
    assert (cast_too_late - exact).abs().max() > 1e-3  # the test can tell the two apart


@pytest.mark.parametrize(("states", "weights"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_without_fp32_the_matmul_runs_in_the_lower_precision(states: str, weights: str) -> None:
    hidden, weight, targets = drawn(64, 128, 40, torch.float32)
    expected = (hidden.bfloat16() @ weight.bfloat16().T).float()
    hidden, weight = hidden.to(getattr(torch, states)), weight.to(getattr(torch, weights))
    assert torch.equal(head_logits(hidden, weight, fp32=False), expected)
    hidden.requires_grad_(), weight.requires_grad_()
    logprobs, _ = token_logprobs(hidden, weight, targets, fp32=False)
    torch.testing.assert_close(logprobs, expected.log_softmax(-1)[torch.arange(64), targets])
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    assert (hidden.grad.dtype, weight.grad.dtype) == (hidden.dtype, weight.dtype)


def mismatch(fp32_generator: bool, fp32_trainer: bool) -> float:
    """Mean |difference| of log-probabilities on the same weights, both bodies in bf16."""
    model = tiny("tied", torch.bfloat16)
    limits = LengthLimits((0, 0), 12, None, (), (99,))
    generator = TorchGenerator(model, GeneratorSettings(32, 4, limits, fp32_head=fp32_generator))  # type: ignore[arg-type]
    generator.submit([(i, Prompt((i, i + 1), str(i), "t")) for i in range(32)])
    while not generator.idle:
        generator.step()
    groups = [Group(r.group_id, (r,), np.ones(1, np.float32)) for r in generator.poll()]
    batch = make_batch(groups, Recipe(zero_variance="keep", length_control="none"), 0)
    trainer = TorchTrainer(tiny("tied", torch.bfloat16), TrainerSettings(fp32_head=fp32_trainer, compute="bf16"))
    difference = trainer.logprobs(batch).numpy() - batch.generator_logprobs
    return float(np.abs(difference[batch.loss_mask]).mean())


def test_generator_and_trainer_take_the_head_in_the_same_precision() -> None:
    equal = max(mismatch(True, True), mismatch(False, False))
    unequal = min(mismatch(True, False), mismatch(False, True))  # TRAPS 4: on one side only is worse than on neither
    assert equal < 0.1 * unequal


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_the_embedding_keeps_its_storage_dtype_and_values(kind: str) -> None:
    model = tiny(kind, torch.bfloat16)
    embedding = model.get_input_embeddings().weight
    before, pointer = embedding.detach().clone(), embedding.data_ptr()
    ids = torch.arange(12)[None]
    hidden = body(model)(input_ids=ids, use_cache=False).last_hidden_state[0]
    logprobs, _ = token_logprobs(hidden, head_weight(model), ids[0])
    logprobs.sum().backward()
    assert embedding.dtype == torch.bfloat16
    assert embedding.data_ptr() == pointer
    assert torch.equal(embedding, before)
    assert (head_weight(model) is embedding) == (kind == "tied")


def test_no_copy_of_the_head_outlives_an_update() -> None:
    model = tiny("tied", torch.bfloat16)
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    before = head_logits(hidden, head_weight(model))
    with torch.no_grad():
        head_weight(model).mul_(2)
    torch.testing.assert_close(head_logits(hidden, head_weight(model)), 2 * before)


def test_a_nan_state_without_a_gradient_poisons_nothing() -> None:
    hidden, weight, targets = drawn(4, 5, 11, torch.float64)
    hidden[2] = torch.nan
    hidden.requires_grad_(), weight.requires_grad_()
    logprobs, _ = token_logprobs(hidden, weight, targets)
    logprobs[[0, 1, 3]].sum().backward()
    assert torch.isfinite(hidden.grad).all()  # type: ignore[arg-type]


def test_a_token_that_cannot_be_sampled_adds_no_entropy() -> None:
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [0.0], [-torch.inf]])
    logprobs, entropy = token_logprobs(hidden, weight, torch.tensor([0]))
    assert float(logprobs) == pytest.approx(-0.6931472)
    assert float(entropy) == pytest.approx(0.6931472)


def test_entropy_is_never_negative_however_low_the_temperature() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(500, 16), torch.randn(24, 16)
    _, entropy = token_logprobs(hidden, weight, torch.zeros(500, dtype=torch.long), temperature=1e-3)
    assert float(entropy.min()) == 0.0
