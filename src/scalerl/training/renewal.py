"""The forecast beside the run: made anew in a thread at each evaluation, written to forecast.json, never in the way."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from scalerl.errors import ForecastRefused
from scalerl.pipeline.metrics import Row, rows_of
from scalerl.training.settings import ForecastSettings
from scalerl.training.stop_when import StopWhen

NAME = "forecast.json"
_log = logging.getLogger("scalerl.training")
Points = dict[str, list[tuple[float, float, float]]]
UNITS = {"flops": "flop", "tokens": "token", "device_hours": "device-hour", "step": "step"}


class Renewal:
    """Collects evaluations and forecasts from them.

    Args:
        settings: axis, threshold, condition. directory: of the run. listener: is shown rows of kind "forecast".
    """

    def __init__(self, settings: ForecastSettings, directory: Path, listener: Callable[[Row], None]) -> None:
        self.settings, self.directory, self._listener = settings, directory, listener
        self._condition = None if settings.stop_when is None else StopWhen.parse(settings.stop_when)
        self._points: Points = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._ending = False
        self._step = 0

    def heard(self, row: Row) -> None:
        """A row of metrics.jsonl; evaluations are kept."""
        if row["kind"] != "eval" or row.get("pass_rate") is None:
            return
        compute = row["compute"]
        hours = compute["device_hours"]
        x: dict[str, float] = {"flops": compute["flops"], "tokens": compute["tokens"], "step": row["step"]}
        x["device_hours"] = sum(hours.values())
        with self._lock:
            points = self._points.setdefault(row["task"], [])
            points.append((float(x[self.settings.axis]), row["pass_rate"], row["trials"]))
            self._step = row["step"]
        self._news.set()

    def remember(self, metrics: Path) -> None:
        """Take in the evaluations of a run that goes on."""
        self._points.clear()
        for row in rows_of(metrics.read_bytes(), metrics):
            self.heard(row)
        self._news.clear()

    @contextlib.contextmanager
    def beside(self, stop: Callable[[str], None]) -> Iterator[None]:
        """Forecast while the body runs; the last evaluation is forecast before it ends."""
        thread = threading.Thread(target=self._work, args=(stop,), name="forecast", daemon=True)
        if self.settings.renew:
            thread.start()
        try:
            yield
        finally:
            self._ending = True
            self._news.set()
            if self.settings.renew:
                thread.join()

    def _work(self, stop: Callable[[str], None]) -> None:
        done: Points = {}
        while True:
            self._news.wait()
            ending = self._ending
            self._news.clear()
            with self._lock:
                points, step = {task: list(found) for task, found in self._points.items()}, self._step
            if points and points != done:
                done = points
                try:
                    self._renew(points, step, stop)
                except Exception:  # a forecast is a service to the run: whatever it meets, training goes on
                    _log.exception("the forecast at step %d failed; training goes on", step)
            if ending:
                return

    def _renew(self, points: Points, step: int, stop: Callable[[str], None]) -> None:
        answers, met = {}, []
        for task, found in points.items():
            answers[task], row = self._forecast(task, found)
            if row is not None and self._condition is not None:
                met.append(self._condition.holds(row))
        self._write({"schema": 1, "step": step, "axis": self.settings.axis, "tasks": answers})
        self._listener({"kind": "forecast", "step": step, "tasks": answers})
        if met and len(met) == len(points) and all(met):
            stop(f"{self._condition} holds at step {step}")

    def _forecast(self, task: str, found: list[tuple[float, float, float]]) -> tuple[dict[str, Any], Any]:
        """The answer of `scalerl forecast --json` for a task, and the row that the condition is about."""
        from scalerl.curves import forecast
        from scalerl.curves.fit import MIN_POINTS_FOR_VERDICT
        from scalerl.runs import Curve

        at = ["2x", *([] if self._condition is None else [self._condition.at])]
        try:
            compute, score, trials = zip(*found, strict=True)
            curve = Curve(compute, score, trials, unit=UNITS[self.settings.axis], name=task, score_name="pass_rate")
            fc = forecast(curve, at=at, threshold=self.settings.threshold)
        except ForecastRefused as error:
            few = f"a verdict needs {MIN_POINTS_FOR_VERDICT} evaluations, the run has {len(found)}"
            reason = few if len(found) < MIN_POINTS_FOR_VERDICT else str(error)
            return {"verdict": "NO-FORECAST", "reasons": [reason], "forecast": []}, None
        return fc.to_dict(), None if fc.verdict == "NO-FORECAST" else fc.table[-1]

    def _write(self, answer: dict[str, Any]) -> None:
        """Whole or not at all."""
        scratch = self.directory / f".{NAME}"
        scratch.write_bytes(orjson.dumps(answer, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))
        os.replace(scratch, self.directory / NAME)
