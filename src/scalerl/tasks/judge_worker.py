"""The process in which answers are judged that may hang, eat memory or crash; started by `judge.py`, never by hand.

Speaks JSON, one object a line: `{"ready": true}` once the function is imported, then for each `[arguments]` a
`{"value": ...}` or `{"error": ..., "message": ...}`.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import importlib.util
import inspect
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from scalerl.tasks.guard import digits
from scalerl.tasks.nearest import suggestion


def main(
    target: str, parameters: int, prepare: str, alarm: float, memory_mb: int, paths: list[str], lifeline: int
) -> None:
    """Serve calls of `module:function` (or `file.py:function`) until the input ends."""
    end_with_parent(lifeline)
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # a function that reads its input must not take the requests
    os.close(nothing)
    os.dup2(2, 1)  # what it prints must not mix with the replies
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what it printed before it hung is wanted in the message
    sys.path += paths
    try:
        function = load(target, parameters)
        if prepare:
            load(prepare, 0)()
    except Exception as error:
        reply(replies, failure(error))
        return
    if memory_mb:
        limit_memory(memory_mb)
    reply(replies, {"ready": True})
    for line in requests:
        # Should the parent be killed meanwhile, the alarm's default action ends this process even inside C code.
        signal.setitimer(signal.ITIMER_REAL, alarm)
        answer, worn = call(function, json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        reply(replies, answer)
        if worn:
            return


def end_with_parent(lifeline: int) -> None:
    """From now on the kernel kills this process once the parent's end of the pipe is closed, even while it computes.

    Not by PR_SET_PDEATHSIG: that goes by the thread that started this process, and threads of the trainer end.
    """
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    ended = select.poll()
    ended.register(lifeline, select.POLLIN)
    if ended.poll(0):  # before the kernel was asked
        os._exit(0)


def call(function: Callable[..., Any], arguments: list[Any]) -> tuple[dict[str, Any], bool]:
    """The reply, and whether this process is better replaced: after running out of memory or stack."""
    try:
        value = function(*arguments)
    except (MemoryError, RecursionError) as error:
        return failure(error), True
    except (Exception, SystemExit) as error:
        return failure(error), False
    if hasattr(value, "item"):  # scalars of numpy and torch
        with contextlib.suppress(Exception):
            value = value.item()
    if isinstance(value, int) and value.bit_length() > 1024:  # above floats; as JSON it might be refused
        message = f"it returned an integer of {digits(value):,} digits; it must return a number from -1 to 1"
        return {"error": "VerifierError", "message": message}, False
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}, False
    return {"error": "TypeError", "message": f"returned {type(value).__name__}; it must return a number"}, False


def load(target: str, parameters: int) -> Callable[..., Any]:
    """The function named `module:function` or `file.py:function`.

    Raises:
        ImportError, AttributeError, TypeError: it is not there, or cannot take `parameters` arguments.
    """
    place, _, name = target.rpartition(":")
    module: Any
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        if spec is None or spec.loader is None:
            raise ImportError(f"{place} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(spec.name, module)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    function = getattr(module, name, None)
    if function is None:
        own = [found for found, value in vars(module).items() if inspect.isfunction(value) and found[0] != "_"]
        raise AttributeError(f"{place} has no function {name}: {suggestion(name, own)}")
    if not callable(function):
        raise TypeError(f"{name} is no function")
    with contextlib.suppress(ValueError):  # built-in functions without a signature
        inspect.signature(function).bind(*[None] * parameters)
    return function  # type: ignore[no-any-return]


def limit_memory(memory_mb: int) -> None:
    """Allow so much beyond what the imports have taken; no core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere the address space cannot be limited, and the time limit must do
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        top = pages * resource.getpagesize() + memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (top, top))


def failure(error: BaseException) -> dict[str, Any]:
    """An exception as a reply."""
    return {"error": type(error).__name__, "message": str(error)[:500]}


def reply(stream: TextIO, message: dict[str, Any]) -> None:
    """Send one line."""
    stream.write(json.dumps(message) + "\n")
    stream.flush()


if __name__ == "__main__":
    try:
        main(**json.loads(sys.argv[1]))
    except BrokenPipeError:  # the parent is gone, and nobody left to tell; closing the pipe would raise again
        os._exit(1)
