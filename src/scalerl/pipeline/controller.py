"""The loop: submit prompts, collect and judge rollouts, train batches, send weights; beside it evaluate and save.

It knows engines only by the protocols of floor 0 and never waits for one of them while another has something to give.
Every turn costs a few comparisons; work is done a rollout, a group, a step. Left out on purpose: what is put together
here (that is `training/`), and replacing a dead trainer, which needs the checkpoint: `EngineDied` leaves `run`, and a
controller that is restored from the newest checkpoint goes on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from scalerl.errors import CheckpointError, InputError, VerifierError
from scalerl.pipeline.admission import Admission
from scalerl.pipeline.buffer import Buffer
from scalerl.pipeline.checkpoint import Checkpoints
from scalerl.pipeline.clocks import Clocks
from scalerl.pipeline.evaluation import Evaluation
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.metrics import MetricsLog
from scalerl.pipeline.rows import fleet_counts, refuse_unjudged, train_row, verdicts
from scalerl.pipeline.sampler import Sampler
from scalerl.pipeline.saving import Saver
from scalerl.pipeline.schedule import Schedule
from scalerl.pipeline.settings import ControllerSettings, Outcome
from scalerl.pipeline.stepper import Done, Stepper
from scalerl.pipeline.verification import Verification
from scalerl.protocols import GeneratorPool, Trainer, WeightSource
from scalerl.recipe.assemble import make_batch
from scalerl.recipe.recipe import Recipe
from scalerl.types import Rollout

GRACE = 5.0
"""Seconds that a step in lockstep has to end once the run must stop, while answers are still being judged."""


class Controller:
    """One run.

    Args:
        recipe, sampler, ledger, metrics, checkpoints: of the run; `metrics` was opened at `metrics_size` on a resume.
        generator: of training. trainer: loaded from the same checkpoint as `restore` is given.
        verification: of training rollouts; its keys are (group_id, place). evaluation: None for none.
        counts: more metrics for each row, such as `Guard.counts`.
    """

    def __init__(
        self,
        recipe: Recipe,
        settings: ControllerSettings,
        *,
        sampler: Sampler,
        generator: GeneratorPool,
        trainer: Trainer,
        verification: Verification[tuple[int, int]],
        ledger: Ledger,
        metrics: MetricsLog,
        checkpoints: Checkpoints,
        evaluation: Evaluation | None = None,
        counts: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.recipe, self.settings, self.schedule = recipe, settings, Schedule.of(recipe)
        self.sampler, self.generator, self.trainer, self.ledger = sampler, generator, trainer, ledger
        self.metrics, self.checkpoints, self.evaluation, self.counts = metrics, checkpoints, evaluation, counts
        if evaluation is not None and evaluation.generator is generator and self.schedule.overlap:
            raise ValueError("evaluation beside training needs a generator of its own")
        settings.check(recipe)
        self.step = 0
        self._verification = verification
        self._buffer = self._new_buffer()
        self._stepper = Stepper(trainer, self.schedule.overlap)
        self._source: WeightSource | None = None
        self._sent = 0  # version of the weights that the generator has been given
        self._exhausted = False
        self._due = settings.evaluate_every > 0 and evaluation is not None
        self._due_at = 0
        self._spent: dict[str, Any] = {}  # when the evaluation under way began
        self._saver = Saver(checkpoints, trainer, self._event, beside=self.schedule.overlap)
        self._asked: str | None = None  # why to stop
        self._whole = True  # no step was broken off
        self._clocks = Clocks()

    def run(self) -> Outcome:
        """Train until the last step, until `stop`, or until every prompt is retired; a last checkpoint is written.

        Raises:
            EngineDied: the trainer, or the last of the generators. CheckpointError: of the last checkpoint.
            VerifierError: the verifier is broken.
        """
        try:
            self._publish()
            if requests := self._buffer.start_again(self._sent):
                self.generator.submit(requests)
            for group_id, place, rollout in self._buffer.unjudged():
                self._verification.submit((group_id, place), rollout)
            self._evaluate()
            while (reason := self._reason()) is None:
                self._clocks.turn(self._buffer.unfinished > 0)
                if not self._turn():
                    with self._clocks.phase("sleep"):
                        time.sleep(self.settings.pause)
            self._wait_for_evaluation()
            if self.settings.checkpoint_every and self._whole:
                with self._clocks.phase("checkpoint"):
                    self._saver.last(self.step, self._snapshot, self.metrics.path.parent)
            self._event("end", reason=reason, outstanding_groups=len(self._buffer))
            return Outcome(self.step, reason)
        except (CheckpointError, VerifierError) as error:
            with contextlib.suppress(InputError):  # the log's disk may be as full
                self._event("end", reason=f"failed: {error}")
            raise
        finally:
            self.close()

    def stop(self, reason: str, hurry: bool = True) -> None:
        """End after the step under way, with a checkpoint; callable from a signal handler or another thread.

        No further answer is judged; those left are judged after a resume. In lockstep, where nothing is saved within a
        step, judging goes on until the step is taken, but in a `hurry` for `GRACE` seconds only: then the step is given
        up, and a resume begins at the checkpoint before.
        """
        now = time.monotonic()
        self._asked = self._asked or reason
        self._verification.until = now if self.schedule.overlap else now + GRACE if hurry else float("inf")
        if self.evaluation is not None:
            self.evaluation.halt()

    def close(self) -> None:
        """End threads and the metrics file; engines belong to whoever made them."""
        for owner in (self._verification, self.evaluation, self._stepper, self._saver):
            if owner is not None:
                owner.close()
        self.metrics.close()

    def _reason(self) -> str | None:
        if self._stepper.busy:
            return None
        if self._asked is not None and self._may_stop():
            return f"stopped: {self._asked}" + ("" if self._whole else ", within a step")
        if self.step >= self.settings.steps:
            return "steps"
        return "all prompts retired" if self._exhausted and len(self._buffer) < self.recipe.prompts_per_step else None

    def _may_stop(self) -> bool:
        if self.schedule.overlap or not len(self._buffer):
            return True
        self._whole = not self._verification.overdue
        return not self._whole

    @property
    def _ending(self) -> bool:
        return self._asked is not None and self.schedule.overlap

    def _turn(self) -> bool:
        """Everything that can be done now; whether that was anything."""
        self._stepper.check()
        for event in self.generator.news():
            self._event(**event)
        if not self._stepper.busy:
            self._saver.poll()
        return any([self._submit(), self._collect(), self._train(), self._poll_evaluation()])  # all of them, each time

    def _submit(self) -> bool:
        if self._exhausted or self._ending or not self.schedule.renews(len(self._buffer)):
            return False
        needed = (self.settings.steps - self.step) * self.recipe.prompts_per_step - len(self._buffer)
        requests = []
        for _ in range(min(self._buffer.admission.free, needed)):
            prompt = self.sampler.draw()
            if prompt is None:
                self._exhausted = True
                break
            entry = self._buffer.submit(prompt, self._sent)
            requests += [(entry.group_id, prompt)] * self.recipe.generations
        if requests:
            if not self.schedule.overlap:
                self.generator.reseed(self.settings.seed, 0, self.step)
            self.generator.submit(requests)
        return bool(requests)

    def _collect(self) -> bool:
        with self._clocks.phase("engine"):
            rollouts = self.generator.poll()
        with self._clocks.phase("verify"):
            for rollout in rollouts:
                self._accept(rollout)
            judged = self._judge()
        return bool(rollouts) or judged

    def _accept(self, rollout: Rollout) -> None:
        self.ledger.generated(len(rollout.prompt.token_ids), len(rollout.token_ids))
        place = self._buffer.add(rollout)
        if place is not None and rollout.finish_reason == "late":
            self._verdict(rollout.group_id, place, None)
        elif place is not None:
            self._verification.submit((rollout.group_id, place), rollout)
        elif self._buffer.wants(rollout.group_id):
            self.generator.submit([(rollout.group_id, rollout.prompt)])

    def _judge(self) -> bool:
        judged = self._verification.poll()
        for (group_id, place), _, reward in judged:
            self._verdict(group_id, place, reward)
        return bool(judged)

    def _verdict(self, group_id: int, place: int, reward: float | None) -> None:
        finished = self._buffer.judge(group_id, place, reward)
        if finished is not None:
            self.sampler.record(finished.prompt, *verdicts(finished))

    def _train(self) -> bool:
        if self._stepper.busy:
            done = self._stepper.take()
            if done is not None:
                self._finish_step(done)
            return done is not None
        if self._ending or (self.schedule.whole and self._buffer.unfinished):
            return False
        entries = self._buffer.take()
        if entries is None:
            return False
        with self._clocks.phase("assemble"):
            batch = make_batch([entry.group() for entry in entries], self.recipe, self.step)
            refuse_unjudged(entries, self.counts(), self.step + 1)
        self._stepper.begin(entries, batch)
        return True

    def _finish_step(self, done: Done) -> None:
        self._clocks.train = done.seconds
        self._buffer.trained(done.entries)
        self.step += 1
        if self.schedule.renews(len(self._buffer)):
            self._publish()
        self.ledger.trained(len(done.batch.token_ids))
        row = train_row(self.recipe, done.batch, done.entries, done.stats, self._buffer, self.sampler)
        generator = self.generator.state()
        wall, busy, spent = self._clocks.restart(generator, inline=not self.schedule.overlap)
        self.ledger.generators = float(generator.get("devices", self.ledger.generators))  # engines join and leave
        self.ledger.time(wall, busy, spent["seconds_train"])
        self._write("train", row | fleet_counts(generator) | spent | dict(self.counts()))
        every = self.settings.evaluate_every
        last = self.step == self.settings.steps
        if every and self.evaluation is not None and (last or self.step % every == 0):
            if self._due:  # the one before has waited until now for another to end
                reason = f"that of step {self._due_at}, as another still ran; if this goes on, raise evaluation.every"
                self._event("evaluation skipped", reason=reason)
            self._due, self._due_at = True, self.step
        self._evaluate()
        every = self.settings.checkpoint_every
        if every and self.step % every == 0:
            with self._clocks.phase("checkpoint"):
                self._saver.begin(self.step, self._snapshot)

    def _publish(self) -> None:
        with self._clocks.phase("publish"):
            self._source, self._sent = self.trainer.weights(), self.step
            self.generator.update_weights(self._sent, self._source)

    def _evaluate(self) -> None:
        """Begin the evaluation that is due, unless another runs; called only while no step is under way."""
        if not self.schedule.overlap:
            self._wait_for_evaluation()
        elif self._due and self.evaluation is not None and not self.evaluation.running:
            self._begin_evaluation(self.evaluation)

    def _begin_evaluation(self, evaluation: Evaluation) -> None:
        self._due, self._spent = False, self.ledger.compute()
        evaluation.begin(self.step, self.step, self.trainer.weights())

    def _poll_evaluation(self) -> bool:
        """Also while none runs, so that an evaluator that died is missed at once; in lockstep it is the generator."""
        if self.evaluation is None or not (self.schedule.overlap or self.evaluation.running):
            return False
        result = self.evaluation.poll()
        for event in self.evaluation.generator.news():
            self._event(**event)
        if result is None:
            return False
        self.ledger.evaluated(result.seconds, result.prompt_tokens, result.tokens)
        compute = self.ledger.compute()
        for row in result.rows:  # training has gone on: the score belongs to what its policy had cost
            spent = self._spent | {"evaluation": compute["evaluation"]}
            self._write("eval", row | {"seconds_evaluation": result.seconds, "compute": spent})
        self._saver.step = -1  # a checkpoint of this step does not know it, and the run would evaluate again
        return True

    def _wait_for_evaluation(self) -> None:
        """Until none runs or is due. Who stops the run does not wait: the resumed run evaluates first."""
        with self._clocks.phase("evaluate"):
            while self._asked is None and self.evaluation is not None and (self.evaluation.running or self._due):
                if not self.evaluation.running:
                    self._begin_evaluation(self.evaluation)
                if not self._poll_evaluation():
                    time.sleep(self.settings.pause)

    def _write(self, kind: str, row: Mapping[str, Any]) -> None:
        own: dict[str, Any] = {"step": self.step, "policy_version": self.step}
        self.metrics.write(kind, {**own, "compute": self.ledger.compute(), **row})

    def _event(self, event: str, **more: Any) -> None:
        self.metrics.write("event", {"step": self.step, "event": event, **more})

    def _new_buffer(self) -> Buffer:
        admission = Admission(
            self.recipe.prompts_per_step, self.schedule.max_staleness, self.settings.capacity, self.step
        )
        return Buffer(admission, self.recipe.generations, in_order=self.schedule.whole)

    def _snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """State and arrays of everything but the trainer, as of the last step."""
        self._judge()
        buffer, arrays = self._buffer.state()
        running = self.evaluation is not None and self.evaluation.running
        state = {
            "step": self.step, "due": self._due or running, "sampler": self.sampler.state(),
            "buffer": buffer, "ledger": self.ledger.state(), "metrics_size": self.metrics.sync(),
        }  # fmt: skip
        return state, arrays

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was taken; before `run`, with the trainer loaded from the same one.

        Raises:
            CheckpointError: it does not fit this run's recipe.
        """
        self.step = self._saver.step = int(state["step"])
        self.sampler.restore(state["sampler"])
        self.ledger.restore(state["ledger"])
        self._due, self._due_at = bool(state["due"]) and self.evaluation is not None, self.step
        self._buffer = self._new_buffer()
        try:
            self._buffer.restore(state["buffer"], arrays, self.sampler.prompt)
        except RuntimeError as error:
            raise CheckpointError(
                f"the checkpoint does not fit the recipe ({error}): resume with its own settings"
            ) from error
