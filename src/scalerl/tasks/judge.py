"""Judging in processes of their own, with limits on time and memory.

An answer is written by a policy that is paid for whatever the verifier lets through: `9**9**9**9` hangs a parser,
deeply nested LaTeX crashes one, and some scorers evaluate what they are given. Rules of what such an answer is worth:

- The judge returns a number: that is the reward.
- It uses up its time, raises or dies on the model's answer, but judges the reference answer without trouble: the answer
  cannot be judged, and is worth 0 (`hostile` counts these).
- It fails on the reference answer too, or waits long without using its time, as on an overloaded machine: the fault
  is not the model's; `VerifierError`, and the rollout is excluded.

The separate process protects the run against hanging and exhaustion. It is no sandbox against malicious code.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from scalerl.errors import InputError, VerifierError
from scalerl.tasks.printed import Notices, Printed

START_SECONDS = 120.0
SLOW_START_SECONDS = 10.0
POLL_SECONDS = 0.05
PRINTING_SECONDS = 0.002  # between two looks at what a verifier prints: not one for every line


class JudgeFailure(VerifierError):
    """The judging function timed out, raised, or its process died; `kind` names which."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.text = kind, message


class Judge:
    """A function that runs in worker processes; usable from several threads.

    Args:
        target: `module:function` or `path/to/file.py:function`.
        parameters: how many arguments it takes.
        seconds: limit on each call, in CPU time where the system tells it (Linux), so that a busy machine condemns no
            honest answer.
        patience: limit on each call in seconds of wall clock.
        prepare: a function of the same form, without arguments, that loads what the first call would wait for.
        memory_mb: what a worker may take beyond its imports; 0 for no limit.
        workers: how many calls can run at once. One spare more is kept ready, so that a timeout costs no start.
        paths: where else to look for the module.
    """

    def __init__(
        self,
        target: str,
        parameters: int,
        *,
        seconds: float = 1.5,
        patience: float = 15.0,
        prepare: str = "",
        memory_mb: int = 1024,
        workers: int = 1,
        paths: Sequence[str] = (),
    ) -> None:
        if not 0 < seconds <= patience < float("inf") or workers < 1 or memory_mb < 0:
            raise InputError(
                f"judge: seconds {seconds}, patience {patience}, workers {workers}, memory_mb {memory_mb}; "
                "0 < seconds <= patience, workers at least 1, memory_mb at least 0"
            )
        self.target, self.parameters, self.prepare = target, parameters, prepare
        self.seconds, self.patience = seconds, patience
        self.memory_mb, self.workers, self.paths = memory_mb, workers, list(paths)
        self.hostile = 0
        self._notices = Notices(target)
        self._lock = threading.Lock()
        self._idle: queue.SimpleQueue[_Worker] | None = None
        self._alive: set[_Worker] = set()
        self._finalizer = weakref.finalize(self, _stop_all, self._alive)

    def __call__(self, *arguments: Any) -> Any:
        """The function's value: a number, text or None.

        Raises:
            JudgeFailure: it timed out, raised, or its process died.
        """
        idle = self._pool()
        worker = idle.get()
        try:
            return worker.call(arguments, self.seconds, self.patience)
        finally:
            if not worker.usable:
                self._alive.discard(worker)
                worker.stop()
            with self._lock:
                if self._idle is idle:  # else it was closed meanwhile, and nobody would end a new one
                    # To the end of the queue, behind the spare that is ready.
                    idle.put(worker if worker.usable else self._start())

    def reward(self, answer: Sequence[Any], reference: Sequence[Any]) -> float:
        """The value for the model's answer, by the rules in the file's head.

        Args:
            answer: arguments with the model's answer. reference: the same with the right answer in its place.

        Raises:
            VerifierError: the reference answer cannot be judged either.
        """
        try:
            return float(self(*answer))
        except JudgeFailure as failure:
            if failure.kind == "Waited":
                raise
            try:
                self(*reference)
            except JudgeFailure as ours:
                raise VerifierError(f"even the reference answer cannot be judged ({ours})") from failure
            self.hostile += 1
            return 0.0

    def check(self) -> None:
        """Start now, so that a function that cannot be imported is refused before the run begins.

        Raises:
            InputError: naming the function and why.
        """
        idle = self._pool()
        worker = idle.get()
        try:
            worker.await_ready()
        except JudgeFailure as failure:
            raise InputError(f"verifier {self.target}: {failure}") from failure
        finally:
            idle.put(worker)

    def close(self) -> None:
        """End the workers; a later call starts new ones."""
        with self._lock:
            self._idle = None
            _stop_all(self._alive)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without its processes: a task can be handed to another process, which starts its own."""
        keys = ("seconds", "patience", "prepare", "memory_mb", "workers", "paths")
        return _rebuild, (self.target, self.parameters, {key: getattr(self, key) for key in keys})

    def _pool(self) -> queue.SimpleQueue[_Worker]:
        with self._lock:
            if self._idle is None:
                self._idle = queue.SimpleQueue()
                for _ in range(self.workers + 1):
                    self._idle.put(self._start())
            return self._idle

    def _start(self) -> _Worker:
        worker = _Worker(self, self._notices)
        self._alive.add(worker)
        return worker


class _Worker:
    """One process and its pipes."""

    def __init__(self, judge: Judge, notices: Notices) -> None:
        # Nothing is ever written to it: that its other end closes tells the process that this one is gone.
        lifeline, ours = os.pipe()
        self._lifeline = os.fdopen(ours, "wb", buffering=0)
        settings = {
            "target": judge.target,
            "parameters": judge.parameters,
            "prepare": judge.prepare,
            "alarm": judge.patience + 1.0,
            "memory_mb": judge.memory_mb,
            "paths": judge.paths,
            "lifeline": lifeline,
        }
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            # -P: a file of the user's called random.py must not stand in for the library's.
            [sys.executable, "-P", "-m", "scalerl.tasks.judge_worker", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[lifeline],
            env=os.environ | one_thread,
            start_new_session=True,  # Ctrl-C is the trainer's to handle; and children can be ended with it
        )
        os.close(lifeline)
        assert self.process.stderr is not None
        self._notices, self._printed = notices, Printed(self.process.stderr, notices)
        self.usable, self._ready = True, False
        self._pending = b""

    def await_ready(self) -> None:
        """Wait until the function is imported."""
        if not self._ready:
            self._receive(START_SECONDS, START_SECONDS, "not loaded")
            self._ready = True

    def call(self, arguments: Sequence[Any], seconds: float, patience: float) -> Any:
        """The function's value, or JudgeFailure."""
        self.await_ready()
        assert self.process.stdin is not None
        self._printed.forget()
        try:
            self.process.stdin.write(json.dumps(list(arguments)).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            self.usable = False
            raise JudgeFailure("Crash", f"the judging process was gone ({error})") from error
        return self._receive(seconds, patience)["value"]

    def stop(self) -> None:
        """Kill the process and what it started."""
        with contextlib.suppress(ProcessLookupError):  # gone already
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr, self._lifeline):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # unsent bytes for a process that is gone
                    pipe.close()

    def _receive(self, seconds: float, patience: float, failed: str = "no verdict") -> dict[str, Any]:
        """One reply; the worker counts as unusable unless it arrives whole."""
        usable, self.usable = self.usable, False
        try:
            message = self._reply(seconds, patience, failed)
            self.usable = usable and message.get("error") not in ("MemoryError", "RecursionError")
            if "error" in message:
                raise JudgeFailure(message["error"], message["message"])
        except JudgeFailure as failure:
            raise JudgeFailure(failure.kind, failure.text + self._printed.end()) from None
        self._printed.drain()
        return message

    def _reply(self, seconds: float, patience: float, failed: str) -> dict[str, Any]:
        """One line of the process, while what it prints is taken."""
        assert self.process.stdout is not None
        replies, printed = self.process.stdout.fileno(), self._printed.pipe.fileno()
        reply, anything = select.poll(), select.poll()  # unlike select(), they know descriptors above 1023
        reply.register(replies, select.POLLIN)
        anything.register(replies, select.POLLIN)
        anything.register(printed, select.POLLIN)
        began, used_before = time.monotonic(), self._cpu_seconds()
        while b"\n" not in self._pending:
            ready = reply.poll(1000 * PRINTING_SECONDS) if self._printed.drain() else anything.poll(1000 * POLL_SECONDS)
            if any(descriptor == replies for descriptor, _ in ready):
                part = os.read(replies, 65536)
                if not part:
                    raise JudgeFailure("Crash", f"the judging process died ({self._end()})")
                self._pending += part
                continue
            if self._printed.ended:
                anything = reply
            waited, used = time.monotonic() - began, self._cpu_seconds()
            spent = waited if used is None or used_before is None else used - used_before
            if spent >= seconds:
                raise JudgeFailure("Timeout", f"{failed} within {seconds:g} s")
            if waited >= patience:
                raise JudgeFailure("Waited", f"{failed} within {patience:g} s, {spent:.1f} s of them computing")
            if not self._ready and waited >= SLOW_START_SECONDS:
                self._notices.once("loading", f"is still being loaded; it is given up after {START_SECONDS:g} s")
        line, _, self._pending = self._pending.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _cpu_seconds(self) -> float | None:
        """CPU time of the process so far; None where the system does not tell."""
        try:
            with open(f"/proc/{self.process.pid}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _end(self) -> str:
        try:
            code = self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "closing its output"
        return f"signal {-code}" if code < 0 else f"exit status {code}"


def _stop_all(workers: set[_Worker]) -> None:
    while workers:
        workers.pop().stop()


def _rebuild(target: str, parameters: int, settings: dict[str, Any]) -> Judge:
    return Judge(target, parameters, **settings)
