"""Small training logs from a stated law, one in each common format, to try the readers and the forecaster on.

    python examples/make_logs.py            # rewrites examples/logs/, byte for byte as it is committed
    python examples/make_logs.py FOLDER     # the same elsewhere, and Parquet and TensorBoard logs beside them

Every score is successes / trials, with successes drawn from the binomial law at the mean that the law states. Every
file says its law in its first lines, so that a forecast can be held against the truth. The draws come from Python's
`random.Random`, whose numbers are the same on every machine and in every version; numpy does not promise that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

LOGS = Path(__file__).parent / "logs"
MADE = "made by examples/make_logs.py, not measured"
RAY = "\x1b[36m(TaskRunner pid=4242, ip=10.0.0.7)\x1b[0m "
Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Law:
    """The sigmoid of eq. 1: mean score R0 + (A - R0) / (1 + (C_mid / C)^B) at compute C."""

    R0: float
    A: float
    B: float
    C_mid: float
    unit: str = "steps"

    def __call__(self, compute: float) -> float:
        return self.R0 + (self.A - self.R0) / (1 + (self.C_mid / compute) ** self.B) if compute > 0 else self.R0

    def __str__(self) -> str:
        rise = f"{self.A - self.R0:.3g} / (1 + ({self.C_mid:,.0f} / C)^{self.B:g})"
        return f"R(C) = {self.R0:g} + {rise}, C in {self.unit}; ceiling A = {self.A:g}"


RUN = Law(R0=0.40, A=0.65, B=1.6, C_mid=10_000, unit="GPU-hours")
"""Much like the paper's 8B run (figure 1)."""
RUN_TRIALS = 16_000
RECIPES = {
    "recipe_a": Law(R0=0.35, A=0.60, B=1.8, C_mid=2_000, unit="GPU-hours"),
    "recipe_b": Law(R0=0.35, A=0.68, B=1.8, C_mid=2_000, unit="GPU-hours"),
    "recipe_c": Law(R0=0.35, A=0.60, B=1.8, C_mid=1_000, unit="GPU-hours"),
}
"""b has the higher ceiling; c only gets to a's ceiling sooner."""
RECIPE_TRIALS = 8_000
TRL, HF = Law(0.20, 0.55, 1.8, 40), Law(0.10, 0.70, 1.4, 400)
VERL, TEXT = Law(0.30, 0.80, 1.5, 80), Law(0.05, 0.60, 1.5, 60)
TINKER, MESSY = Law(0.55, 0.95, 1.6, 20), Law(0.15, 0.60, 1.5, 150)
HELD_OUT, COLLAPSING = Law(0.30, 0.75, 1.7, 300), Law(0.30, 0.65, 1.8, 150)
PARQUET, TENSORBOARD = Law(0.25, 0.70, 1.5, 200), Law(0.35, 0.85, 1.3, 500)


def aime(step: float) -> float:
    """A downstream score that rises with the held-out one: .6 of what is gained there."""
    return 0.10 + 0.6 * (HELD_OUT(step) - HELD_OUT.R0)


def collapsing(step: float) -> float:
    """The law until step 600, then 40 points lost within 100 steps."""
    return COLLAPSING(step) - 0.40 * min(max((step - 600) / 100, 0), 1)


def measure(name: str, mean: Callable[[float], float], every: int, last: int, trials: int, first: int = 0) -> Points:
    """(compute, successes / trials) from `first` to `last`; the name seeds the draws."""
    random = Random(name)
    points = []
    for compute in range(first, last + 1, every):
        p = mean(compute)
        points.append((compute, sum(random.random() < p for _ in range(trials)) / trials))
    return points


def run_jsonl() -> str:
    """scalerl's own metrics.jsonl: device-hours by role, train and eval rows."""
    rows: list[dict[str, Any]] = [{"kind": "event", "event": MADE, "law": str(RUN)}]
    trained = dict(measure("run, training", RUN, 1_000, 80_000, 800))
    for hours, score in measure("run", RUN, 1_000, 80_000, RUN_TRIALS):
        step = hours // 10
        spent = {"device_hours": {"generator": 0.75 * hours, "trainer": 0.25 * hours}}
        at = {"step": step, "policy_version": step, "compute": spent}
        if step:
            rows.append({"kind": "train", "step": step, "reward": trained[hours], "truncation_rate": 0.02})
        rows.append({"kind": "eval", **at, "task": "math", "pass_rate": score, "trials": RUN_TRIALS})
    return _json_lines(rows)


def recipe_points(name: str) -> Points:
    return measure(name, RECIPES[name], 250, 10_000, RECIPE_TRIALS, first=250)


