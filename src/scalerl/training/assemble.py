"""Settings -> task, tokenizer, engines, controller: one run, ready to start or to go on from a checkpoint.

Where the engines run is a launcher's business, `launch_*.py`; nothing else here knows which.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.engines.generator import GeneratorSettings
from scalerl.engines.model import count_parameters
from scalerl.errors import InputError
from scalerl.pipeline.checkpoint import Checkpoints
from scalerl.pipeline.controller import Controller
from scalerl.pipeline.evaluation import Evaluation
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.metrics import NAME, MetricsLog, Row, reaches, rows_of
from scalerl.pipeline.sampler import Sampler
from scalerl.pipeline.settings import ControllerSettings
from scalerl.pipeline.verification import Decode, Verification
from scalerl.protocols import Task
from scalerl.tasks.guard import Guard
from scalerl.tasks.registry import build_task
from scalerl.tasks.tokenizer import is_small
from scalerl.training.changes import changes
from scalerl.training.engines import Engines, Launch
from scalerl.training.launch_inline import launch_inline
from scalerl.training.launch_process import launch_processes
from scalerl.training.launch_ray import launch_ray
from scalerl.training.lengths import length_limits
from scalerl.training.model import Origin, loaded, positions_fit, vocabulary_fits
from scalerl.training.settings import CONFIG, Settings

Listener = Callable[[Row], None]
LAUNCHERS = {"inline": launch_inline, "process": launch_processes, "ray": launch_ray}


@dataclass
class Run:
    """Everything of a run."""

    settings: Settings
    directory: Path
    origin: Origin
    engines: Engines
    controller: Controller
    task: Task


@contextlib.contextmanager
def assembled(
    settings: Settings, directory: Path, origin: Origin, checkpoint: Path | None, listener: Listener | None = None
) -> Iterator[Run]:
    """A run, loaded from `checkpoint` if there is one.

    Args:
        listener: is shown each row of metrics.jsonl.

    Raises:
        InputError: the task, the model and the recipe do not fit together. CheckpointError: nor does the checkpoint.
    """
    with contextlib.ExitStack() as closing:
        saved = Checkpoints(directory, settings.checkpoints.keep, {CONFIG: settings.to_yaml()})
        state = arrays = folder = None
        if checkpoint is not None:  # what is refused is refused before engines start
            state, arrays, folder = saved.load(checkpoint)
            reaches(directory / NAME, int(state["metrics_size"]))
        task = build_task(_task_settings(settings), origin.tokenizer, settings.folder)
        closing.callback(getattr(task, "close", lambda: None))
        model = loaded(origin.folder)
        vocabulary_fits(model, origin.tokenizer)
        generation = _generation(settings, task, origin)
        positions_fit(model, generation.prompt_tokens, generation.limits.most)
        parameters = count_parameters(model, active=True)
        engines = LAUNCHERS[settings.engines.launch](Launch(settings, directory, origin, generation, model, closing))
        del model
        if folder is not None:
            engines.trainer.load(folder)
        ledger = Ledger(parameters, trainers=settings.engines.trainers, shared=settings.inline)
        metrics = MetricsLog(directory, 0 if state is None else int(state["metrics_size"]), listener)
        closing.callback(metrics.close)
        controller = _controller(settings, task, origin, engines, ledger, metrics, saved)
        closing.callback(controller.close)
        if state is not None and arrays is not None:
            controller.restore(state, arrays)
        changed = None if checkpoint is None else changes(checkpoint, settings)
        if changed is not None:
            metrics.write("event", {"step": controller.step, "event": "settings changed", "reason": changed})
        yield Run(settings, directory, origin, engines, controller, task)


def _controller(
    settings: Settings, task: Task, origin: Origin, engines: Engines, ledger: Ledger, metrics: MetricsLog,
    checkpoints: Checkpoints,
) -> Controller:  # fmt: skip
    guard, own_guard = Guard(task), Guard(task)  # held-out answers are counted apart
    decode, threads = decoder(origin.tokenizer), settings.engines.verify_threads or 0
    evaluation = None
    _recount(guard, metrics.path)
    if settings.evaluation.every:
        evaluation = Evaluation(
            engines.evaluator, task, settings.evaluation.samples, own_guard.verify, decode, threads=threads,
            hold=engines.hold, seed=settings.seed, limit=settings.evaluation.prompts,
        )  # fmt: skip
    return Controller(
        settings.recipe,
        ControllerSettings(
            settings.steps, settings.evaluation.every, settings.checkpoints.every, settings.engines.capacity,
            settings.seed,
            # Inline engines work within `poll`: the next turn is their next token, and a pause would only delay it.
            pause=0.0 if settings.inline else ControllerSettings.pause,
        ),
        sampler=Sampler.of(task, settings.recipe, settings.seed),
        generator=engines.generator,
        trainer=engines.trainer,
        verification=Verification(guard.verify, decode, threads),
        ledger=ledger,
        metrics=metrics,
        checkpoints=checkpoints,
        evaluation=evaluation,
        counts=guard.counts,
    )  # fmt: skip


def _recount(guard: Guard, metrics: Path) -> None:
    """Let the counts of judged and excluded rollouts go on where the log of a resumed run has them."""
    newest: Row = {}
    for row in rows_of(metrics.read_bytes(), metrics):
        newest = row if row["kind"] == "train" else newest
    for name, count in newest.items():
        what, _, rest = name.partition("/")
        task, _, error = rest.rpartition("/")
        if what == "verified":
            guard.judged[rest] = int(count)
        elif what == "excluded" and error and task:
            guard.excluded[task, error] = int(count)


def _task_settings(settings: Settings) -> Any:
    """Files leave out what the recipe's prompt_tokens cannot hold, unless they say themselves what is too long."""

    def limited(part: Any) -> Any:
        if isinstance(part, str):
            return limited({"name": part}) if part in ("file", "maths") else part
        if isinstance(part, Sequence):
            return [limited(p) for p in part]
        if isinstance(part, dict) and "tasks" in part:
            return part | {"tasks": limited(part["tasks"])}
        if isinstance(part, dict) and part.get("name") in ("file", "maths"):
            return {"max_prompt_tokens": settings.recipe.prompt_tokens} | part
        return part

    return limited(settings.task)


