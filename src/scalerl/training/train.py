"""Run a run: from nothing or from its newest checkpoint, until it ends, is stopped, or cannot go on.

run directory: config.yaml  run.lock  metrics.jsonl  checkpoints/  forecast.json  logs/  model/
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from scalerl.errors import EngineDied, InputError
from scalerl.pipeline.checkpoint import Checkpoints, step_of
from scalerl.pipeline.controller import Controller
from scalerl.pipeline.metrics import NAME, Row
from scalerl.pipeline.settings import Outcome
from scalerl.tasks.trial import trial
from scalerl.training.assemble import Run, assembled
from scalerl.training.claim import claimed_new
from scalerl.training.model import Origin, origin
from scalerl.training.renewal import Renewal
from scalerl.training.settings import Settings
from scalerl.training.warm_start import Progress
from scalerl.training.watch import Follower, begun

MODEL = "model"
_ATTEMPTS = 5
"""Deaths of trainers in a row, none of which got further than all before: a fault that will not go away."""
Listener = Callable[[Row], None]


@dataclass(frozen=True)
class Finished:
    """How a run ended. `model`: the exported folder, None where the run was only interrupted."""

    outcome: Outcome
    directory: Path
    model: Path | None


def train(
    settings: Settings, directory: Path, listener: Listener = lambda _: None, progress: Progress = lambda *_: None
) -> Finished:
    """Start a run in a new directory.

    Args:
        listener: is shown each row of metrics.jsonl, and forecasts as rows of kind "forecast". progress: of a warm
            start.

    Raises:
        InputError: the directory holds a run already, or the settings cannot be carried out.
        VerifierError: the verifier cannot work.
        EngineDied: an engine died again and again.
    """
    with claimed_new(directory):
        try:
            settings.write(directory)
        except OSError as error:
            raise InputError(f"{directory}: cannot be written ({error.strerror}); choose another --out") from error
        return run(settings, directory, listener, progress)


def run(
    settings: Settings, directory: Path, listener: Listener = lambda _: None, progress: Progress = lambda *_: None
) -> Finished:
    """Go on from the newest checkpoint if there is one; a trainer that dies on the way is replaced from it.

    The caller has claimed the directory.
    """
    begin = origin(settings, directory, progress)
    stop = _Stop()
    deaths, last = 0, 0
    news: Row | None = None
    with stop.signals():
        while True:
            try:
                return _attempt(settings, directory, begin, stop, listener, news)
            except _TrainerDied as died:
                deaths = deaths + 1 if died.step <= last else 1
                last = max(last, died.step)
                if deaths > _ATTEMPTS:
                    raise died.error from died
                news = {"step": died.step, "event": "trainer replaced", "reason": str(died.error)}
            except _StoppedEarly as stopped:
                return Finished(Outcome(stopped.step, f"stopped: {stop.signalled}"), directory, None)


class _TrainerDied(Exception):
    """At which step; that of the newest checkpoint where it was still starting."""

    def __init__(self, error: EngineDied, step: int) -> None:
        super().__init__(str(error))
        self.error, self.step = error, step


class _StoppedEarly(BaseException):
    """By a signal, while engines were starting: there is nothing to save. `step` of the newest checkpoint."""

    step = 0


def _attempt(
    settings: Settings, directory: Path, begin: Origin, stop: _Stop, listener: Listener, news: Row | None
) -> Finished:
    checkpoints = Checkpoints(directory, settings.checkpoints.keep)
    checkpoint = checkpoints.latest()
    if checkpoint is None and news is None and not checkpoints.unfinished:
        _nothing_to_lose(directory, settings.checkpoints.every)
    saved = 0 if checkpoint is None else step_of(checkpoint)
    renewal = Renewal(settings.forecast, directory, listener)

    def heard(row: Row) -> None:
        listener(row)
        renewal.heard(row)

    with contextlib.ExitStack() as closing:
        try:
            with stop.early():
                found = closing.enter_context(assembled(settings, directory, begin, checkpoint, heard))
        except EngineDied as error:
            raise _TrainerDied(error, saved) from error
        except _StoppedEarly as stopped:
            stopped.step = saved
            raise
        if news is None:
            trial(found.task)
        closing.enter_context(renewal.beside(stop.ask))
        renewal.remember(directory / NAME)
        if news is not None:
            found.controller.metrics.write("event", news)
        stop.attach(found.controller)
        try:
            outcome = found.controller.run()
            return Finished(outcome, directory, _export(found) if not stop.signalled else None)
        except EngineDied as error:
            if _trainer_lives(found):
                raise
            raise _TrainerDied(error, found.controller.step) from error


def _nothing_to_lose(directory: Path, every: int) -> None:
    """Refuse to begin again where checkpoints should be."""
    rows = Follower(directory).rows() if begun(directory) else ()
    step = max((row["step"] for row in rows), default=0)
    if step >= every:
        raise InputError(
            f"{directory / 'checkpoints'}: holds no complete checkpoint, but {NAME} has reached step {step}; put the "
            "checkpoints back, or start again in another directory"
        )


def _trainer_lives(found: Run) -> bool:
    """Generators may have died of it: the weights that they start with are gone with it."""
    try:
        found.engines.trainer.check()
    except EngineDied:
        return False
    return bool(getattr(found.engines.trainer, "alive", True))  # one in this process has no way to die alone


def _export(found: Run) -> Path:
    path = found.directory / MODEL
    found.engines.export(path, found.origin.tokenizer)
    return path


class _Stop:
    """Requests to end: from a signal, which is in a hurry, or from a forecast."""

    def __init__(self) -> None:
        self.signalled: str | None = None
        self._controller: Controller | None = None
        self._asked = ""
        self._early = False

    @contextlib.contextmanager
    def early(self) -> Iterator[None]:
        """Within, a signal ends the run at once: engines may take longer to start than a preempted job has time."""
        if self.signalled:
            raise _StoppedEarly
        self._early = True
        try:
            yield
        finally:
            self._early = False

    def attach(self, controller: Controller) -> None:
        """Whom to ask from now on; what was asked before it was there counts."""
        self._controller = controller
        if self._asked:
            controller.stop(self._asked, self.signalled is not None)

    def ask(self, reason: str) -> None:
        """End soon."""
        self._asked = self._asked or reason
        if self._controller is not None:
            self._controller.stop(self._asked, self.signalled is not None)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """SIGTERM and the first Ctrl-C end the run with a checkpoint; the second Ctrl-C ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            self.signalled = signal.Signals(number).name
            signal.signal(signal.SIGINT, before[signal.SIGINT])
            self.ask(self.signalled)
            if self._early:
                raise _StoppedEarly

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