def recipe_csv(name: str) -> str:
    rows = [f"{hours},{score:.6f},{RECIPE_TRIALS}" for hours, score in recipe_points(name)]
    return _text([f"# {MADE}: {RECIPES[name]}", "gpu_hours,val/pass_rate,val/trials", *rows])


def recipes_wide() -> str:
    """A column a run; the third is evaluated half as often, so that every other cell of it is empty."""
    a, b, c = (dict(recipe_points(name)) for name in RECIPES)
    rows = [f"{x},{a[x]:.6f},{b[x]:.6f},{f'{c[x]:.6f}' if i % 2 else ''}" for i, x in enumerate(a)]
    return _text([*_recipe_laws(), ",".join(["gpu_hours", *RECIPES]), *rows])


def recipes_long() -> str:
    """A row per run and evaluation."""
    rows = [f"{name},{x},{score:.6f},{RECIPE_TRIALS}" for name in RECIPES for x, score in recipe_points(name)]
    return _text([*_recipe_laws(), "run,gpu_hours,pass_rate,trials", *rows])


def trainer_state() -> str:
    """TRL's trainer_state.json: training and evaluation rows alternate in log_history."""
    history: list[dict[str, Any]] = []
    evaluated = dict(measure("trl", TRL, 20, 800, 10_000))
    for step, reward in measure("trl, training", TRL, 10, 800, 512, first=10):
        at = {"epoch": step / 800, "step": step}
        history.append({"reward": reward, "completions/clipped_ratio": 0.015625, **at})
        if step in evaluated:
            history.append({"eval_reward": evaluated[step], **at})
    state = {"generated": f"{MADE}: {TRL}", "global_step": 800, "max_steps": 800, "log_history": history}
    return json.dumps(state, indent=0) + "\n"


def hf_console() -> str:
    """The dict lines that transformers' Trainer prints, with quoted numbers, among its progress bars."""
    lines = [f"# {MADE}: {HF}", "Loading checkpoint shards: 100%|██████████| 4/4 [00:02<00:00,  1.61it/s]"]
    for step, reward in measure("hf", HF, 5, 400, 1_024, first=5):
        lines.append(f" {step * 100 // 1000:2d}%|█    | {step}/1000 [{step // 4:02d}:00<3:59:00, 15.0s/it]")
        lines.append(f"{{'loss': '{0.2 / step:.4g}', 'grad_norm': '0.11', 'reward': '{reward:.4f}', "
                     f"'completions/clipped_ratio': '0.03', 'epoch': '{step / 1000:.3f}'}}")  # fmt: skip
    return _text(lines)


def verl_console() -> str:
    """verl's console under Ray: ANSI colours, prefixes, a validation every fifth step."""
    validated = dict(measure("verl", VERL, 5, 160, 5_276))
    lines = [RAY + f"{MADE}: {VERL}", RAY + "Training Progress:   0%|          | 0/400 [00:00<?, ?it/s]"]
    for step, score in measure("verl, training", VERL, 1, 160, 1_024):
        fields = [f"step:{step}"]
        if step:
            fields += [f"critic/score/mean:{score:.4f}", "response_length/clip_ratio:0.01"]
            fields.append(f"timing_s/step:{210 + step % 9}")
        if step in validated:
            fields.append(f"val-core/openai/gsm8k/acc/mean@4:np.float64({validated[step]:.5f})")
        repeated = "\x1b[32m [repeated 2x across cluster]\x1b[0m" if step % 8 == 7 else ""
        lines.append(RAY + " - ".join(fields) + repeated)
    return _text(lines)


def free_text() -> str:
    """What a hand-made loop prints."""
    rows = [f"[grpo] {step:3d}/400 | loss={0.3 / step:.4f} | reward={score:.3f} | acc={100 * score:.1f}%"
            for step, score in measure("text", TEXT, 1, 150, 256, first=1)]  # fmt: skip
    return _text([f"[grpo] {MADE}: {TEXT}", "[grpo] loading the model ...", *rows])


def tinker_jsonl() -> str:
    """Tinker's metrics.jsonl: keys with slashes, a row a step."""
    rows: list[dict[str, Any]] = [{"note": f"{MADE}: {TINKER}"}]
    for step, score in measure("tinker", TINKER, 1, 119, 400):
        rows.append({"step": step, "progress/batch": step, "env/all/correct": score, "env/all/total_episodes": 400,
                     "time/total": 9 + step % 4})  # fmt: skip
    return _json_lines(rows)


