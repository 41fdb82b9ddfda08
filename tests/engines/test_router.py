"""The router's loss: Hugging Face's over the whole batch at once, whatever the split (TRAPS 9)."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import DENSE, MIXTRAL, MOE, random_batch
from torch import Tensor, nn
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from scalerl.engines.model import build_model
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.types import Batch

COEFFICIENT = 0.5


def trainer(config: dict[str, Any], **changes: Any) -> TorchTrainer:
    model = build_model(config)
    model.set_experts_implementation("eager")  # type: ignore[operator]
    return TorchTrainer(model, TrainerSettings(compute="fp32", **changes))


def balance(model: nn.Module, batch: Batch) -> Tensor:
    """Hugging Face's loss over the inputs of all sequences, which reach to the one before the last target."""
    layers: list[list[Tensor]] = []
    for i in np.unique(batch.sequence_ids):
        of = batch.sequence_ids == i
        inputs = int(np.flatnonzero(batch.loss_mask[of])[-1])
        ids = torch.from_numpy(batch.token_ids[of][:inputs])[None]
        layers.append(model(input_ids=ids, use_cache=False, output_router_logits=True).router_logits)
    logits = tuple(torch.cat(layer) for layer in zip(*layers, strict=True))
    found: Tensor = load_balancing_loss_func(logits, 4, 2)  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("config", [MOE, MIXTRAL], ids=["qwen3_moe", "mixtral"])
@pytest.mark.parametrize("budget", [20, 60, 10**6])
def test_it_is_hugging_face_s_of_the_whole_batch(config: dict[str, Any], budget: int) -> None:
    batch = random_batch(1)
    plain, with_router = trainer(config), trainer(config, router_loss=COEFFICIENT, micro_batch_tokens=budget)
    without = plain.accumulate(batch)
    stats = with_router.accumulate(batch)
    expected = balance(plain.model, batch)
    value = float(expected.detach())
    assert stats["router_loss"] == pytest.approx(value, rel=1e-5)
    assert stats["loss"] == pytest.approx(without["loss"] + COEFFICIENT * value, rel=1e-5)
    (COEFFICIENT * expected).backward()  # type: ignore[no-untyped-call]  # onto the policy's own
    largest = max(float(p.grad.abs().max()) for p in plain.model.parameters() if p.grad is not None)
    for (name, found), own in zip(with_router.model.named_parameters(), plain.model.parameters(), strict=True):
        assert found.grad is not None
        assert own.grad is not None
        assert float((found.grad - own.grad).abs().max()) <= 1e-5 * largest, name


def test_it_evens_the_router_out() -> None:
    made = trainer(MOE, router_loss=1.0, learning_rate=1e-2, warmup_steps=0)
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if "gate.weight" in name:
                parameter[0] += 0.2 * torch.ones_like(parameter[0])
    batch = random_batch(2)
    batch.advantages[:] = 0
    losses = [made.step(batch)["router_loss"] for _ in range(15)]
    assert losses[0] > 2.05  # top_k = 2 is what an even router has
    assert losses[-1] < 2 + 0.5 * (losses[0] - 2)


def test_it_is_off_by_default_and_of_no_use_to_a_dense_model() -> None:
    assert TrainerSettings.from_recipe(Recipe.preset("scalerl")).router_loss == 0
    assert "router_loss" not in trainer(MOE).accumulate(random_batch())
    with pytest.raises(InputError, match=r"recipe\.router_loss = 0\.1: a qwen3 has no router; set it to 0"):
        trainer(DENSE, router_loss=0.1)
