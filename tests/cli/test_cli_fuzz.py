"""Whatever the file holds: an answer, or one line and exit code 2; never a traceback."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalerl.cli.app import application

FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
ENDINGS = st.sampled_from(["log", "csv", "jsonl", "json", "tsv", "parquet", "wandb"])
STEPS = range(1, 15)
VALID = [
    "\n".join(["step,val/acc,time", *(f"{s * 10},{0.3 + 0.02 * s:.3f},{s * 60}" for s in STEPS)]),
    "\n".join(["run\tstep\tacc", *(f"{run}\t{s}\t{0.2 + 0.03 * s:.3f}" for run in "ab" for s in STEPS)]),
    "\n".join(json.dumps({"step": s, "eval/pass_rate": 0.1 + 0.05 * s, "loss": 1 / s}) for s in STEPS),
    json.dumps({"log_history": [{"step": s, "eval_accuracy": 0.1 + 0.05 * s} for s in STEPS]}),
    json.dumps([{"global_step": s, "reward": 0.1 + 0.05 * s} for s in STEPS]),
    "\n".join(f"{{'loss': '0.1', 'reward': '{0.1 + 0.05 * s:.3f}', 'epoch': '{s / 10}'}}" for s in STEPS),
    "\n".join(f"(main pid=1) step:{s} - val/acc:{0.1 + 0.05 * s:.3f} - lr:1e-6" for s in STEPS),
    "\n".join(f"[tag]   {s}/100 | loss=0.{s} | reward={0.1 + 0.05 * s:.3f}" for s in STEPS),
    "\n".join(json.dumps({"kind": "eval", "step": s, "task": "t", "pass_rate": 0.05 * s, "trials": 100,
                          "compute": {"device_hours": {"trainer": s, "generator": 2 * s}}}) for s in STEPS),
]  # fmt: skip
NASTY = [
    *(
        "NaN",
        "Infinity",
        "-inf",
        "1e999",
        "1e308",
        "-1",
        "",
        '"',
        "'",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\t",
        "\r\n",
        "\n",
        "\x00",
    ),
    *(
        "\ufeff",
        "step",
        "null",
        "true",
        "1_000",
        "0x10",
        "٣",
        "step:",
        " - ",
        "=",
        "|",
        "/",
        "%",
        "1.5",
        "100%",
        "\x1b[31m",
    ),
    "\ud800",
]
KEYS = [
    "--x",
    "--y",
    "--run",
    "--run-column",
    "--devices",
    "--factor",
    "--trials",
    "--unit",
    "--scale",
    "--at",
    "--budget",
]
KEYS += ["--level", "--threshold", "--from", "--upto", "--target"]
VALUES = ["step", "acc", "a", "b", "0", "1", "8", "1e9", "-3", "2x", "0.5", "auto", "percent", "0:2", "", "nan"]


def check(content: bytes, ending: str, *options: str) -> None:
    """The contract: exit code 0, 2 or 3, no traceback, one line where it is 2, JSON where it is not."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"log.{ending}"
        file.write_bytes(content)
        result = CliRunner().invoke(application, ["forecast", str(file), "--json", *options])
    assert result.exit_code in (0, 2, 3), result.output
    assert "Traceback" not in result.output
    if result.exit_code == 2:
        assert len(result.stderr.splitlines()) == 1
        assert "log." in result.stderr
        assert result.stdout == ""
    else:
        assert json.loads(result.stdout)["schema"] == 1


@FUZZ
@given(st.binary(max_size=400), ENDINGS)
def test_random_bytes(content: bytes, ending: str) -> None:
    check(content, ending)


@FUZZ
@given(st.text(max_size=400), ENDINGS)
def test_random_text(content: str, ending: str) -> None:
    check(content.encode("utf-8", errors="surrogatepass"), ending)


@FUZZ
@given(st.lists(st.sampled_from([*NASTY, "1", "2", "0.5", "acc", "reward", "\n", ","]), max_size=120), ENDINGS)
def test_words_that_logs_are_made_of(words: list[str], ending: str) -> None:
    check("".join(words).encode("utf-8", errors="surrogatepass"), ending)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid log with some of it replaced, inserted, deleted, repeated or cut off."""
    text = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(text) - 1, 0)))
        length = draw(st.integers(0, 12))
        how = draw(st.sampled_from(["replace", "insert", "delete", "repeat", "cut"]))
        piece = draw(st.sampled_from(NASTY))
        if how == "replace":
            text = text[:at] + piece + text[at + length :]
        elif how == "insert":
            text = text[:at] + piece + text[at:]
        elif how == "delete":
            text = text[:at] + text[at + length :]
        elif how == "repeat":
            text = text[:at] + text[max(at - 200, 0) :]
        else:
            text = text[: max(at, len(text) // 2)]
    return text.encode("utf-8", errors="surrogatepass")


@FUZZ
@given(mutated(), ENDINGS)
def test_valid_logs_that_were_damaged(content: bytes, ending: str) -> None:
    check(content, ending)


@settings(FUZZ, max_examples=80)
@given(
    st.sampled_from(VALID),
    st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=3),
)
def test_any_settings(content: str, chosen: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.txt"
        file.write_text(content)
        options = [word for pair in chosen for word in pair]
        result = CliRunner().invoke(application, ["forecast", str(file), "--json", *options])
    assert result.exit_code in (0, 2, 3), result.output
    if result.exit_code == 2:
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("content", VALID)
def test_the_valid_logs_are_valid(content: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.txt"
        file.write_text(content)
        runs = ["--run", "a"] if content.startswith("run\t") else []
        result = CliRunner().invoke(application, ["forecast", str(file), "--json", *runs])
    assert result.exit_code in (0, 3), result.output
    assert json.loads(result.stdout)["fit"] is not None
