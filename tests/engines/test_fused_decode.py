"""The fused decoder: the model's own log-probabilities whatever happens to the slots, or not used at all."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import DENSE, LLAMA, MOE

from scalerl.engines import fused_decode, generator
from scalerl.engines.fused_decode import FusedDecoder, fused_decoder
from scalerl.engines.generator import GeneratorSettings, TorchGenerator
from scalerl.engines.head import head_logits, token_logprobs
from scalerl.engines.kernels import kernels
from scalerl.engines.length_control import LengthLimits
from scalerl.engines.model import body, build_model, head_weight, named_tensors
from scalerl.engines.prompt_keys import FilledPrompts
from scalerl.engines.sampling import sample
from scalerl.engines.weights import TensorSource
from scalerl.types import Prompt, Rollout

LIMITS = LengthLimits(thinking=(3, 12), answer=6, end_of_thinking=3, phrase=(4, 5, 3), end_tokens=(1, 2))
LLAMA3 = LLAMA | {
    "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
COVERED = {"qwen3": DENSE, "llama": LLAMA, "one_kv_head": DENSE | {"num_key_value_heads": 1}, "llama3_mha": LLAMA3}
COMPILED = {f"{name}_compiled": config | {"head_dim": 32 << (name == "llama")} for name, config in COVERED.items()}


def varied(config: dict[str, Any], dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Norm weights start at 1, where a forgotten one would not show."""
    model = build_model(config, seed)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=rng))
    return model.to(dtype)


def grouped(groups: int, size: int) -> list[tuple[int, Prompt]]:
    rng = np.random.default_rng(0)
    found = []
    for i in range(groups):
        prompt = Prompt(tuple(rng.integers(6, 40, rng.integers(1, 9)).tolist()), f"p{i}", "t")
        found += [(i, prompt)] * size
    return found


def rolled_out(
    model: Any, slots: int, prompts: list[tuple[int, Prompt]], updates: dict[int, Any] | None = None, **settings: Any
) -> list[Rollout]:
    """All rollouts in the order of submission; `updates`: decode step -> model whose weights are taken."""
    made = TorchGenerator(model, GeneratorSettings(slots, 8, LIMITS, **settings))
    made.submit([(i, prompt) for i, (_, prompt) in enumerate(prompts)])
    step = 0
    while not made.idle:
        if updates and step in updates:
            made.update_weights(step, TensorSource({k: v.clone() for k, v in named_tensors(updates[step]).items()}))
        made.step()
        step += 1
    return sorted(made.poll(), key=lambda r: r.group_id)


def recomputed(model: Any, rollout: Rollout) -> np.ndarray:
    """By one plain forward of the Hugging Face model over the rollout's own sequence."""
    ids = torch.tensor([*rollout.prompt.token_ids, *rollout.token_ids.tolist()])
    with torch.no_grad():
        hidden = body(model)(input_ids=ids[None, :-1], use_cache=False).last_hidden_state[0]
        logprobs, _ = token_logprobs(hidden, head_weight(model), ids[1:], 1.0)
    return logprobs[len(rollout.prompt.token_ids) - 1 :].numpy()


def worst(model: Any, rollouts: list[Rollout]) -> float:
    return max(float(np.abs(r.generator_logprobs - recomputed(model, r))[r.loss_mask].max()) for r in rollouts)


