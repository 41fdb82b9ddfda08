"""Wherever engines run and whoever generates, the same settings learn the same: lockstep curves within their noise."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

pytest.importorskip("ray")

import torch
from small_runs import large_digits, rows, settings

from scalerl.training.train import train

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
SEEDS = range(4)
RUN = [
    "steps=24", "recipe.schedule=lockstep", "recipe.prompts_per_step=8", "recipe.generations=8", "recipe.retire_at=1",
    "recipe.warmup_steps=1", "model.warm_start.head_dim=32", "engines.slots=64", "evaluation.every=0",
    "checkpoints.every=100",
]  # fmt: skip


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> str:
    return large_digits(tmp_path_factory.mktemp("task"))


def curve(task: str, directory: Path, *words: str) -> list[float]:
    """Pass rate in training: means over the thirds of a run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        done = train(settings(*RUN, task, *words), directory)
    finally:
        torch.set_num_threads(threads)
    trained = rows(directory, "train")
    assert done.outcome.step == 24
    assert {row["staleness_max"] for row in trained} == {0}
    rates = [row["train_pass_rate"] for row in trained]
    return [statistics.fmean(rates[begin : begin + 8]) for begin in (0, 8, 16)]


@pytest.fixture(scope="module")
def reference(task: str, tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    """One process, several seeds."""
    return [curve(task, tmp_path_factory.mktemp("inline") / "run", f"seed={seed}") for seed in SEEDS]


@pytest.mark.parametrize(
    "words",
    [
        ("engines.launch=process",),
        ("engines.launch=process", "engines.trainers=2"),
        ("engines.launch=ray", "engines.generators=2"),
        ("engines.launch=process", "engines.generator=vllm", "engines.vllm.kv_cache_gib=0.25"),
    ],
    ids=["processes", "two ranks", "Ray", "vLLM"],
)
def test_the_curve_is_that_of_one_process(
    task: str, reference: list[list[float]], tmp_path: Path, words: tuple[str, ...]
) -> None:
    if "engines.generator=vllm" in words:
        pytest.importorskip("vllm")
    found = curve(task, tmp_path / "run", *words)
    for third, rates in zip(found, zip(*reference, strict=True), strict=True):
        # Of one more seed about the mean of four, with a floor for a spread that four have underestimated.
        noise = max(statistics.stdev(rates), 0.03) * (1 + 1 / len(SEEDS)) ** 0.5
        assert abs(third - statistics.fmean(rates)) < 4 * noise, (found, reference)
    assert found[2] - found[0] > 0.15  # it is a curve, and no line
