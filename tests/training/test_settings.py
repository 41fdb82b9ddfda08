"""Settings: later places win, everything is resolved, and each refusal names its place and the nearest valid one."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.training.resolve import read, resolve, small
from scalerl.training.settings import Settings
from scalerl.training.stop_when import StopWhen


def test_later_places_win(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("preset: dapo-qwen2.5\nsteps: 7\nseed: 3\nrecipe:\n  generations: 5\n  learning_rate: 5e-7\n")
    found = resolve(file, words=["steps=9", "recipe.generations=6"])
    assert (found.steps, found.seed, found.recipe.generations) == (9, 3, 6)
    assert found.recipe.loss == "dapo"
    assert found.recipe.learning_rate == 5e-7  # YAML reads it as text
    assert resolve(file, preset="magistral").recipe.schedule == "pipeline"


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    found = resolve(preset="minimax-m1", words=["task.name=arithmetic", "task.level=easy", "engines.slots=3"], steps=4)
    found.write(tmp_path)
    assert read(tmp_path) == found
    assert "auto" not in {found.engines.launch}


def test_the_small_model_has_its_own_sizes_and_the_presets_algorithm() -> None:
    for preset in ("scalerl", "dapo-qwen2.5"):
        found = resolve(preset=preset)
        assert {k: getattr(found.recipe, k) for k in small(6)["recipe"]} == small(6)["recipe"]
    assert found.recipe.loss == "dapo"
    large = resolve(words=["model.path=m", "preset=dapo-qwen2.5"])
    assert (large.recipe.prompts_per_step, large.recipe.learning_rate, large.engines.slots) == (80, 5e-7, 64)
    assert resolve(preset="dapo-qwen2.5", words=["recipe.loss=cispo"]).recipe.clip == (None, 5.0)


def test_lockstep_is_inline_and_measures_nothing() -> None:
    found = resolve(words=["recipe.schedule=lockstep"])
    assert (found.engines.launch, found.engines.compute, found.engines.verify_threads) == ("inline", "fp32", 0)
    assert resolve().engines.launch == "process"


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: {path: weights}\ntask: {name: file, path: p.jsonl}\n")
    found = resolve(tmp_path / "run.yaml")
    assert found.model.path == str(tmp_path.resolve() / "weights")
    assert found.folder == str(tmp_path.resolve())


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("stepz: 3\n", 1, ["stepz", "the nearest is steps"]),
        ("steps: 3\nrecipe:\n  lossy: dapo\n", 3, ["recipe.lossy", "recipe.loss"]),
        ("recipe:\n  loss: dappo\n", 2, ["recipe.loss = 'dappo'", "'dapo'"]),
        ("recipe:\n  temperature: 0\n", 2, ["recipe.temperature = 0", "above 0"]),
        ("recipe:\n  top_p: 0.9\n", 2, ["recipe.top_p", "only valid one in training is 1"]),
        ("engines:\n  slots: many\n", 2, ["engines.slots = 'many'", "number"]),
        ("engines:\n  slots: 2.5\n", 2, ["the nearest is 2"]),
        ("engines: 3\n", 1, ["engines holds settings of its own", "engines.launch"]),
        ("seed: 1\nseed: 2\n", 2, ["seed", "twice"]),
        ("seed: [1\n", 2, ["no YAML"]),
        ("preset: scalrl\n", 1, ["'scalerl'"]),
        ("model:\n  path: a\n  config: {model_type: qwen3}\n", 3, ["one origin"]),
        ("recipe: {schedule: lockstep}\nengines: {launch: process}\n", 2, ["engines.launch", "inline"]),
        ("forecast:\n  stop_when: gain_hi < 0.01 at 2x\n", 2, ["forecast.stop_when", "'gain_high'"]),
        ("engines:\n  capacity: 5\n", 2, ["engines.capacity = 5", "the nearest valid is 32"]),
        ("task: 3\n", 1, ["task = 3", "give a name"]),
        ("steps: 3\nseed: 18446744073709551616\n", 2, ["seed = 18446744073709551616", "at most 2^63 - 1"]),
        (
            "model:\n  config: {model_type: qwen3}\n  seed: 9223372036854775808\n",
            3,
            ["model.seed = 9223372036854775808"],
        ),
        ("seed: 1" + 400 * "0", 1, ["seed = 1000"]),
        (
            "model:\n  config: {model_type: qwen3, hidden_size: -3}\n",
            2,
            ["model.config: hidden_size = -3", "at least 1"],
        ),
        ("evaluation:\n  samples: 0\n", 2, ["evaluation.samples = 0", "at least 1"]),
    ],
)
def test_a_refusal_names_the_line_and_the_nearest(tmp_path: Path, text: str, line: int, words: list[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refusal:
        resolve(file)
    message = str(refusal.value)
    assert message.startswith(f"{file}:{line}: ")
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize("word", ["recipe.los=3", "steps=x", "steps", "=3", "recipe..loss=x", "steps=[1"])
def test_a_refused_word_is_named(word: str) -> None:
    with pytest.raises(InputError, match="--set " + word.replace(".", r"\.").replace("[", r"\[")):
        resolve(words=[word])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml: cannot be read"):
        resolve(tmp_path / "nowhere.yaml")
    with pytest.raises(InputError, match=r"no config\.yaml"):
        read(tmp_path)


def test_a_condition_is_read_and_holds() -> None:
    condition = StopWhen.parse("gain_high <= 0.01 at 2x")
    row = type("Row", (), {"gain_high": 0.01})
    assert condition.holds(row)
    assert not StopWhen.parse("gain_high < 0.01 at 2x").holds(row)
    assert str(condition) == "gain_high <= 0.01 at 2x"
    for wrong in (
        "gain_high < 0.01",
        "gain_high < x at 2x",
        "gain_high < 1 at 0.5x",
        "gain_high < 1 at 3",
        "A < 1 at 2x",
    ):
        with pytest.raises(InputError, match=r"^stop_when = "):
            StopWhen.parse(wrong)


def test_a_part_of_a_task_is_of_the_default_one_and_a_name_can_be_given_parts(tmp_path: Path) -> None:
    assert resolve(words=["task.level=easy"]).task == {"name": "arithmetic", "level": "easy"}
    (tmp_path / "run.yaml").write_text("task: arithmetic\n")
    assert resolve(tmp_path / "run.yaml", words=["task.level=easy"]).task == {"name": "arithmetic", "level": "easy"}


def test_defaults_are_a_valid_run() -> None:
    assert isinstance(resolve(), Settings)
