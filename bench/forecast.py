"""Accuracy and speed of the forecaster: one JSON line a question.

    python bench/forecast.py [--curves ../shared/curves] [--runs 200] [--only real,synthetic,...]

real: coverage, width and errors on real logs at 2x and 4x. real_verdicts: what `forecast` says of them, at half and
at full length. synthetic: the same on simulated runs at 2x and 6x, per
kind. verdicts: wrong and UNSURE shares at 2x. collapses: found and falsely seen. figure1: the paper's 8B run. speed:
a full forecast of 75 points, against the paper's literal grid, and a backtest of 100 curves at two fractions.
"""

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import scalerl
from scalerl.curves.backtest import METHODS, backtest
from scalerl.curves.calibration import shipped
from scalerl.curves.diagnostics import find_collapse
from scalerl.curves.forecast import calibrated, conditioned, forecast
from scalerl.curves.observations import end_of
from scalerl.curves.paper import A_GRID, C_MID_GRID
from scalerl.curves.posterior import Prior
from scalerl.curves.synthetic import KINDS, Simulated, collapsed, simulate
from scalerl.runs import Curve

POINTS = (20, 40, 75)
MATERIAL = 6.0
"""A collapse that must be found falls by at least this many noise sd, and by .03."""

SETTINGS: dict[str, dict[str, object]] = {
    "default": {}, "level 0.8": {"level": 0.8}, "threshold 0.05": {"threshold": 0.05}, "budget 4x": {"budget": "4x"}
}  # fmt: skip
"""Of `forecast`, for the verdicts on real logs."""


def real(folder: Path, runs: int) -> dict[str, object]:
    curves = list(read_all(folder))
    report = backtest(curves, (0.25, 0.5), METHODS)
    rows = {f"{s.method} {1 / s.fraction:g}x": rounded(s.__dict__) for s in report.summaries()}
    return {"curves": len(curves), "level": report.level, "methods": rows, "skipped": report.skipped}


def real_verdicts(folder: Path, runs: int) -> dict[str, object]:
    """Counts; and of verdicts at half, about the whole, how many the end contradicts (its mean less that at half)."""
    curves = list(read_all(folder))
    table = {}
    for name, settings in SETTINGS.items():
        counts: dict[str, dict[str, int]] = {"half": {}, "full": {}}
        wrong = []
        for curve in curves:
            half = curve.upto(curve.compute[-1] / 2)
            for length, known in (("half", half), ("full", curve)):
                said = forecast(known, **settings).verdict
                counts[length][said] = counts[length].get(said, 0) + 1
                gain = end_of(curve)[1] - end_of(half)[1]
                above = gain > settings.get("threshold", 0.01)
                if length == "half" and said == ("STOP-THIS-RECIPE" if above else "CONTINUE"):
                    wrong.append(f"{curve.name}: {said}, came {gain:+.3f}")
        table[name] = {**counts, **({} if "budget" in settings else {"wrong_at_half": wrong})}
    return {"curves": len(curves), "settings": table}


def synthetic(folder: Path, runs: int) -> dict[str, object]:
    table = {}
    for kind in KINDS:
        rows: dict[int, list[tuple[float, float, float]]] = {2: [], 6: []}
        for run, post, curve in simulated(kind, runs):
            at = curve.compute[-1] * np.array(list(rows))
            p, truth = calibrated(post, shipped(), curve, at, 0.9), run.mean_score(at)
            for j, reach in enumerate(rows):
                inside = float(p.low[j] <= truth[j] <= p.high[j])
                rows[reach].append((inside, p.high[j] - p.low[j], abs(p.score[j] - truth[j])))
        for reach, found in rows.items():
            inside_, width, error = np.array(found).T
            table[f"{kind} {reach}x"] = rounded(
                {"coverage": inside_.mean(), "width": width.mean(), "median_error": np.median(error)}
            )
    return {"runs_per_kind": runs, "cells": table}


