"""Go on with a run from its newest checkpoint, as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scalerl.errors import InputError
from scalerl.pipeline.checkpoint import Checkpoints, step_of
from scalerl.training.claim import claimed
from scalerl.training.resolve import read
from scalerl.training.train import Finished, Listener, run
from scalerl.training.warm_start import Progress


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
        InputError: the directory holds no run, another process writes it, its log and checkpoints are not of one, or it
            is beyond `steps` already.
        CheckpointError: its checkpoints fit no more.
    """
    if not directory.is_dir():
        raise InputError(f"{directory}: no such run directory")
    settings = read(directory)
    with claimed(directory):
        if steps is not None and steps != settings.steps:
            _not_before(directory, steps)
            settings = replace(settings, steps=steps)
            settings.write(directory)
        return run(settings, directory, listener, progress)


def _not_before(directory: Path, steps: int) -> None:
    """Refuse an end that lies behind what is saved."""
    checkpoints = Checkpoints(directory)
    if steps >= checkpoints.highest or (newest := checkpoints.latest()) is None:
        return
    if steps < step_of(newest):
        raise InputError(
            f"{directory}: --steps {steps}: it has taken {step_of(newest)} steps already; name a later end"
        )
