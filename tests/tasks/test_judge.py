"""Answers judged in a process of its own: hostile ones are worth 0 soon, our own failures are excluded."""

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scalerl.errors import InputError, VerifierError
from scalerl.tasks.judge import Judge, JudgeFailure

JUDGE = """
import os, sys, time
def grade(answer, reference):
    print("printing must not confuse the replies")
    if answer == "hang":
        return 9 ** 9 ** 9 ** 9          # in C: no signal handler runs
    if answer == "eat":
        x = "x" * 10**7
        while True: x += x
    if answer == "deep":
        return grade2(1)
    if answer == "crash":
        os.kill(os.getpid(), 11)
    if answer == "exit":
        sys.exit(3)
    if answer == "leave":
        os._exit(0)
    if answer == "raise":
        raise ValueError("no")
    if answer == "sleep":
        time.sleep(60)
    if answer == "flood":
        for i in range(20_000):
            print("line", i, "to both", file=sys.stderr if i % 2 else sys.stdout)
        os.write(1, b"and the file itself")
        if reference == "raise":
            raise ValueError("no")
        answer = reference
    if answer == "input":
        return float(input())
    if answer == "list":
        return [1]
    if answer == "pid":
        return os.getpid()
    return float(answer == reference)
def grade2(n):
    return grade2(n + 1)
"""
HOSTILE = ["hang", "eat", "deep", "crash", "exit", "leave", "raise", "list"]


def at_most(seconds: float) -> float:
    """A wall-clock limit on a machine that others use too: the time limit is one of CPU time."""
    return seconds * max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory):
    file = tmp_path_factory.mktemp("judge") / "stub.py"
    file.write_text(JUDGE)
    made = Judge(f"{file}:grade", 2, seconds=0.3, patience=2.0, memory_mb=256)
    made.check()
    yield made
    made.close()


def test_an_honest_answer_is_judged(judge: Judge) -> None:
    assert judge("7", "7") == 1.0
    assert judge("8", "7") == 0.0
    assert judge("\ud800\x00\n", "7") == 0.0


@pytest.mark.parametrize("answer", HOSTILE)
def test_a_hostile_answer_is_worth_nothing_and_harms_nothing(judge: Judge, answer: str) -> None:
    before, began = judge.hostile, time.monotonic()
    assert judge.reward((answer, "7"), ("7", "7")) == 0.0
    assert time.monotonic() - began < at_most(2.0)
    assert judge.hostile == before + 1
    assert judge("7", "7") == 1.0


def test_what_fails_on_the_reference_too_is_our_failure(judge: Judge) -> None:
    with pytest.raises(
        VerifierError, match=r"reference answer cannot be judged \(ValueError: no; it printed: printing must"
    ):
        judge.reward(("raise", "7"), ("raise", "7"))


def test_waiting_without_computing_is_the_machines_fault(judge: Judge) -> None:
    with pytest.raises(VerifierError, match="Waited: no verdict within 2 s"):
        judge.reward(("sleep", "7"), ("7", "7"))


def test_a_worker_is_replaced_only_when_it_must_be(judge: Judge) -> None:
    pids = {judge("pid", "") for _ in range(8)}
    assert len(pids) == 2  # the worker and its spare take turns
    with pytest.raises(JudgeFailure, match="ValueError: no"):
        judge("raise", "")
    assert {judge("pid", "") for _ in range(4)} == pids
    with pytest.raises(JudgeFailure, match="Timeout"):
        judge("hang", "")
    assert len({judge("pid", "") for _ in range(4)} & pids) == 1


