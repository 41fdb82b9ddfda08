"""The generator: what it reports is what the model says, whatever shares its slots. TRAPS 1, 3, 17-19, 21, 22."""

from typing import Any

import numpy as np
import pytest
import torch

from scalerl.engines.generator import GeneratorSettings, TorchGenerator
from scalerl.engines.head import token_logprobs
from scalerl.engines.length_control import LengthLimits
from scalerl.engines.model import body, build_model, head_weight, named_tensors
from scalerl.errors import InputError
from scalerl.types import Prompt, Rollout

END, CLOSE, PHRASE = 1, 3, (4, 5, 3)
QWEN = {
    "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
    "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 24, "max_position_embeddings": 128,
    "tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": END,
}  # fmt: skip
MOE = {**QWEN, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SLIDING = {**QWEN, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
THINK = LengthLimits(thinking=(4, 9), answer=6, end_of_thinking=CLOSE, phrase=PHRASE, end_tokens=(END, 2))
PLAIN = LengthLimits(thinking=(0, 0), answer=12, end_of_thinking=None, phrase=(), end_tokens=(END,))


def prompts(n: int, seed: int = 0) -> list[tuple[int, Prompt]]:
    rng = np.random.default_rng(seed)
    return [(i, Prompt(tuple(rng.integers(6, 24, rng.integers(1, 9)).tolist()), f"p{i}", "t")) for i in range(n)]


def run(model: Any, limits: LengthLimits, n: int = 20, slots: int = 6, **settings: Any) -> list[Rollout]:
    generator = TorchGenerator(model, GeneratorSettings(slots, 8, limits, **settings))
    generator.submit(prompts(n))
    while not generator.idle:
        generator.step()
    return sorted(generator.poll(), key=lambda r: r.group_id)


def recomputed(model: Any, rollout: Rollout, temperature: float = 1.0) -> np.ndarray:
    """Log-probabilities of a rollout's tokens by one plain forward over its own sequence."""
    ids = torch.tensor([*rollout.prompt.token_ids, *rollout.token_ids.tolist()])
    with torch.no_grad():
        hidden = body(model)(input_ids=ids[None, :-1], use_cache=False).last_hidden_state[0]
        logprobs, _ = token_logprobs(hidden, head_weight(model), ids[1:], temperature)
    return logprobs[len(rollout.prompt.token_ids) - 1 :].numpy()


@pytest.mark.parametrize("config", [QWEN, MOE, SLIDING, {**QWEN, "tie_word_embeddings": False}], ids=str)
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_logprobs_are_those_of_a_plain_forward_at_the_same_temperature(config: dict, temperature: float) -> None:
    model = build_model(config, seed=1)
    rollouts = run(model, THINK, temperature=temperature)
    assert len(rollouts) == 20
    for rollout in rollouts:
        expected = recomputed(model, rollout, temperature)
        mask = rollout.loss_mask
        assert np.allclose(rollout.generator_logprobs[mask], expected[mask], atol=2e-5)


@pytest.mark.parametrize("config", [QWEN, MOE], ids=str)
def test_a_group_that_is_admitted_in_parts_shares_only_what_is_there(config: dict) -> None:
    model = build_model(config, seed=1)
    generator = TorchGenerator(model, GeneratorSettings(6, 8, THINK))
    generator.submit([(i, prompt) for i, prompt in prompts(5, seed=3) for _ in range(9)])
    while not generator.idle:
        generator.step()
    rollouts = generator.poll()
    assert len(rollouts) == 45
    for rollout in rollouts:
        mask = rollout.loss_mask
        assert np.allclose(rollout.generator_logprobs[mask], recomputed(model, rollout)[mask], atol=2e-5)


def test_the_slots_a_rollout_shares_do_not_matter() -> None:
    model = build_model(QWEN, seed=1)
    few, many = (run(model, PLAIN, slots=s, temperature=0.0) for s in (2, 20))
    for a, b in zip(few, many, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()


def test_greedy_equals_transformers_generate() -> None:
    model = build_model(QWEN, seed=2)
    for rollout in run(model, PLAIN, n=6, temperature=0.0):
        ids = torch.tensor([rollout.prompt.token_ids])
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=END
        )
        assert rollout.token_ids.tolist() == expected[0, ids.shape[1] :].tolist()


def test_the_phrase_is_inserted_once_masked_and_followed_by_the_answers_own_budget() -> None:
    rollouts = run(build_model(QWEN, seed=3), THINK, n=60)
    cut = [r for r in rollouts if r.interrupted]
    assert 5 < len(cut) < 60
    for rollout in cut:
        inserted = np.flatnonzero(~rollout.loss_mask)
        assert tuple(rollout.token_ids[inserted]) == PHRASE
        assert (np.diff(inserted) == 1).all()
        assert 4 <= inserted[0] <= 9  # the thinking budget that was drawn
        assert not np.isin(rollout.token_ids[: inserted[0]], (CLOSE, END, 2)).any()
        assert (rollout.generator_logprobs[inserted] == 0).all()
        assert rollout.token_ids.size - inserted[-1] - 1 <= THINK.answer
    assert {int(np.flatnonzero(~r.loss_mask)[0]) for r in cut} == set(range(4, 10))  # every budget is drawn


def test_who_ends_or_closes_the_thinking_by_itself_is_not_interrupted() -> None:
    rollouts = [r for r in run(build_model(QWEN, seed=3), THINK, n=80) if not r.interrupted]
    closed = [r for r in rollouts if CLOSE in r.token_ids]
    ended = [r for r in rollouts if CLOSE not in r.token_ids]
    assert closed
    assert ended
    for rollout in rollouts:
        assert rollout.loss_mask.all()
    for rollout in ended:
        assert rollout.finish_reason == "stop"
        assert rollout.token_ids[-1] in (END, 2)
    for rollout in closed:
        answer = rollout.token_ids.size - 1 - int(np.argmax(rollout.token_ids == CLOSE))
        assert answer <= THINK.answer
        assert rollout.truncated == (rollout.finish_reason == "length")
        if rollout.truncated:
            assert answer == THINK.answer
            assert rollout.token_ids[-1] not in (END, 2)


def test_an_end_token_at_the_limit_is_a_stop_not_a_truncation() -> None:
    limits = LengthLimits((0, 0), 1, None, (), tuple(range(24)))
    for rollout in run(build_model(QWEN), limits):
        assert rollout.token_ids.size == 1
        assert rollout.finish_reason == "stop"


def other_weights(model: Any, seed: int) -> list[tuple[str, torch.Tensor]]:
    return list(named_tensors(build_model(QWEN, seed=seed)).items())


class Source(list[tuple[str, torch.Tensor]]):
    """A list of tensors as a WeightSource."""

    def metadata(self) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in self]


def test_running_rollouts_keep_their_cache_over_an_update_and_new_ones_see_nothing_of_it() -> None:
    model = build_model(QWEN, seed=1)
    limits = LengthLimits((0, 0), 12, None, (), (99,))  # nothing ends early
    generator = TorchGenerator(model, GeneratorSettings(4, 8, limits))
    generator.submit(prompts(8))
    for _ in range(5):
        generator.step()
    generator.update_weights(1, Source(other_weights(model, 7)))
    while not generator.idle:
        generator.step()
    rollouts = sorted(generator.poll(), key=lambda r: r.group_id)
    old, new = rollouts[:4], rollouts[4:]
    for rollout in old:
        assert rollout.policy_versions.tolist() == [0] * 5 + [1] * 7
        assert rollout.oldest_version == 0
        # The old cache is kept, so the tail is neither of the new policy alone ...
        assert not np.allclose(rollout.generator_logprobs[5:], recomputed(model, rollout)[5:], atol=1e-3)
        # ... and the head is exactly of the old one.
        before = build_model(QWEN, seed=1)
        assert np.allclose(rollout.generator_logprobs[:5], recomputed(before, rollout)[:5], atol=2e-5)
    for rollout in new:
        assert set(rollout.policy_versions.tolist()) == {1}
        assert np.allclose(rollout.generator_logprobs, recomputed(model, rollout), atol=2e-5)


def test_of_several_waiting_updates_the_newest_counts_and_versions_never_decrease() -> None:
    model = build_model(QWEN, seed=1)
    generator = TorchGenerator(model, GeneratorSettings(4, 8, PLAIN))
    generator.submit(prompts(40))
    version = 0
    while not generator.idle:
        generator.step()
        for _ in range(2):
            version += 1
            generator.update_weights(version, Source(other_weights(model, version % 5)))
    for rollout in generator.poll():
        assert (np.diff(rollout.policy_versions) >= 0).all()
        assert (rollout.policy_versions % 2 == 0).all()


def test_the_same_seed_gives_the_same_rollouts() -> None:
    model = build_model(QWEN, seed=1)
    a, b, c = (run(model, THINK, seed=s) for s in (5, 5, 6))
    assert [r.token_ids.tolist() for r in a] == [r.token_ids.tolist() for r in b]
    assert [r.token_ids.tolist() for r in a] != [r.token_ids.tolist() for r in c]


def test_reseeding_repeats_what_a_fresh_generator_draws() -> None:
    model = build_model(QWEN, seed=1)
    generator = TorchGenerator(model, GeneratorSettings(6, 8, THINK, seed=5))
    drawn = []
    for _ in range(2):
        generator.reseed(9)
        generator.submit(prompts(6))
        while not generator.idle:
            generator.step()
        drawn.append([r.token_ids.tolist() for r in sorted(generator.poll(), key=lambda r: r.group_id)])
    assert drawn[0] == drawn[1]


def test_a_prompt_that_does_not_fit_is_refused_by_name() -> None:
    generator = TorchGenerator(build_model(QWEN), GeneratorSettings(4, 8, PLAIN))
    with pytest.raises(InputError, match="has 9 tokens; the generator takes 1 to 8"):
        generator.submit([(0, Prompt(tuple(range(9)), "long", "t"))])