def verdicts(folder: Path, runs: int) -> dict[str, object]:
    counts = {"CONTINUE": 0, "STOP-THIS-RECIPE": 0, "UNSURE": 0, "NO-FORECAST": 0}
    wrong = 0
    for kind in KINDS:
        for run, _, curve in simulated(kind, runs // 2):
            said = forecast(curve).verdict
            gain = float(np.diff(run.mean_score(curve.compute[-1] * np.array([1.0, 2.0])))[0])
            counts[said] += 1
            wrong += (said == "CONTINUE" and gain < 0.01) or (said == "STOP-THIS-RECIPE" and gain > 0.01)
    total = sum(counts.values())
    return {"runs": total, "wrong": round(wrong / total, 4), **{k: round(v / total, 3) for k, v in counts.items()}}


def collapses(folder: Path, runs: int) -> dict[str, object]:
    found = material = false = total = 0
    for kind in KINDS:
        for points in POINTS:
            rng = np.random.default_rng(11)
            for _ in range(runs):
                run = simulate(kind, rng, points, reach=float(np.exp(rng.uniform(np.log(1.5), np.log(20)))))
                false += is_collapse(run.curve)
                total += 1
                curve = collapsed(run, rng)
                mean = run.mean_score(curve.compute) - (run.curve.score - curve.score)
                fall = float(mean.max() - mean[-1])
                if fall > max(MATERIAL * run.noise_sd, 0.03):
                    material += 1
                    found += is_collapse(curve)
    return {
        "material": material, "found": round(found / material, 4), "runs": total, "false": round(false / total, 4)
    }  # fmt: skip


def figure1(folder: Path, runs: int) -> dict[str, object]:
    curve = scalerl.read_curve(folder / "scalerl-paper" / "fig1_8b_dense.csv")
    row = forecast(curve, at=[78_000], upto=25_000).table[0]
    window = curve.upto(50_000)
    return rounded(
        {
            "low": row.low, "high": row.high, "holds_.643": row.low <= 0.643 <= row.high,
            "A_ours": scalerl.fit(window, since=1500).A, "A_paper": scalerl.fit(window, since=1500, method="paper").A,
        }
    )  # fmt: skip


def speed(folder: Path, runs: int) -> dict[str, object]:
    curve = simulate("iid", np.random.default_rng(0), points=75).curve
    forecast(curve)
    ours, literal = [], []
    for _ in range(5):  # side by side, so that a busy machine slows both
        # five in a row, as in use: the grid's 7,100 fits have the caches to themselves as well
        ours.append(sorted(timed(lambda: forecast(curve)) for _ in range(5))[2])
        literal.append(timed(lambda: literal_grid(curve)))
    many = [simulate(kind, np.random.default_rng(i), points=75).curve for i in range(25) for kind in KINDS]
    wall, cpu = timed(lambda: backtest(many))
    return {
        "forecast_ms": round(1e3 * statistics.median(w for w, _ in ours), 1),
        "forecast_cpu_ms": round(1e3 * statistics.median(c for _, c in ours), 1),
        "literal_grid_ms": round(1e3 * statistics.median(w for w, _ in literal), 1),
        "times_faster": round(statistics.median([b[1] / a[1] for a, b in zip(ours, literal, strict=True)]), 1),
        "backtest_100_curves_s": round(wall, 1),
        "backtest_100_curves_cpu_s": round(cpu, 1),
    }


def literal_grid(curve: Curve) -> tuple[float, float, float]:
    """The paper's protocol as it is written: one `curve_fit` of B for each of the 7,100 pairs."""
    from scipy.optimize import curve_fit

    best, R0 = (np.inf, 0.0, 0.0, 0.0), float(curve.score[0])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for A in A_GRID:
            for C_mid in C_MID_GRID:

                def law(c: np.ndarray, B: float, A: float = A, C_mid: float = C_mid) -> np.ndarray:
                    return R0 + (A - R0) / (1 + (C_mid / c) ** B)

                try:
                    (B,), _ = curve_fit(law, curve.compute, curve.score, p0=[1.0])
                except RuntimeError:
                    continue
                best = min(best, (float(((law(curve.compute, B) - curve.score) ** 2).sum()), A, B, C_mid))
    return best[1:]


def simulated(kind: str, runs: int) -> Iterator[tuple[Simulated, object, Curve]]:
    rng = np.random.default_rng(1)
    for _ in range(runs):
        run = simulate(kind, rng, points=int(rng.choice(POINTS)))
        _, post = conditioned(run.curve, "auto", Prior())
        yield run, post, run.curve


def is_collapse(curve: Curve) -> bool:
    fall = find_collapse(curve)
    return fall is not None and fall.found


def read_all(folder: Path) -> Iterator[Curve]:
    """Every usable curve of the folder; `llama_results.csv` is there again as one file a condition."""
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".csv", ".log", ".jsonl")):
        if path.name == "llama_results.csv":
            continue
        curve = scalerl.read_curve(path)
        if np.ptp(curve.score) > 0:
            yield curve


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds; on a machine that others use too, the CPU's are the ones to compare."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def rounded(values: dict[str, object]) -> dict[str, object]:
    return {k: round(float(v), 4) if isinstance(v, (float, np.floating)) else v for k, v in values.items()}


QUESTIONS = {f.__name__: f for f in (real, real_verdicts, synthetic, verdicts, collapses, figure1, speed)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=Path(__file__).parents[1].parent / "shared" / "curves")
    parser.add_argument("--runs", type=int, default=200, help="simulated runs a cell")
    parser.add_argument("--only", default=",".join(QUESTIONS), help="comma-separated questions")
    args = parser.parse_args()
    for name in args.only.split(","):
        if name in ("real", "real_verdicts", "figure1") and not args.curves.is_dir():
            print(json.dumps({"bench": name, "skipped": f"no folder {args.curves}"}))
            continue
        print(json.dumps({"bench": name, **QUESTIONS[name](args.curves, args.runs)}), flush=True)


if __name__ == "__main__":
    main()
