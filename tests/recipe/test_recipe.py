"""The settings: what is refused and why, presets and their sources, leave-one-out."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, asdict, fields

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.recipe import PRESETS, Recipe


def test_the_defaults_are_the_papers() -> None:
    """PAPER section 4 and A.3."""
    r = Recipe.preset("scalerl")
    assert r == Recipe()
    assert (r.schedule, r.max_staleness, r.loss, r.clip, r.kl_coefficient) == ("pipeline", 8, "cispo", (None, 5.0), 0)
    assert (r.head_precision, r.aggregation, r.advantage_normalization) == ("fp32", "prompt", "batch")
    assert (r.zero_variance, r.curriculum, r.retire_at) == ("filter", "no-positive-resampling", 0.9)
    assert (r.length_control, r.thinking_budget_low, r.thinking_budget_high) == ("interruption", 10_000, 12_000)
    assert (r.prompts_per_step, r.generations, r.batch_size) == (48, 16, 768)
    assert (r.reward_correct, r.reward_wrong, r.temperature) == (1, -1, 1)
    assert (r.learning_rate, r.warmup_steps, r.adam_epsilon, r.weight_decay) == (5e-7, 100, 1e-15, 0.01)
    assert r.prompt_tokens + r.completion_tokens == 16_384
    assert r.interruption_phrase.startswith("Okay, time is up. Let me stop thinking and")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"los": "cispo"}, "los: no such setting of a recipe, the nearest valid one is loss"),
        ({"Learning_Rate": 1}, "Learning_Rate: no such .* is learning_rate"),
        ({"lr": 1e-6}, "lr: no such .* is learning_rate"),
        ({"loss": "CISP0"}, "loss = 'CISP0': not known, the nearest valid one is 'cispo'"),
        ({"loss": None}, "loss = None: it is empty; give one of cispo"),
        ({"aggregation": "tokens"}, "nearest valid one is 'token'"),
        ({"schedule": "pipeline-4"}, "schedule = 'pipeline-4': write schedule = 'pipeline' and max_staleness = 4"),
        ({"schedule": "ppo-off-policy-8"}, "write schedule = 'ppo-off-policy' and max_staleness = 8"),
        ({"schedule": "PipelineRL"}, "nearest valid one is 'pipeline'"),
        ({"max_staleness": 0}, "max_staleness = 0: pipeline runs ahead by at least 1 step"),
        ({"max_staleness": -1}, "it must be at least 0"),
        ({"max_staleness": 2.5}, "max_staleness = 2.5: a whole number is needed, the nearest is 2"),
        ({"max_staleness": True}, "max_staleness = True: a whole number is needed$"),
        ({"learning_rate": "fast"}, "learning_rate = 'fast': a number is needed"),
        ({"learning_rate": float("nan")}, "a number is needed, and a finite one"),
        ({"learning_rate": 0}, "learning_rate = 0.0: it must be from a little above 0 to 1"),
        ({"weight_decay": None}, "weight_decay = None: it is empty; give a number, or leave it out"),
        ({"clip_low": 0.2}, "clip_low = 0.2: cispo has an upper bound only"),
        ({"loss": "grpo", "clip_low": 1.5}, "grpo needs a distance from 1 between 0 and 1, e.g. 0.2"),
        ({"generations": 1}, "generations = 1: it must be at least 2, since the only answer"),
        ({"retire_at": 90}, "retire_at = 90.0: it must be from a little above 0 to 1"),
        ({"reward_wrong": 1}, "reward_correct = 1: it must be above reward_wrong = 1"),
        ({"thinking_budget_low": 13_000}, "thinking_budget_high = 12000: it must be at least thinking_budget_low"),
        ({"thinking_budget_high": 13_000}, "completion_tokens = 14336: .* set it to more than 15048"),
        ({"interruption_phrase": "Stop."}, "it must hold thinking_end = '</think>'"),
        ({"interruption_phrase": 3}, "interruption_phrase = 3: a text is needed"),
        ({"length_control": "penalty", "penalty_cache": 20_000}, "at most penalty_longest = 14336"),
        ({"temperature": 0}, "temperature = 0: training samples from the policy"),
        ({"adam_beta2": 1}, "adam_beta2 = 1.0: it must be from 0 to a little below 1"),
        ({"gradient_clipping": 0}, "gradient_clipping = 0.0: it must be"),
        ({"truncated": "drop"}, "truncated = 'drop': not known; give one of score, mask"),
        ({"interruption_phrase": ""}, "interruption_phrase = '': it is empty"),
        ({"generations": 10**9}, "generations = 1000000000: it must be at most 10,000,000"),
    ],
)  # fmt: skip
def test_a_bad_setting_is_refused_in_one_line_with_the_mend(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        Recipe().with_(**changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("changes", [{"top_p": 0.95}, {"top_k": 20}, {"top_k": -1}, {"min_p": 0.05}])
def test_trap_2_sampling_that_renormalises_is_refused(changes: dict[str, float]) -> None:
    (name,) = changes
    with pytest.raises(InputError, match=rf"^{name} = .*every ratio would be wrong; the only valid one"):
        Recipe().with_(**changes)
    assert Recipe(top_p=1, top_k=0, min_p=0) == Recipe()


@pytest.mark.parametrize("name", ["generator_head_precision", "trainer_head_precision"])
def test_trap_4_the_heads_precision_cannot_be_set_on_one_side(name: str) -> None:
    with pytest.raises(InputError, match="head_precision, which is one setting for generator and trainer"):
        Recipe().with_(**{name: "fp32"})
    assert [f.name for f in fields(Recipe) if "head" in f.name] == ["head_precision"]


def test_trap_15_master_weights_are_fp32_and_nothing_else() -> None:
    with pytest.raises(
        InputError, match=r"master_weights = 'bf16': .*rounds to nothing in bf16; the only valid one is"
    ):
        Recipe().with_(master_weights="bf16")


def test_trap_15_a_step_of_the_papers_size_vanishes_in_bf16() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.full((4,), 0.02)
    recipe = Recipe()
    moved = {}
    for dtype in (torch.bfloat16, torch.float32):
        parameter = torch.nn.Parameter(weight.to(dtype))
        start = parameter.detach().clone()
        betas = (recipe.adam_beta1, recipe.adam_beta2)
        adam = torch.optim.AdamW(
            [parameter], lr=recipe.learning_rate, betas=betas, eps=recipe.adam_epsilon, weight_decay=recipe.weight_decay
        )
        for _ in range(10):
            parameter.grad = torch.ones_like(parameter)
            adam.step()
        moved[dtype] = (parameter.detach() - start).abs().max().item()
    assert moved[torch.bfloat16] == 0
    assert moved[torch.float32] == pytest.approx(10 * recipe.learning_rate, rel=1e-2)


def test_another_loss_brings_its_own_clips() -> None:
    recipe = Recipe(clip_high=4.0)
    assert recipe.with_(loss="cispo").clip == (None, 4.0)
    assert recipe.with_(loss="dapo").clip == (0.2, 0.26)
    assert recipe.with_(loss="grpo").clip == (0.2, 0.2)
    assert recipe.with_(loss="gspo").clip == (3e-3, 4e-3)
    assert recipe.with_(loss="dapo", clip_high=0.28).clip == (0.2, 0.28)
    assert recipe.with_(loss="dapo").with_(loss="cispo").clip == (None, 5.0)


def test_numbers_may_come_as_text() -> None:
    read = yaml.safe_load("learning_rate: 5e-7\nmax_staleness: 4.0\ngradient_clipping: none\nclip_high: '8'")
    assert isinstance(read["learning_rate"], str)  # which is why
    recipe = Recipe.from_dict(read)
    assert recipe == Recipe(max_staleness=4, gradient_clipping=None, clip_high=8.0)
    assert isinstance(recipe.max_staleness, int)


@pytest.mark.parametrize("name", PRESETS)
def test_a_recipe_survives_json_and_yaml(name: str) -> None:
    recipe = Recipe.preset(name)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert Recipe.from_dict(yaml.safe_load(yaml.safe_dump(recipe.to_dict()))) == recipe
    assert hash(Recipe.preset(name)) == hash(recipe)


@given(
    low=st.integers(1, 50),
    more=st.integers(0, 50),
    k=st.integers(1, 64),
    lr=st.floats(1e-9, 1.0),
    loss=st.sampled_from(["cispo", "grpo", "dapo", "gspo"]),
)
def test_valid_settings_come_back_as_they_were(low, more, k, lr, loss) -> None:
    recipe = Recipe(
        thinking_budget_low=low, thinking_budget_high=low + more, max_staleness=k, learning_rate=lr, loss=loss
    )
    assert (recipe.thinking_budget_high, recipe.max_staleness, recipe.learning_rate) == (low + more, k, lr)
    assert Recipe.from_dict(recipe.to_dict()) == recipe


def test_a_recipe_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Recipe().loss = "dapo"  # type: ignore[misc]


def test_presets_have_a_source_for_every_setting() -> None:
    assert list(PRESETS) == ["scalerl", "baseline", "grpo-deepseek", "dapo-qwen2.5", "magistral", "minimax-m1"]
    assert PRESETS["scalerl"].sources.keys() == {f.name for f in fields(Recipe)}
    for name, preset in PRESETS.items():
        if name != "scalerl":
            assert preset.sources.keys() == preset.settings.keys()
        changed = {k for k, v in asdict(Recipe.preset(name)).items() if v != getattr(Recipe(), k)}
        assert changed <= preset.settings.keys() | {"clip_low", "clip_high"}
    with pytest.raises(InputError, match=r"preset = 'dapo': not known, the nearest valid one is 'dapo-qwen2\.5'"):
        Recipe.preset("dapo")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("baseline", ("dapo", (0.2, 0.26), "sample", "prompt", "ppo-off-policy", "model", "keep", 768)),
        ("grpo-deepseek", ("grpo", (0.2, 0.2), "sample", "prompt", "ppo-off-policy", "model", "keep", 768)),
        ("dapo-qwen2.5", ("dapo", (0.2, 0.26), "prompt", "prompt", "ppo-off-policy", "model", "filter", 1280)),
        ("magistral", ("dapo", (0.2, 0.26), "prompt", "prompt", "pipeline", "model", "filter", 1280)),
        ("minimax-m1", ("cispo", (None, 5.0), "prompt", "prompt", "ppo-off-policy", "fp32", "filter", 1280)),
    ],
)
def test_presets_are_those_of_the_papers_appendix(name: str, expected: tuple[object, ...]) -> None:
    r = Recipe.preset(name)
    found = (r.loss, r.clip, r.aggregation, r.advantage_normalization, r.schedule, r.head_precision, r.zero_variance)
    assert (*found, r.batch_size) == expected
    assert (r.max_staleness, r.kl_coefficient, r.curriculum) == (8, 0, "uniform")


def test_leave_one_out_turns_back_one_ingredient_each() -> None:
    base = Recipe.preset("scalerl")
    arms = base.leave_one_out()
    changed = {name: {k for k, v in asdict(arm).items() if v != getattr(base, k)} for name, arm in arms.items()}
    assert changed == {
        "loo-plan": {"advantage_normalization"},
        "loo-lp": {"length_control"},
        "loo-batch": {"zero_variance"},
        "loo-8op": {"schedule"},
        "loo-fp32": {"head_precision"},
        "loo-savg": {"aggregation"},
        "loo-dapo": {"loss", "clip_low", "clip_high"},
    }
    assert "loo-dapo" not in Recipe.preset("baseline").leave_one_out()


def test_settings_load_no_torch() -> None:
    code = (
        "import sys; from scalerl.recipe import Curriculum, Recipe, make_batch;"
        "make_batch([], Recipe(), 0); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
