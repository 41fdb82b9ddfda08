"""A `Generator` over an engine that serves token requests: vLLM in this process's keeping, or a server.

Prompts wait here and not in the engine, so that what the engine has runs at once: at most `slots` rollouts. An update
copies the weights while generation goes on, pauses between two tokens, loads, labels, and resumes; running rollouts
keep their KV cache. The prefix cache is salted with the policy version that a rollout started under, so that blocks of
older weights never serve a new rollout (TRAPS 22). What had not sampled its first token when the engine paused starts
again under the new version.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from scalerl.engines.generator import GeneratorSettings
from scalerl.engines.token_requests import RolloutPlan, TokenEngine, generate
from scalerl.errors import InputError
from scalerl.protocols import WeightSource
from scalerl.types import Prompt, Rollout

_NEWS_SECONDS = 0.005
"""How long a step waits for a rollout to finish."""
_T = TypeVar("_T")


class _Job:
    """A rollout that runs."""

    def __init__(self, group_id: int, prompt: Prompt) -> None:
        self.group_id, self.prompt = group_id, prompt
        self.started = False
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.started = True


class VLLMGenerator:
    """See `scalerl.protocols.Generator`. `step` only waits: the engine generates by itself.

    Args:
        engine: what completes tokens; opened here. version: of the weights that it starts with.
    """

    def __init__(self, engine: TokenEngine, settings: GeneratorSettings, version: int = 0) -> None:
        self.engine, self.settings, self.version = engine, settings, version
        self._rng, self._seeded = np.random.default_rng(settings.seed), False
        self._queue: deque[tuple[int, Prompt]] = deque()
        self._jobs: set[_Job] = set()
        self._finished: deque[Rollout] = deque()
        self._failure: BaseException | None = None
        self._updating = False
        self._news = threading.Event()
        self.tokens_generated = self.restarted = self.updates = 0
        self.update_pause = self.update_copy = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        try:
            self._call(engine.open(version))
        except BaseException:
            self.close()
            raise

    def submit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        """Queue one rollout for each (group_id, prompt).

        Raises:
            InputError: a prompt is empty or longer than `prompt_tokens`.
        """
        for group_id, prompt in prompts:
            if not 0 < len(prompt.token_ids) <= self.settings.prompt_tokens:
                raise InputError(
                    f"prompt {prompt.prompt_id} of task {prompt.task} has {len(prompt.token_ids)} tokens; "
                    f"the generator takes 1 to {self.settings.prompt_tokens}: raise prompt_tokens or filter the task"
                )
            self._queue.append((group_id, prompt))
        self._loop.call_soon_threadsafe(self._fill)

    def poll(self) -> list[Rollout]:
        """Rollouts that have finished since the last call.

        Raises:
            ScaleRLError: the engine died, or refused a request.
        """
        if self._failure is not None:
            raise self._failure
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def update_weights(self, version: int, source: WeightSource) -> None:
        """Use these weights from the next token on; returns when they are in use and checked.

        Raises:
            ScaleRLError: what the engine holds is not what was sent; nothing is generated until an update succeeds.
        """
        started = time.perf_counter()
        staged = self.engine.stage(version, source)
        self.update_copy += time.perf_counter() - started
        self._call(self._update(version, staged))

    def state(self) -> Mapping[str, Any]:
        """Counters for the ledger and for balancing; seconds paused and seconds copied are of all updates together."""
        return {
            "version": self.version,
            "running": len(self._jobs),
            "queued": len(self._queue),
            "tokens_generated": self.tokens_generated,
            "updates": self.updates,
            "restarted": self.restarted,
            "seconds_update_pause": self.update_pause,
            "seconds_update_copy": self.update_copy,
        }

    def reseed(self, seed: int) -> None:
        """Draw anew, and from now on give every request a seed of its own, so that what it draws can be repeated."""
        self._rng, self._seeded = np.random.default_rng(seed), True

    @property
    def idle(self) -> bool:
        """Whether nothing is asked of the engine."""
        return not self._queue and not self._jobs

    def step(self) -> None:
        """Wait a few milliseconds for a rollout to finish."""
        self._news.wait(_NEWS_SECONDS)
        self._news.clear()

    def close(self) -> None:
        """End the engine and its processes; a second call does nothing."""
        if self._loop.is_closed():
            return
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # What follows runs in the loop's thread.

    def _fill(self) -> None:
        while not self._updating and self._queue and len(self._jobs) < self.settings.slots:
            job = _Job(*self._queue[0])
            self._jobs.add(job)  # before it leaves the queue: another thread never sees both empty
            self._queue.popleft()
            job.task = self._loop.create_task(self._run(job, self._plan()))

    def _plan(self) -> RolloutPlan:
        limits, (low, high) = self.settings.limits, self.settings.limits.thinking
        budget = int(self._rng.integers(low, high + 1)) if limits.interrupts else 0
        first, second = (int(s) for s in self._rng.integers(0, 1 << 31, 2)) if self._seeded else (None, None)
        return RolloutPlan(limits, budget, self.settings.temperature, str(self.version), (first, second))

    async def _run(self, job: _Job, plan: RolloutPlan) -> None:
        try:
            rollout = await generate(self.engine.complete, job.group_id, job.prompt, plan, job.start)
            self.tokens_generated += int(np.count_nonzero(rollout.loss_mask))
            self._finished.append(rollout)
        except Exception as error:  # told to whoever polls: nothing would notice it here
            self._failure = self._failure or error
        finally:
            self._jobs.discard(job)
            self._news.set()
        self._fill()

    async def _update(self, version: int, staged: Any) -> None:
        self._updating = True
        started = time.perf_counter()
        await self.engine.pause()
        await self._take_back([job for job in self._jobs if not job.started])
        await self.engine.load(version, staged)
        self.version = version
        await self.engine.resume()
        self.update_pause += time.perf_counter() - started
        self.updates += 1
        self._updating = False
        self._fill()

    async def _take_back(self, jobs: Sequence[_Job]) -> None:
        """Abort what has no token yet: it would begin under the new weights with cached keys of the old."""
        for job in jobs:
            assert job.task is not None
            job.task.cancel()
        await asyncio.gather(*(job.task for job in jobs if job.task), return_exceptions=True)
        self._queue.extendleft((job.group_id, job.prompt) for job in jobs)
        self._jobs.difference_update(jobs)  # one that was cancelled before its first line has not taken itself out
        self.restarted += len(jobs)

    async def _close(self) -> None:
        self._updating = True
        tasks = [job.task for job in self._jobs if job.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.engine.close()
