"""Follow a run's metrics.jsonl while another process writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from scalerl.errors import InputError
from scalerl.pipeline.metrics import NAME, rows_of
from scalerl.training import renewal

Row = dict[str, Any]


def begun(directory: Path) -> bool:
    """Whether there is anything to follow."""
    return (directory / NAME).is_file()


class Follower:
    """Reads what is new at each call; a last line that is still being written waits for its end.

    Args:
        directory: of the run.

    Raises:
        InputError: there is no metrics.jsonl in it.
    """

    def __init__(self, directory: Path) -> None:
        self.path, self._forecast = directory / NAME, directory / renewal.NAME
        if not begun(directory):
            raise InputError(f"{directory}: no {NAME} there (yet); name the directory of a run")
        self._at, self._forecast_time = 0, 0.0

    def rows(self) -> Iterator[Row]:
        """New rows, and a row of kind "forecast" where forecast.json has changed."""
        if self.path.stat().st_size < self._at:  # a resumed run has cut off what it does again
            self._at = 0
        with self.path.open("rb") as file:
            file.seek(self._at)
            found = file.read()
        whole = found[: found.rfind(b"\n") + 1]
        try:
            rows = rows_of(whole, self.path)
        except InputError:
            if not self._at:
                raise
            self._at = 0  # it was cut and has grown again meanwhile: this is the middle of a line
            return
        self._at += len(whole)
        yield from rows
        yield from self._renewed()

    def _renewed(self) -> Iterator[Row]:
        try:
            changed = self._forecast.stat().st_mtime
            if changed != self._forecast_time:
                answer = orjson.loads(self._forecast.read_bytes())
                self._forecast_time = changed
                yield {"kind": "forecast", "step": answer["step"], "tasks": answer["tasks"]}
        except FileNotFoundError:
            return
