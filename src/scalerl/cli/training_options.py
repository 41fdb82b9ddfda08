"""What the commands that train share: the extra they need, and how they show themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.training.progress import Progress
    from scalerl.training.train import Finished
    from scalerl.training.verdicts import Judged

quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object at the end; progress on stderr.")


def need_torch() -> None:
    """Refuse where the extra is not installed.

    Raises:
        InputError: saying what to install.
    """
    missing = [name for name in ("torch", "transformers", "safetensors") if find_spec(name) is None]
    if missing:
        raise InputError(f"training needs {', '.join(missing)}, not installed here: pip install 'scalerl[train]'")


@contextmanager
def shown(steps: int, as_json: bool, quiet: bool) -> Iterator[Progress]:
    """Progress of a run; warnings of the run's parts go the same way."""
    from rich.console import Console
    from rich.logging import RichHandler

    from scalerl.training.progress import Progress

    console = Console(stderr=as_json)
    handler = RichHandler(console=console, show_time=False, show_path=False, rich_tracebacks=False)
    log = logging.getLogger("scalerl")
    log.addHandler(handler)
    try:
        with Progress(steps, console, quiet) as progress:
            yield progress
    finally:
        log.removeHandler(handler)


def tell(finished: Finished, as_json: bool) -> int:
    """How the run ended; always exit code 0, as a stop that was asked for is no failure."""
    from scalerl.cli.output import print_json
    from scalerl.training.ingredients import ingredients, rows_of
    from scalerl.training.resolve import read
    from scalerl.training.verdicts import newest, of_training

    directory, outcome = finished.directory, finished.outcome
    model = None if finished.model is None else str(finished.model)
    rows = rows_of(directory)
    seen = ingredients(read(directory).recipe, rows)
    train, evals = newest(rows)
    judged = of_training(train)
    if as_json:
        kept = ("step", "pass_rate", "trials", "excluded", "mean_at")
        print_json(
            {
                "schema": 1, "directory": str(directory), "step": outcome.step, "reason": outcome.reason,
                "model": model, "ingredients": [asdict(i) for i in seen],
                "held_out": {task: {key: row.get(key) for key in kept} for task, row in evals.items()},
                "training": {task: asdict(found) for task, found in judged.items()},
            }
        )  # fmt: skip
        return 0
    _show([(i.name, i.setting, i.seen) for i in seen])
    _show_scores(rows, judged)
    if model is None:
        click.echo(f"{outcome.reason} at step {outcome.step}; to go on: scalerl resume {directory}")
    else:
        click.echo(f"ended at step {outcome.step} ({outcome.reason}); model in {model}; scalerl forecast {directory}")
    return 0


def _show(ingredients: list[tuple[str, str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for words in ingredients:
        table.add_row(*words)
    if ingredients:
        Console(highlight=False).print("\nThe recipe at work", table, "", sep="\n")


def _show_scores(rows: list[Mapping[str, Any]], judged: Mapping[str, Judged]) -> None:
    """Held-out scores, and what could not be judged: never left to be found in metrics.jsonl."""
    from scalerl.training.progress import held_out

    evals: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "eval":
            evals.setdefault(row["task"], []).append(row)
    for task, found in evals.items():
        click.echo(f"held-out {task}: {held_out(found)}")
    for task, counts in judged.items():
        if counts.excluded:
            click.echo(f"training {task}: {counts}, as the verifier failed on them; mend it, or the rows")
