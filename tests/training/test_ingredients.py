"""What the metrics say of the recipe: sums over steps by hand."""

from typing import Any

from scalerl.recipe.recipe import Recipe
from scalerl.training.ingredients import ingredients


def step(**changes: Any) -> dict[str, Any]:
    row = {
        "kind": "train", "staleness_histogram": {"0": 4}, "versions_per_rollout": 1.0, "ratio_max": 1.5,
        "ratio_at_bound": 0.0, "tokens": 100.0, "mismatch_kl": 0.01, "trained_prompts": 2.0, "effective_batch": 4.0,
        "advantage_std": 1.0, "interrupted_share": 0.0, "truncation_rate": 0.0, "prompts_all_correct": 1.0,
        "prompts_all_wrong": 1.0, "dropped_prompts": 2.0, "prompts": 4.0, "prompts_retired": 0, "prompts_total": 10,
    }  # fmt: skip
    return row | changes


def test_the_metrics_of_two_steps_are_put_together() -> None:
    second = step(
        staleness_histogram={"3": 12}, versions_per_rollout=3.0, ratio_max=7.0, ratio_at_bound=0.25, tokens=300.0,
        mismatch_kl=0.03, interrupted_share=0.5, dropped_prompts=1.0, prompts_retired=7,
    )  # fmt: skip
    seen = {i.name: (i.setting, i.seen) for i in ingredients(Recipe(), [step(), {"kind": "eval"}, second])}
    assert seen["off-policy schedule"] == (
        "pipeline-8", "staleness 2.25 steps on average, 3 at most (0: 25 %, 3: 75 %)",
    )  # fmt: skip
    assert seen["in-flight updates"] == ("on", "2.00 policy versions a rollout on average")
    assert seen["loss"] == ("cispo, bound 5", "ratios up to 7; 75 of 400 tokens at the bound")
    assert seen["length control"][1] == "25 % of the rollouts interrupted, 0 % truncated"
    assert seen["zero-variance prompts"] == ("filter", "3 of 8 dropped; 4 were all right or all wrong")
    assert seen["curriculum"][1] == "7 of 10 prompts retired"
    assert "0.02 nats" in seen["precision of the head"][1]


def test_another_recipe_shows_as_such_and_no_step_shows_nothing() -> None:
    settings = {i.name: i.setting for i in ingredients(Recipe(schedule="ppo-off-policy", loss="dapo"), [step()])}
    assert (settings["off-policy schedule"], settings["in-flight updates"]) == ("ppo-off-policy-8", "off")
    assert ingredients(Recipe(), [{"kind": "eval"}]) == []
    nothing = step(tokens=0.0)
    del nothing["ratio_max"], nothing["ratio_at_bound"]  # as the trainer leaves them out
    seen = {i.name: i.seen for i in ingredients(Recipe(), [nothing])}
    assert seen["loss"].startswith("no token was trained")