@pytest.fixture(params=["fused", "compiled", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The three ways to decode; models whose heads have 32 channels take each of them."""
    if request.param == "compiled" and kernels(torch.float32, 32) is None:
        pytest.skip("no C++ compiler")
    if request.param == "fused":
        monkeypatch.setattr(fused_decode, "kernels", lambda *_: None)
    if request.param == "plain":
        monkeypatch.setattr(generator, "fused_decoder", lambda *_: None)
    return str(request.param)


@pytest.mark.parametrize("config", (COVERED | COMPILED).values(), ids=COVERED | COMPILED)
@pytest.mark.parametrize("slots", [3, 40])
def test_logprobs_are_the_models_own_over_refills_groups_and_moves(config: dict[str, Any], slots: int) -> None:
    model = varied(config)
    assert fused_decoder(model, 30) is not None
    rollouts = rolled_out(model, slots, grouped(10, 4))
    assert len(rollouts) == 40
    assert worst(model, rollouts) < 2e-5


@pytest.mark.skipif(kernels(torch.float32, 32) is None, reason="no C++ compiler")
@pytest.mark.parametrize("config", COMPILED.values(), ids=COMPILED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_kernels_are_used_where_they_agree(
    config: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(self: FusedDecoder, *arguments: Any) -> torch.Tensor:
        return whole(self, *arguments).roll(1, -1)

    made = fused_decoder(varied(config, dtype), 30)
    assert made is not None
    assert made.kernels is not None
    whole = FusedDecoder._decode_compiled
    monkeypatch.setattr(FusedDecoder, "_decode_compiled", careless)
    made = fused_decoder(varied(config, dtype), 30)
    assert made is not None
    assert made.kernels is None


@pytest.mark.parametrize("config", [DENSE, LLAMA, COMPILED["qwen3_compiled"]], ids=["qwen3", "llama", "compiled"])
def test_in_bf16_they_are_as_near_to_the_exact_ones_as_the_models_own(config: dict[str, Any]) -> None:
    model = varied(config, torch.bfloat16)
    assert fused_decoder(model, 30) is not None
    rollouts = rolled_out(model, 5, grouped(6, 4))
    exact = varied(config, torch.bfloat16).float()
    ours = np.concatenate([(r.generator_logprobs - recomputed(exact, r))[r.loss_mask] for r in rollouts])
    its = np.concatenate([(recomputed(model, r) - recomputed(exact, r))[r.loss_mask] for r in rollouts])
    assert np.abs(ours).mean() < 1.1 * np.abs(its).mean()
    assert np.abs(ours).max() < 0.15


@pytest.mark.parametrize("config", [DENSE, LLAMA, COMPILED["qwen3_compiled"]], ids=["qwen3", "llama", "compiled"])
def test_updates_in_flight_give_what_the_plain_forward_gives(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old keys that running rollouts keep, and the new ones of refilled slots, are those of the plain forward."""
    updates = {4: varied(config, seed=5), 5: varied(config, seed=6), 11: varied(config, seed=7)}
    prompts = grouped(8, 4)
    fused = rolled_out(varied(config), 6, prompts, updates, temperature=0.0)
    monkeypatch.setattr(generator, "fused_decoder", lambda *_: None)
    plain = rolled_out(varied(config), 6, prompts, updates, temperature=0.0)
    mixed = 0
    for a, b in zip(fused, plain, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert a.policy_versions.tolist() == b.policy_versions.tolist()
        assert np.allclose(a.generator_logprobs, b.generator_logprobs, atol=2e-5)
        mixed += len(set(a.policy_versions.tolist())) > 1
    assert mixed > 5


@pytest.mark.parametrize(
    "config",
    [
        MOE,
        LLAMA | {"attention_bias": True},
        LLAMA | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        DENSE | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ],
    ids=["moe", "bias", "dynamic_rope", "sliding"],
)
def test_what_is_not_covered_is_left_to_the_model(config: dict[str, Any]) -> None:
    assert fused_decoder(build_model(config), 30) is None


def test_a_decoder_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(FusedDecoder):
        def refold(self) -> None:
            super().refold()
            self._sin = -self._sin

    monkeypatch.setattr(fused_decode, "FusedDecoder", Careless)
    for dtype in (torch.float32, torch.bfloat16):
        assert fused_decoder(varied(DENSE, dtype), 30) is None


def test_what_a_broken_policy_left_in_the_cache_harms_no_later_rollout(path: str) -> None:
    model, broken, mended = (varied(DENSE | {"head_dim": 32}, seed=seed) for seed in (0, 0, 3))
    with torch.no_grad():
        broken.model.layers[0].self_attn.v_proj.weight[0, 0] = torch.nan
        broken.model.layers[1].self_attn.k_proj.weight[0, 0] = torch.inf
    made = TorchGenerator(model, GeneratorSettings(6, 8, LIMITS))
    long, short = (Prompt(tuple(range(6, 6 + n)), str(n), "t") for n in (8, 2))
    for version, weights in enumerate((broken, mended), 1):
        made.update_weights(version, TensorSource({k: v.clone() for k, v in named_tensors(weights).items()}))
        made.submit([(version, short if i % 2 and version == 2 else long) for i in range(6 + 50 * (version - 1))])
        for _ in range(4):
            made.step()
    while not made.idle:
        made.step()
    rollouts = made.poll()
    assert len(rollouts) == 62
    assert np.isnan(np.concatenate([r.generator_logprobs for r in rollouts if r.oldest_version == 1])).any()
    new = [r for r in rollouts if r.oldest_version == 2]
    assert len(new) == 56
    assert worst(mended, new) < 2e-5


@pytest.mark.parametrize("tied", [True, False])
def test_a_bf16_head_is_cast_anew_at_every_update(tied: bool, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DENSE | {"head_dim": 32, "tie_word_embeddings": tied}
    model, other = varied(config, torch.bfloat16), varied(config, torch.bfloat16, seed=5)
    heads = []

    def seen(hidden: torch.Tensor, weight: torch.Tensor, *settings: Any) -> torch.Tensor:
        heads.append(weight)
        return head_logits(hidden, weight, *settings)

    monkeypatch.setattr(generator, "head_logits", seen)
    made = TorchGenerator(model, GeneratorSettings(4, 8, LIMITS))
    published = {k: v.clone() for k, v in named_tensors(other).items()}
    for version, scale in enumerate((None, 1.0, 2.0)):  # the second time the same memory, with other values
        if scale is not None:
            for tensor in published.values():
                tensor.mul_(scale)
            made.update_weights(version, TensorSource(published))
        made.submit(grouped(2, 2))
        made.step()
        made.step()
        assert heads[-1] is heads[-2]
        assert heads[-1].dtype == torch.float32
        assert torch.equal(heads[-1], head_weight(model).float())
        assert scale is None or torch.equal(heads[-1], head_weight(other).float() * scale)


@pytest.mark.parametrize("fused", [True, False])
def test_a_groups_prompt_is_computed_once_for_each_version(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fused:
        monkeypatch.setattr(generator, "fused_decoder", lambda *_: None)
    model = varied(DENSE)
    limits = LengthLimits((0, 0), 8, None, (), (99,))
    made = TorchGenerator(model, GeneratorSettings(4, 8, limits))
    prompt = Prompt((7, 8, 9, 10), "p", "t")
    made.submit([(i, prompt) for i in range(16)])
    while made.tokens_generated < 4 * 16:
        made.step()
    assert made.tokens_prefilled == 3
    made.update_weights(1, TensorSource({k: v.clone() for k, v in named_tensors(varied(DENSE, seed=3)).items()}))
    while not made.idle:
        made.step()
    assert made.tokens_prefilled == 6
    new = [r for r in made.poll() if r.oldest_version == 1]
    assert len(new) == 8
    assert worst(model, new) < 2e-5


def test_prompts_left_in_slots_that_ended_or_moved_are_still_whole_when_copied() -> None:
    model = varied(DENSE)
    made = TorchGenerator(model, GeneratorSettings(20, 8, LIMITS))
    rng = np.random.default_rng(0)
    prompts = [prompt for _, prompt in grouped(12, 1)]
    for wave in range(150):
        made.submit([(wave, prompts[i]) for i in rng.permutation(12)[:1]])
        for _ in range(rng.integers(0, 3)):  # more than one free slot, and then a prompt again
            made.step()
    while not made.idle:
        made.step()
    rollouts = made.poll()
    assert len(rollouts) == 150
    assert made.tokens_prefilled < sum(len(r.prompt.token_ids) - 1 for r in rollouts) / 2
    assert worst(model, rollouts) < 2e-5


def test_no_prompt_is_copied_from_a_slot_that_is_written_in_the_same_round() -> None:
    rng = np.random.default_rng(0)
    filled, holds = FilledPrompts(range(12, 15)), dict[int, tuple[int, ...]]()
    queue = [(int(p),) for p in rng.integers(0, 30, 500).repeat(rng.integers(1, 5, 500))]
    while queue:
        slots = rng.permutation(12)[: rng.integers(1, 13)].tolist()[: len(queue)]
        prompts, queue = queue[: len(slots)], queue[len(slots) :]
        new, copied = filled.assign(slots, prompts, queue[:20])
        holds.update({slot: prompt for prompt, slot in new.items()})
        holds.update({target: holds[source] for source, target in copied})  # all read before any is written
        assert [holds[slot] for slot in slots] == prompts
        if rng.random() < 0.1:
            filled.forget_all()
            holds = {}


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 2.0, -4.0, 1.0, -torch.inf]]).expand(40_000, -1)
    tokens, logprobs = sample(logits, torch.Generator().manual_seed(0))
    expected = torch.softmax(logits[0], -1)
    counts = torch.bincount(tokens, minlength=6)
    assert counts[expected == 0].sum() == 0
    spread = (40_000 * expected * (1 - expected)).sqrt()
    assert ((counts - 40_000 * expected).abs() <= 4 * spread).all()
    assert torch.allclose(logprobs, expected[tokens].log())
