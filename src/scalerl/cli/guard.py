"""From any error to one line on stderr and an exit code: 0 answered, 2 unusable input, 3 refused, 1 a fault of ours."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from scalerl.cli.output import one_line, say, send_nowhere
from scalerl.errors import ScaleRLError

FAULT = 1
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
INTERRUPTED = 130
_REPORT = (
    "this is a fault of scalerl: please report it with the command and, if you can, the file "
    "(SCALERL_DEBUG=1 shows the traceback)"
)


def guarded(call: Callable[[], Any]) -> int:
    """Run a command and return its exit code; whatever it raises becomes one line.

    With SCALERL_DEBUG set, an unforeseen exception is raised on, with its traceback.
    """
    try:
        code = call()
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        say(f"{_where(error)}: {_usage(error)}")
        return 2
    except ScaleRLError as error:
        say(f"scalerl: {error}")
        return error.exit_code
    except OSError as error:
        if error.errno not in _FULL:
            return _fault(error)
        if error.filename is None and sys.stdout is not None:
            send_nowhere(sys.stdout)
        where = error.filename or "stdout"
        say(f"scalerl: {where}: cannot be written ({error.strerror}); free some space, or send the output elsewhere")
        return 2
    except Exception as error:
        return _fault(error)
    return code if isinstance(code, int) else 0


def _fault(error: Exception) -> int:
    if os.environ.get("SCALERL_DEBUG"):
        raise error
    say(f"scalerl: internal error, {type(error).__name__}: {one_line(str(error), 200)}; {_REPORT}")
    return FAULT


def _where(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "scalerl"


def _usage(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    return message if ";" in message else f"{message}; see {_where(error)} --help"