def _generation(settings: Settings, task: Task, origin: Origin) -> GeneratorSettings:
    recipe = settings.recipe
    prompts = [prompt for split in ("train", "held-out") for prompt in task.prompts(split)]
    longest = max(prompts, key=lambda prompt: len(prompt.token_ids))
    if len(longest.token_ids) > recipe.prompt_tokens:
        raise InputError(
            f"recipe.prompt_tokens = {recipe.prompt_tokens}: a prompt of task {longest.task} has "
            f"{len(longest.token_ids)} tokens ({longest.text[:40]!r}); raise it to that, or shorten the prompts"
        )
    return GeneratorSettings(
        slots=settings.engines.slots,
        prompt_tokens=len(longest.token_ids),  # what the cache must hold
        limits=length_limits(recipe, origin.tokenizer, origin.end_tokens),
        temperature=recipe.temperature,
        fp32_head=recipe.head_precision == "fp32",
        seed=settings.seed,
    )


def decoder(tokenizer: Any) -> Decode:
    """Tokens of a completion to the text that is judged: marks of the thinking stay, end and padding go."""
    if not is_small(tokenizer):
        return lambda token_ids: str(tokenizer.decode(list(token_ids), skip_special_tokens=True))
    special = set(tokenizer.all_special_ids)
    texts = {i: tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer)) if i not in special}
    # An embedding may have more rows than the tokenizer has tokens: what stands for none is no text.
    return lambda token_ids: "".join([texts.get(i, "") for i in token_ids])
