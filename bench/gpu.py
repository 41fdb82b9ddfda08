"""Generator, trainer, weight update and mismatch on one GPU, within ten minutes; see gpu.md for what each number means.

    bash bench/gpu.sh [--cpu] [--model FOLDER] [--minutes 10] [--out FOLDER]

Prints one JSON line a question and a table; both, and the log, are kept below --out. Each part runs in a process of its
own and ends when its time does. What fails is told in its line, the rest goes on, and the exit code is 1.
`gpu.sh` makes the environment; without a GPU, --cpu runs the same code with a tiny model, which says nothing of a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

Line = dict[str, Any]
_HERE = Path(__file__).resolve().parent
_CLOSING = 20.0
"""Seconds that a part may take to close after its last answer."""
_ERROR = re.compile(r"\b[A-Za-z_.]*(?:Error|Exception): .*")


@dataclass(frozen=True)
class Part:
    """What one process answers, and the share of all time by whose end it has ended."""

    name: str
    questions: tuple[str, ...]
    until: float


def parts(cpu: bool) -> list[Part]:
    """In their order: what matters most comes first."""
    update = "update_shared" if cpu else "update_ipc"
    last = ("generator_head_bf16", "mismatch_head_bf16") + (() if cpu else ("update_shared",))
    return [
        Part("fp32", ("generator_head_fp32", "mismatch_head_fp32", update), 0.5),
        Part("trainer", ("trainer", "trainer_activation_checkpointing", "trainer_head_bf16"), 0.75),
        Part("bf16", last, 1.0),
    ]


def ask(
    command: Sequence[str], questions: Sequence[str], seconds: float, log: TextIO, tell: Callable[[Line], None]
) -> None:
    """Run a part, and tell each of its lines as it comes; a failure for each question that it leaves open."""
    began, open_questions = log.tell(), list(questions)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True) as process:

        def listen() -> None:
            assert process.stdout is not None
            for text in process.stdout:
                line = json.loads(text)
                open_questions.remove(line["question"])
                if "failed" in line and (cause := last_error(Path(log.name), began)):
                    line["log_says"] = cause
                tell(line)

        listener = threading.Thread(target=listen)
        listener.start()
        deadline, closing = time.monotonic() + seconds, False
        try:
            while (code := process.poll()) is None and time.monotonic() < deadline:
                time.sleep(0.1)
                if not open_questions and not closing:  # all is said: it need only close
                    deadline, closing = min(deadline, time.monotonic() + _CLOSING), True
        finally:  # vLLM's processes are of the same group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        listener.join()
    how = f"not done within {seconds:.0f} s" if code is None else f"its process ended with {code}"
    for question in list(open_questions):
        cause = last_error(Path(log.name), began)
        tell({"question": question, "failed": how} | ({"log_says": cause} if cause else {}))


def last_error(log: Path, start: int) -> str | None:
    """The last line of a log, from a byte on, that names an error."""
    with open(log, errors="replace") as file:
        file.seek(start)
        found = [match[0].strip() for line in file if (match := _ERROR.search(line))]
    return found[-1][:300] if found else None


def with_shares(line: Line, machine: Line) -> Line:
    """A line with MFU and share of the memory's bandwidth, of the peaks that the machine's line names."""
    flops, bandwidth = 1e12 * machine["peak_tflops"], 1e9 * machine["peak_gb_per_second"]
    line = dict(line)
    if "runs" in line:
        line["runs"] = [with_shares(run, machine) for run in line["runs"]]
    if "flops_per_second" in line:
        line["mfu"] = float(f"{line.pop('flops_per_second') / flops:.3g}")
    if "bytes_per_second" in line:
        line["bandwidth_share"] = float(f"{line.pop('bytes_per_second') / bandwidth:.3g}")
    return line


def table(machine: Line, lines: Sequence[Line]) -> str:
    """For people."""
    rows = [(question, text) for line in lines for question, text in _rows(line)]
    width = max((len(question) for question, _ in rows), default=0)
    peak = f"peak {machine['peak_tflops']} TFLOP/s, {machine['peak_gb_per_second']} GB/s ({machine['peak_from']})"
    head = f"{machine['device']}, {machine['model']}, {peak}"
    if machine["device"] == "cpu":
        head += "\nCPU dry-run: says nothing of a GPU"
    return "\n".join([head, *(f"{question:{width}}  {text}" for question, text in rows)])


def _rows(line: Line) -> list[tuple[str, str]]:
    name = line["question"]
    if "failed" in line:
        says = f"; the log says {line['log_says']}" if "log_says" in line else ""
        return [(name, f"FAILED: {line['failed']}{says}")]
    if "runs" in line:
        return [(f"{name}, {run['at_once']} at once", _speed(run)) for run in line["runs"]]
    if "pause_ms" in line:
        span = f"{line['spanning']} of {line['running']} requests span versions"
        return [(name, f"pause {line['pause_ms_median']:g} ms, {span}, {line['tokens_lost']} tokens lost")]
    if "mismatch_kl" in line:
        spread = f"mean / max |delta log p| {line['delta_mean_abs']:g} / {line['delta_max_abs']:g}"
        return [(name, f"KL {line['mismatch_kl']:g}, {spread}, outside .8-1.25 {line['share_outside_.8_to_1.25']:.2%}")]
    return [(name, _speed(line))]


def _speed(line: Line) -> str:
    text = f"{line['tokens_per_second']:,.0f} tokens/s, MFU {line['mfu']:.1%}"
    if "bandwidth_share" in line:
        text += f", bandwidth {line['bandwidth_share']:.1%}"
    return text + (f", {line['memory_gib']} GiB" if line.get("memory_gib") else "")


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="a dry-run without a GPU, with a tiny model")
    parser.add_argument("--model", type=Path, help="folder as Hugging Face writes it; default: random weights")
    parser.add_argument("--minutes", type=float, default=10.0, help="for everything together")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for results and log")
    asked = parser.parse_args()
    if not 1 <= asked.minutes <= 24 * 60:
        parser.error(f"--minutes {asked.minutes}: it must be 1 to 1440")
    if asked.model is not None and not (asked.model / "config.json").is_file():
        parser.error(f"--model {asked.model}: no Hugging Face model there; name a folder with config.json")
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in ("results.jsonl", "table.txt", "log.txt"):  # of an earlier time
        (asked.out / name).unlink(missing_ok=True)
    with open(asked.out / "log.txt", "a") as log, open(asked.out / "results.jsonl", "a") as results:
        return measure(asked, log, results)


def measure(asked: argparse.Namespace, log: TextIO, results: TextIO) -> int:
    """All parts one after the other."""
    started, lines = time.monotonic(), list[Line]()
    total = 60 * asked.minutes
    machine: Line = {}

    def tell(line: Line) -> None:
        if line["question"] == "machine" and "failed" not in line:
            machine.update(line)
            line = {name: value for name, value in line.items() if name != "folder"}  # a path is one's own affair
        elif "failed" not in line:
            line = with_shares(line, machine)
        lines.append(line)
        for file in (sys.stdout, results):
            print(json.dumps({"bench": "gpu"} | line), file=file, flush=True)

    def left(until: float) -> float:
        return started + total * until - time.monotonic()

    def command(part: str, *options: str) -> list[str]:
        return [sys.executable, str(_HERE / "gpu_parts.py"), part, *options, *(["--cpu"] if asked.cpu else [])]

    ask(command("prepare", *([] if asked.model is None else ["--folder", str(asked.model.resolve())])),
        ["machine"], left(0.25), log, tell)  # fmt: skip
    if not machine:
        return 1
    seconds = min(total / 15, 6.0 if asked.cpu else 40.0)
    for part in parts(asked.cpu):
        how = command(part.name, "--folder", machine["folder"], "--seconds", str(seconds))
        ask(how, part.questions, left(part.until), log, tell)
    shown = table(machine, lines[1:])
    (asked.out / "table.txt").write_text(shown + "\n")
    failed = [line["question"] for line in lines if "failed" in line]
    print(f"\n{shown}\n\n{time.monotonic() - started:.0f} s; send {asked.out}/results.jsonl", end="", file=sys.stderr)
    print(f"; FAILED: {', '.join(failed)}, see {asked.out}/log.txt" if failed else "", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
