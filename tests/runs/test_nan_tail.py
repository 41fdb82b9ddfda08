"""Trap 33, a NaN tail: a run whose log ends in NaN has diverged, and every format must carry that to the curve."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest
from log_samples import lines, run_of, said
from tensorboardX import SummaryWriter

from scalerl.runs import read_curve

STEPS = range(1, 34)
SCORES = [0.01 * s if s <= 30 else math.nan for s in STEPS]
PAIRS = list(zip(STEPS, SCORES, strict=True))
LOGS = {
    "csv": "step,acc\n" + "".join(f"{s},{a}\n" for s, a in PAIRS),
    "wide csv": "step,one,two\n" + "".join(f"{s},{0.5 if s < 20 else 0.6},{a}\n" for s, a in PAIRS),
    "long csv": "step,metric,value\n" + "".join(f"{s},acc,{a}\n{s},loss,1.5\n" for s, a in PAIRS),
    "jsonl": lines({"step": s, "acc": a} for s, a in PAIRS),
    "jsonl, quoted": lines({"step": s, "acc": "NaN" if math.isnan(a) else a} for s, a in PAIRS),
    "jsonl beside a broken line": '{"step": 0, "acc": 0.0, "text": "\\": NaN"}\nbroken\n'
    + lines({"step": s, "acc": a} for s, a in PAIRS),
    "json": "[" + lines({"step": s, "acc": a} for s, a in PAIRS).strip().replace("\n", ",\n") + "]",
    "verl": "".join(f"step:{s} - actor/loss:0.2 - val/acc:{a}\n" for s, a in PAIRS),
    "dicts": "".join(f"{{'step': {s}, 'loss': 0.2, 'eval/acc': {a}}}\n" for s, a in PAIRS),
    "free text": "".join(f"{s}/99 | reward={a}\n" for s, a in PAIRS),
}


@pytest.mark.parametrize("kind", LOGS)
def test_trap_33_nan_tail_reaches_the_curve(tmp_path: Path, kind: str) -> None:
    curve = run_of(tmp_path, LOGS[kind]).curve(run="two" if kind == "wide csv" else None)
    assert curve.missing_tail == 3
    assert said(curve.notes, "ends in 3 rows", "NaN")


def test_trap_33_nan_tail_in_parquet(tmp_path: Path) -> None:
    frame = pl.DataFrame({"step": list(STEPS), "acc": SCORES})
    frame.write_parquet(tmp_path / "log")
    assert read_curve(tmp_path / "log").missing_tail == 3
    frame.with_columns(acc=pl.col("acc").fill_nan(None)).write_parquet(tmp_path / "log")
    assert read_curve(tmp_path / "log").missing_tail == 0


def test_trap_33_nan_tail_in_tensorboard(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    for step, score in PAIRS:
        writer.add_scalar("eval/acc", score, step)
        writer.add_scalar("loss", 1.0, step)
    writer.close()
    assert read_curve(tmp_path).missing_tail == 3


@pytest.mark.parametrize(
    "content",
    [
        "step,acc,loss\n" + "".join(f"{s},{a if s <= 30 else ''},1\n" for s, a in PAIRS),
        lines({"step": s, "acc": a} if s <= 30 else {"step": s, "loss": 1.0} for s, a in PAIRS),
        lines({"step": s, "acc": a if s <= 30 else None} for s, a in PAIRS),
        "step,acc,loss\n" + "".join(f"{s},{0.01 * s if s % 5 == 0 else 'nan'},1\n" for s in range(1, 34)),
    ],
    ids=["empty cells", "absent keys", "null", "NaN on every training row"],
)
def test_a_score_that_is_merely_absent_is_no_nan_tail(tmp_path: Path, content: str) -> None:
    assert run_of(tmp_path, content).curve().missing_tail == 0