def test_what_a_verifier_prints_stays_off_the_terminal_and_is_told_once_and_where_it_fails(
    judge: Judge, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    other = pickle.loads(pickle.dumps(judge))
    other.seconds = other.patience = 60.0
    assert [other("flood", "7") for _ in range(4)] == [1.0] * 4
    with pytest.raises(JudgeFailure) as failure:
        other("flood", "raise")
    with pytest.raises(JudgeFailure) as quiet:
        other("raise", "")
    other.close()
    assert str(failure.value).startswith("ValueError: no; it printed: ...")
    assert str(failure.value).endswith("line 19998 to both line 19999 to both and the file itself")
    assert len(str(failure.value)) < 300
    assert str(quiet.value) == "ValueError: no; it printed: printing must not confuse the replies"  # not the flood
    assert caplog.messages == [
        f"verifier {judge.target} prints ('printing must not confuse the replies'): "
        "only the end of it is kept, and shown where the verifier fails"
    ]
    assert capfd.readouterr() == ("", "")


def test_what_was_printed_before_hanging_is_told(judge: Judge) -> None:
    with pytest.raises(JudgeFailure, match=r"Timeout: no verdict within 0.3 s; it printed: printing must not confuse"):
        judge("hang", "")


def test_a_verifier_that_reads_its_input_takes_no_requests(judge: Judge) -> None:
    with pytest.raises(JudgeFailure, match="EOFError"):
        judge("input", "")
    assert judge("7", "7") == 1.0


def test_slow_loading_is_told_once_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("scalerl.tasks.judge.SLOW_START_SECONDS", 0.1)
    monkeypatch.setattr("scalerl.tasks.judge.START_SECONDS", 1.5)
    (tmp_path / "slow.py").write_text("while True: pass")
    slow = Judge(f"{tmp_path}/slow.py:grade", 2)
    with pytest.raises(InputError, match=r"(Timeout|Waited): not loaded within 1\.5 s"):
        slow.check()
    slow.close()
    assert caplog.messages == [f"verifier {slow.target} is still being loaded; it is given up after 1.5 s"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that computes")
@pytest.mark.parametrize("answer", ["while loading", "hang", "sleep"])
def test_a_killed_run_leaves_no_judge_and_no_traceback(tmp_path: Path, judge: Judge, answer: str) -> None:
    place, pids = judge.target, tmp_path / "pids"
    if answer == "while loading":
        (tmp_path / "slow.py").write_text("9 ** 9 ** 9 ** 9")  # in C: no handler and no thread of Python's runs
        place = f"{tmp_path}/slow.py:grade"
    program = f"""
import pathlib
from scalerl.tasks.judge import Judge
judge = Judge({place!r}, 2, seconds=60, patience=60)
judge._pool()
if {answer!r} != "while loading":
    judge.check()
pathlib.Path({str(pids)!r}).write_text(" ".join(str(worker.process.pid) for worker in judge._alive))
judge({answer!r}, "7")
"""
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as run:
        until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        time.sleep(0.5)
        run.kill()
        said = run.stderr.read()  # type: ignore[union-attr]
    until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))
    assert all(line.startswith("verifier ") for line in said.splitlines())  # that it prints; no traceback


def test_a_judge_whose_replies_nobody_reads_ends_without_a_traceback(judge: Judge) -> None:
    lifeline, ours = os.pipe()
    settings = {"target": judge.target, "parameters": 2, "prepare": "", "alarm": 60, "memory_mb": 0, "paths": []}
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "scalerl.tasks.judge_worker", json.dumps(settings | {"lifeline": lifeline})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[lifeline],
    )
    worker.stdout.close()  # type: ignore[union-attr]
    with worker:
        assert worker.stderr.read() == b""  # type: ignore[union-attr]
    assert worker.returncode == 1
    os.close(lifeline)
    os.close(ours)


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + at_most(20.0)
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_threads_can_share_a_judge(judge: Judge) -> None:
    found: dict[int, float] = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: judge(str(i % 3), "1")})) for i in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: float(i % 3 == 1) for i in range(30)}


def test_a_judge_travels_without_its_processes_and_leaves_none_behind(judge: Judge) -> None:
    other = pickle.loads(pickle.dumps(judge))
    pid = int(other("pid", ""))
    assert (other.seconds, other.memory_mb) == (judge.seconds, judge.memory_mb)
    assert pid != judge("pid", "")
    del other
    assert not Path(f"/proc/{pid}").exists()


def test_closing_ends_a_call_under_way_and_starts_nothing_in_its_place(judge: Judge) -> None:
    other = Judge(judge.target, 2, seconds=60.0, patience=60.0)
    other.check()
    failures: list[BaseException] = []

    def hang() -> None:
        try:
            other("sleep", "")
        except (JudgeFailure, OSError, ValueError) as error:  # its pipe is closed, or is closed while it is read
            failures.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    while len(other._alive) != 2 or not any(worker._ready for worker in other._alive):
        time.sleep(0.01)
    time.sleep(0.2)
    began = time.monotonic()
    other.close()
    thread.join(10)
    assert time.monotonic() - began < at_most(2.0)
    assert len(failures) == 1
    assert not other._alive


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("{}:grad", 'has no function grad: did you mean "grade"'),
        ("{}:os", "TypeError: os is no function"),
        ("{}:grade2", "TypeError: too many positional arguments"),
        ("no_such_module:grade", "No module named 'no_such_module'"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_at_once(judge: Judge, target: str, reason: str) -> None:
    broken = Judge(target.format(judge.target.rpartition(":")[0]), 2)
    with pytest.raises(InputError, match=reason):
        broken.check()
    broken.close()


def test_limits_that_cannot_be() -> None:
    for wrong in ({"seconds": 0}, {"seconds": float("nan")}, {"workers": 0}, {"memory_mb": -1}, {"patience": 0.1}):
        with pytest.raises(InputError, match="judge:"):
            Judge("a:b", 1, **wrong)
