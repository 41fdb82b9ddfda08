"""Names that trainers give to steps, scores, time, trials, truncation, tokens; and the ranked guess built on them.

Known: TRL, verl, OpenRLHF, Tinker, prime-rl, SkyRL, NeMo-RL, open-instruct, slime, W&B. A held-out evaluation comes
before a training reward, a pass rate before a reward, mean@k before what is chosen from k (best@k, maj@k, pass@k).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from scalerl.runs.table import FloatArray

# Compute proper, then steps. W&B's `_step` counts log calls, not training steps, and so comes last.
# fmt: off
COMPUTE = (
    "gpu_hours", "gpu_hour", "gpuhours", "device_hours", "compute/device_hours", "compute", "flops",
    "total_flops", "compute/flops", "train_flops",
)
STEPS = (
    "train/global_step", "trainer/global_step", "training/global_step", "global_step", "globalstep",
    "train/step", "training_step", "trainer/step", "step", "steps", "current_steps", "train_step", "optimizer_step",
    "update", "num_updates", "updates", "policy_version", "iteration", "iterations", "iter", "it",
    "progress/batch", "progress/step", "rollout/step", "eval/global_step", "eval/step", "round", "batch",
    "batch_idx", "training_iteration", "t", "checkpoint", "checkpoint_step", "ckpt", "ckpt_step",
)
TOKENS = (
    "num_tokens", "train/num_tokens", "num_input_tokens_seen", "train/num_input_tokens_seen", "tokens",
    "total_tokens", "progress/total_tokens", "compute/tokens", "val/total_tokens",
    "perf/total_num_tokens", "train/total_tokens", "tokens_seen",
)
EPISODES = ("episode", "episodes", "samples", "progress/total_samples", "num_samples_seen", "prompts_seen")
EPOCHS = ("epoch", "train/epoch", "training/epoch", "trainer/epoch")
TIMES = (
    "_timestamp", "timestamp", "wall_time", "wall time", "walltime", "wall_clock", "wallclock",
    "_runtime", "runtime", "elapsed", "elapsed_time", "elapsed_s", "time", "date", "datetime",
    "created_at", "relative time (process)", "relative time (wall)", "time/total", "timing_s/step",
    "perf/time_per_step", "timing/step", "time/step", "step_time", "time_per_step",
    "timing/train/total_step_time", "total_step_time", "seconds",
)
LAST_STEPS = ("_step", "row")
# Seconds or tokens of one step each, to be summed up along the run.
PER_STEP = frozenset({
    "time/total", "timing_s/step", "perf/time_per_step", "timing/step", "time/step", "step_time",
    "time_per_step", "timing/train/total_step_time", "total_step_time", "perf/total_num_tokens",
    "time/train", "timing_s/gen",
})
RUN_COLUMNS = (
    "run", "run_name", "runname", "run_id", "runid", "condition", "experiment", "experiment_name", "exp",
    "exp_name", "name", "variant", "method", "algorithm", "algo", "recipe", "config", "arm", "group",
    "model", "model_name", "seed", "id", "tag",
)
SPLIT_COLUMNS = ("kind", "split", "phase", "mode", "stage", "partition", "subset", "type", "set")
METRIC_COLUMNS = ("metric", "metric_name", "key", "variable", "measure", "tag", "scalar")
TASK_COLUMNS = ("task", "dataset", "benchmark", "env", "eval_name")
TRUNCATION = (
    "truncation_rate", "truncated_rate", "truncated_fraction", "truncated/mean", "is_truncated/mean",
    "is_truncated", "completions/clipped_ratio", "train/completions/clipped_ratio", "clipped_ratio",
    "rollout/truncated_ratio", "truncated_ratio", "truncated", "response/truncation_rate",
    "is_truncated/all/mean", "batch/truncated_ratio", "response_length/clip_ratio",
    "response_length_non_aborted/clip_ratio",
)
TRIALS = (
    "trials", "n_trials", "num_trials", "n_eval", "num_eval", "eval_n", "num_examples", "n_examples",
    "num_samples", "n_samples", "rollout_count", "num_rollouts", "total_episodes", "total",
)
# fmt: on

_HELD_OUT = re.compile(
    r"(?:^|[/_.\- ])(?:eval|evals|evaluation|val|valid|validation|test|heldout|held[_-]?out|dev|val-core)(?:$|[/_.\- ])"
)
_TRAIN = re.compile(r"(?:^|[/_.\- ])(?:train|training|rollout)(?:$|[/_.\- ])")
_PASS = re.compile(
    r"pass[_\-@ ]?rate|pass@1(?!\d)|pass_at_1(?!\d)|pass1(?!\d)|mean@\d+|avg@\d+|avg_at_\d+|accurac"
    r"|(?:^|[/_.\- ])(?:acc|em)(?:$|[/_.\-@ ])|correct|solve[_-]?rate|solved|success|win[_-]?rate"
    r"|exact[_-]?match|hit[_-]?rate"
)
_SCORE = re.compile(r"score|test_score|f1(?:$|[/_.\- ])")
_REWARD = re.compile(r"reward|(?:^|[/_.\- ])return|(?:^|[/_.\- ])(?:rewards?|r)(?:$|[/_.\- ])")
_CHOSEN = re.compile(r"best@|maj@|worst@|majority|best_of|pass@(?!1(?!\d))\d+|pass_at_(?!1(?!\d))\d+|oracle")
# Words of a name that rule it out as a score.
# fmt: off
_NEVER = frozenset({
    "std", "stdev", "var", "variance", "min", "max", "median", "sem", "stderr", "ci", "loss", "losses",
    "kl", "entropy", "length", "lengths", "len", "clip", "clipped", "clipfrac", "grad", "norm", "lr",
    "rate_lr", "learning", "time", "times", "timing", "token", "tokens", "count", "counts", "num", "n",
    "format", "penalty", "advantage", "advantages", "value_loss", "values", "memory", "throughput",
    "perf", "zero", "frac", "fraction", "error", "errors", "ratio", "diff", "logp", "logprob", "logprobs",
    "prob", "probs", "threshold", "target", "weight", "weights", "turns", "step", "steps", "epoch",
    "epochs", "margin", "trials", "samples", "aux", "runtime", "second", "seconds", "sec", "per_second",
    "invalid", "no", "incorrect", "wrong", "truncated", "truncation", "timeout", "overlong",
    "hours", "flops", "temperature", "difficulty_mean", "batch", "size", "stop", "response_rate",
})
# fmt: on


@lru_cache(maxsize=65536)
def canonical(name: str) -> str:
    """A name in lower case with the blanks of headings taken out: `Global Step` -> `global_step`."""
    return re.sub(r"\s+", "_", name.strip().lower())


def find(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """The columns whose name is a known one, in the order of the known names."""
    by_name: dict[str, list[str]] = {}
    for name in names:
        by_name.setdefault(canonical(name), []).append(name)
    return list(dict.fromkeys(name for alias in known for name in by_name.get(canonical(alias), [])))


def score_rank(name: str) -> float | None:
    """How likely the name is the score to forecast: smaller is likelier; None if it is none.

    0 held-out pass rate, 1 held-out score or reward, 2 pass rate, 3 score, 4 training reward; fractions order within.
    """
    low = canonical(name)
    if low in ("value", "y"):
        return 6.0
    kept = low.replace("val-core", "val").replace("val-aux", "aux")
    if ruled_out(kept):
        return None
    held_out = _HELD_OUT.search(kept) is not None
    if _PASS.search(kept):
        kind = 0.0
    elif _SCORE.search(kept):
        kind = 0.5
    elif _REWARD.search(kept):
        kind = 1.0
    elif held_out and "/" in kept:  # slime writes `eval/aime`
        kind = 1.4
    else:
        return None
    rank = kind if held_out else 2.0 + kind * 2
    if _CHOSEN.search(kept):
        rank += 0.45 if held_out else 2.5
    if _TRAIN.search(kept):
        rank += 0.1
    if re.search(r"/by_group|/per_", kept):
        rank += 0.3
    return rank + 0.001 * kept.count("/") + (0.2 if re.match(r"rewards?/(?!mean|avg|all|total)", kept) else 0.0)


def ruled_out(name: str) -> bool:
    """Whether a word of the name says that it is no score, such as `loss`, `std` or `length`."""
    return not _NEVER.isdisjoint(re.split(r"[/_.\-@ :()]+", canonical(name)))


def score_candidates(columns: Mapping[str, FloatArray]) -> list[str]:
    """Columns that may be the score, likeliest first.

    A column with a value above 1 (a shaped reward) or with fewer than 3 numbers falls behind its rank, and one with
    far fewer points than the training reward only leads if it has at least 4.
    """
    ranked: list[tuple[float, int, int, str]] = []
    for place, (name, column) in enumerate(columns.items()):
        rank = score_rank(name)
        if rank is None:
            continue
        known = column[np.isfinite(column)]
        if known.size == 0:
            continue
        if known.size < 4:
            rank += 10
        if (known > 1.0 + 1e-6).any() and not looks_percent(name, known):
            rank += 5
        ranked.append((round(rank, 2), -int(known.size), place, name))
    return [name for *_, name in sorted(ranked)]


def looks_percent(name: str, values: FloatArray) -> bool:
    """Whether finite values are a percentage: called so, or a pass rate that runs above 1 and up to 100."""
    low = canonical(name)
    called = "%" in low or "percent" in low or bool(re.search(r"(?:^|_|/)pct(?:$|_|/)", low))
    is_rate = _PASS.search(low) is not None
    inside = bool((values >= 0).all() and (values <= 100 + 1e-6).all())
    return inside and bool((values > 1.5).any()) and (called or is_rate)


def is_held_out(name: str) -> bool:
    """Whether the name speaks of an evaluation."""
    return _HELD_OUT.search(canonical(name)) is not None


def share_a_word(one: str, other: str) -> bool:
    """Whether two names speak of the same data set: a word in common that is not said of every score."""
    common = {"val", "eval", "test", "train", "core", "reward", "score", "mean", "acc", "accuracy", "all", "avg", ""}
    one_words, other_words = (set(re.split(r"[/_.\-@ :()\d]+", canonical(n))) - common for n in (one, other))
    return bool(one_words & other_words)


def is_rate(name: str) -> bool:
    """Whether the name speaks of a pass rate and not of a reward."""
    return _PASS.search(canonical(name)) is not None


def step_candidates(names: Iterable[str]) -> list[str]:
    """Columns that count training steps, likeliest first; W&B's `_step` and a count of rows last."""
    return find(list(names), (*STEPS, *EPISODES, *LAST_STEPS))


