"""Go on with a run from its newest checkpoint, as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scalerl.errors import InputError
from scalerl.pipeline.checkpoint import Checkpoints
from scalerl.pipeline.metrics import NAME
from scalerl.training.resolve import read
from scalerl.training.settings import Settings
from scalerl.training.train import Finished, Listener, run
from scalerl.training.warm_start import Progress
from scalerl.training.watch import Follower


def resume(
    directory: Path, steps: int | None = None, listener: Listener = lambda _: None,
    progress: Progress = lambda *_: None,
) -> Finished:  # fmt: skip
    """Resume a run with its own settings.

    What lies behind the newest checkpoint is done again; its rows move to metrics.discarded.jsonl. A run that was
    killed before its first checkpoint starts anew.

    Args:
        steps: another end than the run was started with; kept in config.yaml.

    Raises:
        InputError: the directory holds no run, or its log and its checkpoints are not of one.
        CheckpointError: its checkpoints fit no more.
    """
    if not directory.is_dir():
        raise InputError(f"{directory}: no such run directory")
    settings = read(directory)
    _check_history(directory, settings)
    if steps is not None and steps != settings.steps:
        settings = replace(settings, steps=steps)
        settings.write(directory)
    return run(settings, directory, listener, progress)


def _check_history(directory: Path, settings: Settings) -> None:
    """Refuse where going on would quietly lose what has been trained or logged."""
    log, checkpoints = directory / NAME, Checkpoints(directory, settings.checkpoints.keep)
    latest = checkpoints.latest()
    size = log.stat().st_size if log.is_file() else 0
    if latest is None:
        step = max((row["step"] for row in Follower(directory).rows()), default=0) if size else 0
        if step >= settings.checkpoints.every:
            raise InputError(
                f"{checkpoints.folder}: holds no complete checkpoint, but {NAME} has reached step {step}; put the "
                "checkpoints back, or start again in another directory"
            )
    elif size < (expected := int(checkpoints.load(latest)[0]["metrics_size"])):
        raise InputError(
            f"{log}: has {size:,} bytes where {latest.name} was written with {expected:,}; put the file back, or "
            "remove the newer checkpoints"
        )