def downstream_jsonl() -> str:
    """A held-out score and a downstream one, for `scalerl transfer`."""
    rows: list[dict[str, Any]] = [{"note": f"{MADE}: {HELD_OUT}; aime24 gains .6 of what the held-out score gains"}]
    held_out = measure("held-out", HELD_OUT, 20, 1_200, 4_000)
    follows = measure("aime", aime, 20, 1_200, 1_920)
    for (step, score), (_, other) in zip(held_out, follows, strict=True):
        rows.append({"global_step": step, "val/math/mean@8": score, "val/aime24/mean@64": other})
    return _json_lines(rows)


def collapse_csv() -> str:
    rows = [f"{step},{score:.5f}" for step, score in measure("collapse", collapsing, 20, 800, 4_000)]
    return _text([f"# {MADE}: {COLLAPSING}, until it collapses at step 600", "step,eval/accuracy", *rows])


def messy_jsonl() -> str:
    """Percent, NaN, a warning in the middle, a restart from step 240, a last line cut off in a number."""
    before = measure("messy", MESSY, 10, 300, 2_000)
    after = measure("messy, resumed", MESSY, 10, 500, 2_000, first=240)
    lines = [json.dumps({"note": f"{MADE}: {MESSY}, logged in percent"})]
    for i, (step, score) in enumerate([*before, *after]):
        accuracy = "NaN" if step in (70, 330) else f"{100 * score:.2f}"
        lines.append(f'{{"step": {step}, "loss": {1 / (step + 10):.4f}}}')
        lines.append(f'{{"step": {step}, "eval/accuracy": {accuracy}}}')
        if i == 12:
            lines.append("WARNING: NCCL heartbeat is late, retrying")
    return _text(lines) + '{"step": 510, "eval/accuracy": 5'


TEXT_LOGS: dict[str, Callable[[], str]] = {
    "run.jsonl": run_jsonl,
    "recipe_a.csv": lambda: recipe_csv("recipe_a"),
    "recipe_b.csv": lambda: recipe_csv("recipe_b"),
    "recipes_wide.csv": recipes_wide,
    "recipes_long.csv": recipes_long,
    "trainer_state.json": trainer_state,
    "hf_console.log": hf_console,
    "verl_console.log": verl_console,
    "free_text.log": free_text,
    "tinker.jsonl": tinker_jsonl,
    "downstream.jsonl": downstream_jsonl,
    "collapse.csv": collapse_csv,
    "messy.jsonl": messy_jsonl,
}
"""File name -> its content."""
TRUTH: dict[str, Law] = {
    "run.jsonl": RUN,
    "recipe_a.csv": RECIPES["recipe_a"],
    "recipe_b.csv": RECIPES["recipe_b"],
    "recipes_wide.csv": RECIPES["recipe_c"],
    "recipes_long.csv": RECIPES["recipe_c"],
    "trainer_state.json": TRL,
    "hf_console.log": HF,
    "verl_console.log": VERL,
    "free_text.log": TEXT,
    "tinker.jsonl": TINKER,
    "downstream.jsonl": HELD_OUT,
    "messy.jsonl": MESSY,
    "history.parquet": PARQUET,
    "tensorboard": TENSORBOARD,
}
"""File name -> the law behind it; of the files with several runs that of recipe_c; none for the run that collapses."""


def write_text_logs(folder: Path) -> list[Path]:
    """Write all text logs into a folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in TEXT_LOGS.items():
        (folder / name).write_bytes(content().encode())
    return [folder / name for name in TEXT_LOGS]


def write_parquet(folder: Path) -> Path:
    """A Parquet log, as exported from an experiment tracker."""
    import polars

    steps, scores = zip(*measure("parquet", PARQUET, 20, 600, 3_000), strict=True)
    path = folder / "history.parquet"
    polars.DataFrame({"train/global_step": steps, "eval/pass_rate": scores}).write_parquet(path)
    return path


def write_tensorboard(folder: Path) -> Path | None:
    """A TensorBoard folder, written by tensorboardX; None where that is not installed."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    path = folder / "tensorboard"
    if path.exists():  # the writer adds a file at every call, and two would read as a restarted run
        for old in path.iterdir():
            old.unlink()
    with SummaryWriter(str(path)) as writer:
        for step, score in measure("tensorboard", TENSORBOARD, 20, 800, 3_000):
            writer.add_scalar("eval/pass_rate", score, step)
    return path


def _recipe_laws() -> list[str]:
    return [f"# {MADE}", *(f"# {name}: {law}" for name, law in RECIPES.items())]


def _json_lines(rows: Iterable[dict[str, Any]]) -> str:
    return _text(json.dumps(row) for row in rows)


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0]) if arguments else LOGS
    paths = write_text_logs(folder)
    if arguments:
        paths += [path for path in (write_parquet(folder), write_tensorboard(folder)) if path]
    for path in paths:
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
