"""Settings: later places win, everything is resolved, and each refusal names its place and the nearest valid one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

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
    assert found.engines.launch != "auto"


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
    assert resolve(words=["recipe.schedule=lockstep"], launch="ray").engines.launch == "ray"


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
        ("engines:\n  slots: 5000\n", 2, ["engines.slots = 5000: at most 4,608 rollouts are ever under way"]),
        ("engines:\n  slots: 2.5\n", 2, ["the nearest is 2"]),
        ("engines: 3\n", 1, ["engines holds settings of its own", "engines.launch"]),
        ("seed: 1\nseed: 2\n", 2, ["seed", "twice"]),
        ("seed: [1\n", 2, ["no YAML"]),
        ("preset: scalrl\n", 1, ["'scalerl'"]),
        ("model:\n  path: a\n  config: {model_type: qwen3}\n", 3, ["one origin"]),
        ("forecast:\n  stop_when: gain_hi < 0.01 at 2x\n", 2, ["forecast.stop_when", "'gain_high'"]),
        ("engines:\n  capacity: 5\n", 2, ["engines.capacity = 5", "the nearest valid is 32"]),
        ("task: 3\n", 1, ["task = 3", "a name, a mapping"]),
        ("task:\n  name: file\n  path: x\n  held_out: much\n", 4, ["task.held_out = 'much': a number is needed"]),
        ("task:\n  - name: arithmetic\n  - name: arithmetic\n    weight: no\n", 4, ["task.1.weight = False"]),
        ("task:\n  - {name: arithmetic}\n  - {name: arithmetic}\n", 3, ["task.1: two tasks are called"]),
        (
            "task: {name: file, path: x, verifier_options: {size: 1}}\n",
            1,
            ["task.verifier_options.size", "ignore_case"],
        ),
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
        ("steps:\n", 1, ["steps = None: it is empty; give a whole number"]),
        ("steps: yes\n", 1, ["steps = True: a whole number is needed"]),
        ("steps: .nan\n", 1, ["a whole number is needed, and a finite one"]),
        ("recipe:\n  loss: 0\n", 2, ["not known; give one of cispo, grpo, dapo, gspo"]),
        ("recipe:\n  interruption_phrase: ''\n", 2, ["recipe.interruption_phrase = '': it is empty"]),
        ("recipe:\n  generations: 1\n", 2, ["at least 2, since the only answer of a group is its own mean"]),
        ("model: {model_type:qwen3}\n", 1, ["write a space behind the colon: model_type: qwen3"]),
        ("model:\n  model_type: qwen3\n", 2, ["belongs to a Hugging Face config: model.config.model_type"]),
        ("model:\n  warm_start: {corruption: 1.5}\n", 2, ["model.warm_start.corruption = 1.5", "at most 1"]),
        ("model:\n  warm_start: {level: esy}\n", 2, ["model.warm_start.level = 'esy'", "'easy'"]),
        ("model:\n  warm_start: {learning_rate: .nan}\n", 2, ["model.warm_start.learning_rate = nan"]),
        ("engines:\n  slots: 1.0e+12\n", 2, ["engines.slots = 1000000000000: it must be at most 10,000,000"]),
        ("steps: 3\nfolder: nowhere\n", 2, ["/nowhere': no such folder"]),
        ("recipe:\n  head_precision: model\nengines: {compute: bf16}\n", 2, ["'bf16'", "'fp32'", "set both alike"]),
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


def leaves(cls: type, prefix: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(cls).items():
        inner = next((o for o in (hint, *get_args(hint)) if is_dataclass(o)), None)
        yield from [f"{prefix}{name}"] if inner is None else leaves(inner, f"{prefix}{name}.")  # type: ignore[arg-type]


@pytest.mark.parametrize("key", list(leaves(Settings)))
def test_whatever_a_setting_is_given_it_is_taken_or_refused_by_name(key: str) -> None:
    for value in ("", "''", "true", "-1", "0", "1e300", "9" * 400, ".nan", "-.inf", "xyz", "[1]", "{a: 1}", "1.5"):
        said = refusal(f"{key}={value}")
        parts = key.split(".")
        named = {".".join(parts[i:]) for i in range(len(parts))}
        assert said is None or any(name in said.removeprefix(f"--set {key}={value}: ") for name in named), said
        assert said is None or "\n" not in said


def refusal(word: str) -> str | None:
    """What is said against it, None where it is taken."""
    try:
        resolve(words=[word])
    except InputError as error:
        return str(error)
    return None


def test_the_head_has_one_precision_on_both_sides() -> None:
    for dtype in ("fp32", "bf16"):
        found = resolve(words=["recipe.head_precision=model", f"engines.generator_dtype={dtype}"])
        assert found.engines.compute == dtype  # auto might measure the other as faster
    assert resolve().engines.compute == "auto"


def test_more_threads_than_cores_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert resolve(words=["engines.trainer_threads=1000"]).engines.trainer_threads == 1000
    assert "engines.trainer_threads = 1000: this machine has" in caplog.text


def test_a_folder_begins_at_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "run.yaml").write_text("folder: data\n")
    assert resolve(tmp_path / "run.yaml").folder == str((tmp_path / "data").resolve())
    monkeypatch.chdir(tmp_path / "data")
    assert resolve(tmp_path / "run.yaml", words=["folder=."]).folder == str((tmp_path / "data").resolve())
    found = resolve(tmp_path / "run.yaml")
    found.write(tmp_path)
    (tmp_path / "data").rmdir()
    assert read(tmp_path) == found  # what has gone since is the task's to miss


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
        "gain < nan at 2x",
        "gain > -inf at 2x",
        "gain < 1e999 at 2x",
    ):
        with pytest.raises(InputError, match=r"^stop_when = "):
            StopWhen.parse(wrong)


def test_a_part_of_a_task_is_of_the_default_one_and_a_name_can_be_given_parts(tmp_path: Path) -> None:
    assert resolve(words=["task.level=easy"]).task == {"name": "arithmetic", "level": "easy"}
    (tmp_path / "run.yaml").write_text("task: arithmetic\n")
    assert resolve(tmp_path / "run.yaml", words=["task.level=easy"]).task == {"name": "arithmetic", "level": "easy"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("steps: 3\nrecipe: &r\n  loss: *r\n", ":3: an alias holds itself"),
        ("task: &t [*t, *t]\n", ":1: an alias holds itself"),
        ("task: " + "[" * 5000, ": more than 50 levels are nested"),
        ("task: " + "[" * 60 + "]" * 60, ":1: an alias holds itself, or more than 50 levels are nested"),
    ],
)
def test_yaml_without_end_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=rf"run\.yaml{why}"):
        resolve(file)
    if text.startswith("task"):
        with pytest.raises(InputError, match=r"^--set task=.* levels are nested"):
            resolve(words=[text.strip().replace(": ", "=", 1)])


def test_an_alias_of_another_part_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("task:\n  - &t {name: arithmetic, label: a}\n  - {<<: *t, label: b}\n")
    assert [part["label"] for part in resolve(tmp_path / "run.yaml").task] == ["a", "b"]


def test_defaults_are_a_valid_run() -> None:
    assert isinstance(resolve(), Settings)
