"""W&B runs on the server, through the `wandb` client (`pip install 'scalerl[wandb]'`).

Addresses: `wandb://entity/project/run` or the URL of the run's page, also on a server of one's own.
The columns are those of `wandb_offline`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.runs.formats.series_rows import left_out
from scalerl.runs.formats.wandb_offline import scalars
from scalerl.runs.rows import RowCollector
from scalerl.runs.table import Table

_SHORT = re.compile(r"wandb:/{1,2}([^/]+)/([^/]+)/(?:runs/)?([^/?#]+)/?$")
_PAGE = re.compile(r"(https?):/{1,2}([^/]+)/([^/]+)/([^/]+)/runs/([^/?#]+)")
_BATCH = 5_000
_TIMEOUT = 30  # seconds


def matches(path: Path | str, head: bytes = b"") -> bool:
    """Whether `path` is the address of a run (`Path` folds `//` into `/`: both are taken)."""
    return bool(_SHORT.match(str(path)) or _PAGE.match(str(path)))


def read(address: str | Path) -> Table:
    """The full history of one run, unsampled.

    Raises:
        InputError: not an address, no client, not logged in, no such run, no network, or no history.
    """
    run_path, server = _parse(str(address))
    try:
        import wandb
    except ImportError:
        raise InputError(f"{address}: reading from W&B needs its client: pip install 'scalerl[wandb]'") from None
    collector, skipped = RowCollector(), dict[str, None]()
    try:
        api = wandb.Api(overrides={"base_url": server} if server else None, timeout=_TIMEOUT)
        run = api.run(run_path)
        batch: list[dict[str, Any]] = []
        for row in run.scan_history():
            batch.append(dict(scalars(row.items(), skipped)))
            if len(batch) == _BATCH:
                collector.add(batch)
                batch = []
        collector.add(batch)
        name, state = str(run.name or run.id), str(run.state)
    except Exception as error:  # the client raises its own, requests' and builtin errors: all mean "not read"
        raise InputError(f"{address}: {_reason(error)}") from error
    if not collector.count:
        raise InputError(f"{address}: the run has no history yet; has it logged anything with wandb.log?")
    notes = ["The run is still going on; this is its history so far."] if state == "running" else []
    if skipped:
        notes.append(left_out(list(skipped)))
    table = collector.table("W&B online", notes)
    table.text["run"] = [name] * table.rows
    return table


def _parse(address: str) -> tuple[str, str | None]:
    """(entity/project/run, server or None for the client's own setting)."""
    if short := _SHORT.match(address):
        return "/".join(short.groups()), None
    if page := _PAGE.match(address):
        scheme, host, *parts = page.groups()
        return "/".join(parts), None if host in ("wandb.ai", "www.wandb.ai") else f"{scheme}://{host}"
    raise InputError(f"{address}: no address of a W&B run; write wandb://entity/project/run or the URL of its page")


def _reason(error: Exception) -> str:
    """One line on what failed and how to mend it."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    low = text.lower()
    if "api key" in low or "api_key" in low or "log in" in low or "login" in low:
        return f"not logged in to W&B ({text}); run `wandb login` or set WANDB_API_KEY"
    if "not find" in low or "not found" in low or "404" in low:
        return f"no such run ({text}); check entity, project and the run's id (not its name)"
    return f"W&B did not answer ({text}); try again online, or export the run as CSV and read that"
