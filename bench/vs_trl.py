"""Completions a second, end to end, against TRL's GRPOTrainer on the same two cores; prints one JSON line.

    make bench-trl      or      python bench/vs_trl.py [--variants ended,full] [--steps 8] [--trl-options JSON]

Both sides train the same model (0.8 M parameters, Qwen3) from the same weights on the same prompts with the same
reward: 32 prompts x 16 completions a step of up to 48 tokens, CISPO, the same AdamW. Ours is `scalerl train` as it is:
generator, trainer and controller in processes of their own, one torch thread each for the first two, no evaluation.
TRL's is one process with two threads, run by an interpreter of its own (`.venv-trl`).

    ended   from the warm start: completions end by themselves, after about half of the 48 tokens
    full    from random weights that never end by themselves: every completion has 48 tokens. The reward is whether the
            right digit stands somewhere alone, which chance grants to some of each group: all have variance, so no side
            has less to train

Both sides start, and are frozen (SIGSTOP) by turns for some seconds: a machine that is busy now and idle later is so
for both. Clocks count only the time in which a side was not frozen. `others_cpu` is how many cores everybody else used
meanwhile; two threads that wait for each other suffer more from it than two processes that do not, so figures count
only where it is near 0. The first steps of each are left out. A step counts all its 512 completions on either side;
ours leaves groups without variance out of the loss, as the recipe says, TRL computes them with advantage 0
(`trained_share`). Asynchrony is part of what is measured: ours trains on data some steps old (8 at most), TRL on none.

TRL's settings were chosen with `--tune`, which plays TRL against itself by turns. Seconds a step, "ended", medians of 5
to 12 steps; each line is one run, on cores of which others used .3 to .9:

    chosen (fp32, 2 threads, one micro-batch of 512, freed memory kept) 1.58 · bf16 autocast 1.98 · bf16 weights 1.73
    chosen 1.57 · micro-batches of 128 1.53 · eager attention 1.59: no difference that this noise would show
    chosen 2.15 · freed memory given back 3.39 · threads that sleep 2.76

Threads that sleep instead of spinning (`spin`) had the longer median and yet the higher mean (156 to 92 completions a
second): spinning threads stall for seconds where others use the cores. So give `--trl-options '{"spin": 100}'` on a
machine that is not idle. Not by turns, in single runs: one thread 2.7 to 1.9 with two, continuous batching 6.8 to 3.0.
Not timed: a static cache, and gradient checkpointing, which TRL has on by default and which only saves memory. Always
off: logs, saves, evaluations, KL, vLLM.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

PROMPTS, GENERATIONS, LONGEST = 32, 16, 48
COMPLETIONS = PROMPTS * GENERATIONS
OPTIMIZER = {
    "learning_rate": 1.5e-4,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_epsilon": 1e-15,
    "weight_decay": 0.01,
}
CLIP, NORM, WARMUP = 5.0, 1.0, 5
FOREVER = 1_000_000
VARIANTS = ("ended", "full")
TRL_OPTIONS: dict[str, Any] = {"bf16": False, "per_device_train_batch_size": 512, "threads": 2, "malloc": True}
"""What was found best for TRL; `--trl-options` goes over it. Those that GRPOConfig lacks, see `trl_side`."""
CANDIDATES: dict[str, dict[str, Any]] = {
    "chosen": {},
    "one thread": {"threads": 1},
    "memory given back": {"malloc": False},
    "threads that sleep": {"spin": 100},
    "bf16 autocast": {"bf16": True},
    "bf16 weights": {"dtype": "bfloat16"},
    "micro-batches of 128": {"per_device_train_batch_size": 128},
    "micro-batches of 64": {"per_device_train_batch_size": 64},
    "eager attention": {"attention": "eager"},
    "static cache": {"cache_implementation": "static"},
    "continuous batching": {"use_transformers_continuous_batching": True},
    "gradient checkpointing": {"gradient_checkpointing": True},
}
"""What `--tune` can try; two to four at once, for the memory that each takes."""


class Side:
    """A process group that runs only between `thaw` and `freeze`, and writes a row a step with the wall clock.

    Args:
        rows: the JSON Lines file. log: where its output goes.
    """

    def __init__(self, command: Sequence[str], rows: Path, log: Path, environment: dict[str, str]) -> None:
        self.rows_path, self.log = rows, log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=environment
            )
        self.spans: list[tuple[float, float]] = []
        self.others = 0.0  # CPU seconds of everybody else while it ran
        self._since, self._spent = time.time(), self._elsewhere()

    def thaw(self) -> None:
        """Let it run."""
        self._since, self._spent = time.time(), self._elsewhere()
        os.killpg(self.process.pid, signal.SIGCONT)

    def freeze(self) -> None:
        """Stop all of its processes where they are."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        self.spans.append((self._since, time.time()))
        self.others += max(self._elsewhere() - self._spent, 0.0)

    def _elsewhere(self) -> float:
        """CPU seconds that the machine has spent on others than this side's processes."""
        user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
        own = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()  # from the state on; [2] is the process group
            except OSError:
                continue  # it has ended meanwhile
            own += int(fields[11]) + int(fields[12]) if int(fields[2]) == self.process.pid else 0
        return (user + nice + system - own) / os.sysconf("SC_CLK_TCK")

    def wait_for(self, steps: int, most: float) -> None:
        """Run until it has taken so many steps or `most` seconds are over.

        Raises:
            SystemExit: it has ended, with the end of its log.
        """
        end = time.time() + most
        while time.time() < end and len(self.rows()) < steps:
            if self.process.poll() is not None:
                raise SystemExit(
                    f"{self.log}: ended early with {self.process.returncode}\n{self.log.read_text()[-3000:]}"
                )
            time.sleep(0.05)

    def rows(self) -> list[dict[str, Any]]:
        """Its steps so far; the line being written is left for the next time."""
        lines = self.rows_path.read_bytes().split(b"\n")[:-1] if self.rows_path.exists() else []
        return [row for row in map(json.loads, lines) if row["kind"] == "train"]

    def active(self, at: float) -> float:
        """Seconds until the moment `at` in which it was not frozen."""
        return sum(max(min(end, at) - begin, 0.0) for begin, end in self.spans)

    def close(self) -> None:
        """End it as a scheduler would, so that shared memory is given back; then for certain."""
        with contextlib.suppress(ProcessLookupError):  # all of them have ended
            os.killpg(self.process.pid, signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def measured(self, skip: int) -> dict[str, float]:
        """Means over all steps but the first `skip`."""
        rows = self.rows()
        at = [self.active(row["timestamp"]) for row in rows]
        seconds, kept = at[-1] - at[skip - 1], rows[skip:]
        lengths = [row["completion_length"] for row in kept]
        count = sum(row["rollouts"] for row in kept)
        each = [after - before for before, after in zip(at[skip - 1 : -1], at[skip:], strict=True)]
        return {
            "completions_per_second": round(count / seconds, 1),
            "tokens_per_second": round(sum(row["rollouts"] * row["completion_length"] for row in kept) / seconds),
            "seconds_per_step": round(statistics.median(each), 3),
            "completion_length": round(statistics.mean(lengths), 2),
            "trained_share": round(sum(row["trained_rollouts"] for row in kept) / count, 3),
            "reward_first": round(statistics.mean(row["reward"] for row in kept[:4]), 3),
            "reward_last": round(statistics.mean(row["reward"] for row in kept[-4:]), 3),
            "steps": len(kept),
            "others_cpu": round(self.others / sum(end - begin for begin, end in self.spans), 2),
        } | {  # of our two processes
            name: round(statistics.mean(row[name] for row in kept), 3)
            for name in ("generator_idle_share", "trainer_idle_share")
            if name in kept[0]
        }


def compared(variant: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One variant, by turns until both sides have taken their steps."""
    model, task = start(variant, folder)
    sides: dict[str, Side] = {}
    chosen = TRL_OPTIONS | json.loads(options.trl_options)
    tried = {name: CANDIDATES[name] for name in options.tune.split(",")} if options.tune else {"trl": {}}
    begin: dict[str, Callable[[], Side]] = {
        name: partial(trl_side, model, task, folder / name, options.trl_python, chosen | own)
        for name, own in tried.items()
    }
    if not options.tune:
        begin["scalerl"] = partial(own_side, variant, model, task, folder / "scalerl")
    try:
        for name, launch in begin.items():
            (folder / name).mkdir()
            sides[name] = launch()
            sides[name].wait_for(1, 180.0)
            sides[name].freeze()
        wanted = options.skip + options.steps
        while min(len(side.rows()) for side in sides.values()) < wanted:
            for side in sides.values():
                side.thaw()
                side.wait_for(FOREVER, options.turn)
                side.freeze()
        found: dict[str, Any] = {name: side.measured(options.skip) for name, side in sides.items()}
    finally:
        for side in sides.values():
            side.close()
    if not options.tune:
        for what in ("completions", "tokens"):
            key = f"{what}_per_second"
            found[f"{what}_ratio"] = round(found["scalerl"][key] / found["trl"][key], 2)
    return found


def start(variant: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The model's folder and the task's settings. Short chains, as in the demo."""
    from scalerl.tasks.arithmetic import Arithmetic
    from scalerl.training.settings import WarmStart
    from scalerl.training.warm_start import warm_start

    warm = warm_start(WarmStart(max_steps=6, corruption=0.28, interrupted=0.05, steps=600), threads=2)
    chains = {"min_steps": 3, "max_steps": 6}
    if variant == "ended":
        return warm, {"name": "arithmetic", **chains}
    path = folder / "chains.jsonl"
    chain = Arithmetic(**chains)
    with path.open("w") as file:
        for prompt in (*chain.prompts("train"), *chain.prompts("held-out")):  # the file's task splits them alike
            file.write(json.dumps({"prompt": prompt.text, "answer": prompt.answer}) + "\n")
    task = {"name": "file", "path": str(path), "verifier": "contains", "keep_thinking": True}
    return endless(warm, folder / "endless"), task


def endless(warm: Path, folder: Path) -> Path:
    """The same model with random weights, of which one channel says "not the end" whatever the tokens."""
    import torch

    from scalerl.engines.model import build_model, export_model
    from scalerl.tasks.tokenizer import VOCABULARY, save_tokenizer

    model: Any = build_model(json.loads((warm / "config.json").read_text()), seed=0)
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight  # the head's too
        embedding[:, 0] = 1.0
        embedding[[VOCABULARY["<eos>"], VOCABULARY["<pad>"]], 0] = -1.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
    export_model(model, folder)
    return save_tokenizer(folder)


def own_side(variant: str, model: Path, task: dict[str, Any], folder: Path) -> Side:
    """`scalerl train`."""
    recipe = {
        **OPTIMIZER, "prompts_per_step": PROMPTS, "generations": GENERATIONS, "completion_tokens": LONGEST,
        "thinking_budget_low": LONGEST - 6, "thinking_budget_high": LONGEST - 6, "answer_budget": 4,
        "interruption_phrase": "time!</think>", "penalty_longest": LONGEST, "penalty_cache": 8, "prompt_tokens": 32,
        "clip_high": CLIP, "gradient_clipping": NORM, "warmup_steps": WARMUP,
        "length_control": "interruption" if variant == "ended" else "none",
    }  # fmt: skip
    settings = {
        "task": task, "steps": FOREVER, "model": {"path": str(model)}, "recipe": recipe,
        "engines": {"slots": 256, "generator_threads": 1, "trainer_threads": 1, "verify_threads": 0},
        "evaluation": {"every": 0}, "checkpoints": {"every": FOREVER}, "forecast": {"renew": False},
    }  # fmt: skip
    file, out = folder / "run.yaml", folder / "run"
    file.write_text(json.dumps(settings))  # which is YAML
    command = [sys.executable, "-m", "scalerl", "train", str(file), "--quiet", "--out", str(out)]
    return Side(command, out / "metrics.jsonl", folder / "scalerl.log", dict(os.environ))


def trl_side(model: Path, task: dict[str, Any], folder: Path, python: str, own: dict[str, Any]) -> Side:
    """This file again, under TRL's interpreter.

    Args:
        own: settings of GRPOConfig; and `threads` of torch, `spin`: how often a thread looks for work before it sleeps,
            `malloc`: whether freed memory is kept, as our trainer keeps it, `dtype`, `attention` of the model.
    """
    rows = folder / "trl.jsonl"
    job: dict[str, Any] = {
        "model": str(model),
        "task": task,
        "rows": str(rows),
        "scratch": str(folder / "trl"),
        "options": own,
    }
    file = folder / "trl.json"
    file.write_text(json.dumps(job))
    environment = os.environ | {"OMP_NUM_THREADS": str(own.get("threads", 2)), "HF_HUB_OFFLINE": "1"}
    if own.get("spin"):
        environment["GOMP_SPINCOUNT"] = str(own["spin"])
    if own.get("malloc"):
        environment |= {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    return Side([python, __file__, "--trl", str(file)], rows, folder / "trl.log", environment)


def trl_train(job: dict[str, Any]) -> None:
    """TRL's side, until it is killed."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from scalerl.tasks.registry import build_task

    options = dict(job["options"])
    torch.set_num_threads(options.pop("threads", 2))
    for name in ("malloc", "spin"):  # seen to when this process was started
        options.pop(name, None)
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    task: Any = build_task(job["task"], tokenizer)
    prompts = task.prompts("train")
    by_text = {task.encoder.render(prompt.text): prompt for prompt in prompts}
    for text, prompt in list(by_text.items())[:100]:
        assert tuple(tokenizer(text)["input_ids"]) == prompt.token_ids, "both sides must read the same tokens"
    seen: dict[str, float] = {}

    def reward(prompts: list[str], completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        scores = [2 * task.verify(by_text[p], text) - 1 for p, text in zip(prompts, completions, strict=True)]
        seen.update(
            rollouts=len(scores), reward=statistics.mean(scores), trained_rollouts=len(scores),
            completion_length=statistics.mean(map(len, completion_ids)),
        )  # fmt: skip
        return scores

    class Rows(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            with open(job["rows"], "a") as file:
                file.write(json.dumps({"kind": "train", **seen, "timestamp": time.time()}) + "\n")

    init = {"dtype": options.pop("dtype", "float32"), "attn_implementation": options.pop("attention", "sdpa")}
    size = options["per_device_train_batch_size"]
    config = GRPOConfig(
        **OPTIMIZER, output_dir=job["scratch"], loss_type="cispo", epsilon_high=CLIP, max_grad_norm=NORM,
        lr_scheduler_type="constant_with_warmup", warmup_steps=WARMUP, optim="adamw_torch_fused",
        num_generations=GENERATIONS, max_completion_length=LONGEST, scale_rewards="batch", temperature=1.0,
        gradient_accumulation_steps=COMPLETIONS // size, steps_per_generation=COMPLETIONS // size,
        max_steps=FOREVER, beta=0.0, num_iterations=1, mask_truncated_completions=False, use_vllm=False,
        use_cpu=True, gradient_checkpointing=options.pop("gradient_checkpointing", False), model_init_kwargs=init,
        logging_strategy="no", save_strategy="no", eval_strategy="no", report_to=[], disable_tqdm=True, **options,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=job["model"], reward_funcs=reward, args=config, processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": list(by_text)}), callbacks=[Rows()],
    )  # fmt: skip
    trainer.train()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--tune", metavar="NAME,NAME", help="instead, TRL against itself with some of CANDIDATES")
    parser.add_argument("--steps", type=int, default=8, help="least number measured, of each side")
    parser.add_argument("--skip", type=int, default=5, help="first steps left out: starts, warming up, a filling pipe")
    parser.add_argument("--turn", type=float, default=8.0, help="seconds that a side runs before the other does")
    parser.add_argument("--trl-python", default=".venv-trl/bin/python")
    parser.add_argument("--trl-options", default="{}", help="JSON of GRPOConfig's, over the chosen ones")
    parser.add_argument("--trl", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trl:
        trl_train(json.loads(Path(options.trl).read_text()))
        return
    if not Path(options.trl_python).exists():
        raise SystemExit(f"{options.trl_python}: not there; `make bench-trl` makes it, or name one with --trl-python")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # or what is frozen would stay so
    found = {}
    for variant in options.variants.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found[variant] = compared(variant, options, Path(folder))
        print(f"{variant}: {found[variant]}", file=sys.stderr)
    chosen = TRL_OPTIONS | json.loads(options.trl_options)
    print(json.dumps({"bench": "vs_trl", "cores": os.cpu_count(), "trl_options": chosen, **found}))


if __name__ == "__main__":
    main()