def axis_candidates(names: Iterable[str]) -> list[str]:
    """Columns that may be the compute axis, likeliest first."""
    listed = list(names)
    return find(listed, (*COMPUTE, *STEPS, *EPISODES, *TOKENS, *LAST_STEPS, *TIMES, *EPOCHS))


def unit_of(name: str) -> str:
    """The unit of a column on the compute axis, by its name."""
    low = canonical(name)
    if re.search(r"gpu_?hours?|device_hours?", low):
        return "gpu-hour"
    if "flop" in low:
        return "flop"
    if "token" in low:
        return "token"
    if low in {canonical(n) for n in TIMES}:
        return "second"
    if low in {canonical(n) for n in EPOCHS}:
        return "epoch"
    if low in EPISODES:
        return "sample"
    if low == "row":
        return "row"
    if low == "compute":
        return "unit"  # "500 units" reads; "500 computes" does not
    if low in {canonical(n) for n in (*STEPS, "_step")}:
        return "step"
    return low.rsplit("/", 1)[-1]


def trials_column(score: str, names: Iterable[str]) -> str | None:
    """The column of trials that belongs to a score: the same prefix, or both without one."""
    prefix, slash, last = score.rpartition("/")
    head = prefix + slash
    for candidate in TRIALS:
        for name in names:
            if name == head + candidate or (last != score and name == f"{prefix.partition('/')[0]}/{candidate}"):
                return name
    return None
