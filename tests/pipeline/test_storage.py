"""TRAPS 28-30: checkpoints whole or not at all, metrics cut cleanly, the ledger's sums."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalerl.errors import CheckpointError, EngineDied, InputError
from scalerl.pipeline.checkpoint import Checkpoints
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.metrics import MetricsLog

ARRAYS = {"token_ids": np.arange(5), "loss_mask": np.zeros(0, dtype=np.bool_)}


def write(folder: Path) -> None:
    (folder / "weights").write_bytes(b"x" * 1000)


def save(checkpoints: Checkpoints, *what: Any) -> Path:
    return checkpoints.finish(checkpoints.begin(*what))


def test_a_checkpoint_comes_back_and_the_last_n_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.latest() is None
    for step in (5, 10, 15):
        save(checkpoints, step, {"step": step, "seed": 0.1 + 0.2}, ARRAYS, write)
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == ["step-00000010", "step-00000015"]
    latest = checkpoints.latest()
    assert latest is not None
    state, arrays, folder = checkpoints.load(latest)
    assert state == {"step": 15, "seed": 0.1 + 0.2}
    assert {name: a.dtype for name, a in arrays.items()} == {name: a.dtype for name, a in ARRAYS.items()}
    np.testing.assert_array_equal(arrays["token_ids"], ARRAYS["token_ids"])
    assert (folder / "weights").stat().st_size == 1000
    assert not list(tmp_path.rglob("*.pt"))
    assert not list(tmp_path.rglob("*.pkl"))


def test_a_step_saved_twice_is_the_second(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for seed in (1, 2):
        path = save(checkpoints, 5, {"seed": seed}, ARRAYS, write)
    assert checkpoints.load(path)[0] == {"seed": 2}


@pytest.mark.parametrize(
    "damage", ["cut", "altered", "missing", "no manifest", '{"for', "[]", "null", '{"format": 2, "files": [1]}']
)
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (5, 10):
        path = save(checkpoints, step, {"step": step}, ARRAYS, write)
    if damage == "cut":
        os.truncate(path / "trainer" / "weights", 10)
    elif damage == "altered":
        with (path / "trainer" / "weights").open("r+b") as file:
            file.seek(500)
            file.write(b"y")
    elif damage == "missing":
        (path / "state.json").unlink()
    elif damage == "no manifest":
        (path / "manifest.json").unlink()
    else:
        (path / "manifest.json").write_text(damage)
    named = {"cut": "weights", "altered": "weights", "missing": "state.json"}.get(damage, "manifest.json")
    what = "not those that were written" if damage == "altered" else "missing or cut short"
    assert checkpoints.latest() == tmp_path / "checkpoints" / "step-00000005"
    assert "step-00000010" in caplog.text
    assert re.search(rf"{named}: .*{what}; an older checkpoint is taken", caplog.text)
    with pytest.raises(CheckpointError, match=f"{named}: .*{what}"):
        checkpoints.load(path)


def test_a_checkpoint_of_another_format_is_refused_by_its_format(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = save(checkpoints, 5, {}, ARRAYS, write)
    (path / "manifest.json").write_text('{"format": 1, "step": 5, "files": {"state.json": 2}}')
    assert checkpoints.latest() == path
    with pytest.raises(CheckpointError, match="has format 1, this version reads 2"):
        checkpoints.load(path)


def test_a_full_disk_is_a_clear_error_and_the_older_checkpoint_stays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 5, {"step": 5}, ARRAYS, write)

    def full(folder: Path) -> None:
        write(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="disk is full: free space, or keep fewer") as caught:
        save(checkpoints, 10, {"step": 10}, ARRAYS, full)
    assert "\n" not in str(caught.value)
    assert [p.name for p in checkpoints.folder.iterdir()] == ["step-00000005"]

    def dies(folder: Path) -> None:
        raise EngineDied("gone")

    with pytest.raises(EngineDied):
        save(checkpoints, 10, {"step": 10}, ARRAYS, dies)
    assert checkpoints.latest() == checkpoints.folder / "step-00000005"
    assert checkpoints.unfinished
    save(checkpoints, 10, {"step": 10}, ARRAYS, write)
    assert not checkpoints.unfinished


def test_a_really_full_disk(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")

    def full(folder: Path) -> None:
        with Path("/dev/full").open("wb") as file:
            file.write(b"x" * 100_000)

    with pytest.raises(CheckpointError, match="disk is full"):
        save(Checkpoints(tmp_path), 10, {}, ARRAYS, full)


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    living, dead = (checkpoints.folder / f".writing-00000001-{pid}" for pid in (os.getppid(), 2**22 + 1))
    for folder in (living, dead):
        folder.mkdir(parents=True)
    save(checkpoints, 5, {}, ARRAYS, write)
    assert living.exists()
    assert not dead.exists()


KILLED = """
import sys, numpy as np
from pathlib import Path
from scalerl.pipeline.checkpoint import Checkpoints
def write(folder):
    for i in range(20):
        (folder / f"part-{i}").write_bytes(b"x" * 20_000)
checkpoints = Checkpoints(Path(sys.argv[1]), keep=2)
for step in range(1, 10_000):
    checkpoints.finish(checkpoints.begin(step, {"step": step}, {"a": np.full(1000, step)}, write))
    print(step, flush=True)
"""


def test_kill_9_during_a_checkpoint_leaves_a_good_one(tmp_path: Path) -> None:
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        done = [int(process.stdout.readline()) for _ in range(2 + attempt)]
        time.sleep(0.003 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        rest = [int(line) for line in process.stdout]
        process.stdout.close()
        checkpoints = Checkpoints(folder)
        latest = checkpoints.latest()
        assert latest is not None
        state, arrays, _ = checkpoints.load(latest)
        assert state["step"] >= max(done + rest)
        assert (arrays["a"] == state["step"]).all()
        save(checkpoints, 99_999, {"step": 99_999}, ARRAYS, write)
        assert not list(checkpoints.folder.glob(".writing-*"))


def test_what_is_damaged_counts_for_nothing_and_no_good_one_goes_for_it(tmp_path: Path) -> None:
    first = Checkpoints(tmp_path, keep=2)
    paths = {step: save(first, step, {"step": step}, ARRAYS, write) for step in (6, 8)}
    (paths[8] / "trainer" / "weights").write_text("other")
    (first.folder / "step-00000099").touch()
    (first.folder / "step-00000077").mkdir()
    resumed = Checkpoints(tmp_path, keep=2)
    assert resumed.latest() == paths[6]
    for step in (7, 9):
        paths[step] = save(resumed, step, {"step": step}, ARRAYS, write)
        assert resumed.latest() == paths[step]
    assert paths[7].exists()
    assert not paths[6].exists()
    only = Checkpoints(tmp_path, keep=1)
    paths[10] = save(only, 10, {"step": 10}, ARRAYS, write)
    left = {path.name for path in only.folder.iterdir()}
    assert left == {"step-00000010", "step-00000077", "step-00000099"}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_resume_cuts_what_the_checkpoint_had_not_seen(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.write("train", {"step": 1, "loss": float("nan"), "n": np.float32(2.5)})
    size = log.sync()
    log.write("train", {"step": 2})
    log.write("event", {"step": 2, "event": "generator replaced"})
    log.write("event", {"step": 2, "event": "end"})
    log.close()
    with log.path.open("ab") as file:
        file.write(b'{"kind":"train","st')
    log = MetricsLog(tmp_path, size)
    log.write("train", {"step": 2, "again": True})
    log.close()
    rows = lines(log.path)
    assert [row.get("event", row["step"]) for row in rows] == [1, "generator replaced", 2]
    assert rows[0]["loss"] is None
    assert rows[0]["n"] == 2.5
    assert rows[2]["again"]
    moved = (tmp_path / "metrics.discarded.jsonl").read_bytes().splitlines()
    assert [line[:15] for line in moved] == [b'{"kind":"train"', b'{"kind":"event"', b'{"kind":"train"']


def test_a_listener_sees_rows_after_they_are_on_disk(tmp_path: Path) -> None:
    seen: list[int] = []
    log = MetricsLog(tmp_path, listener=lambda row: seen.append(len(lines(tmp_path / "metrics.jsonl"))))
    for step in range(3):
        log.write("train", {"step": step})
    log.close()
    assert seen == [1, 2, 3]


def test_ledger_counts_flops_by_hand() -> None:
    ledger = Ledger(parameters=10)
    ledger.generated(prompt_tokens=3, tokens=7)
    ledger.trained(tokens=10)
    ledger.evaluated(3600, prompt_tokens=1, tokens=2)
    compute = ledger.compute()
    assert compute["flops"] == 2 * 10 * 10 + 6 * 10 * 10
    assert compute["tokens"] == 7
    assert compute["evaluation"] == {"device_hours": 1.0, "tokens": 2, "flops": 60.0}


def test_device_hours_add_up_to_what_is_billed() -> None:
    ledger = Ledger(1, generators=64, trainers=16)
    ledger.time(wall=3600, generate=3600, train=1800)
    assert ledger.compute()["device_hours"] == {"generate": 64, "train": 8, "idle": 8}
    shared = Ledger(1, generators=2, shared=True)
    shared.time(wall=3600, generate=900, train=1800)
    assert shared.compute()["device_hours"] == {"generate": 0.5, "train": 1.0, "idle": 0.5}


def test_ledger_is_restored_and_lacks_nothing() -> None:
    one, two = Ledger(7), Ledger(7)
    one.generated(1, 2)
    one.time(1.5, 1, 1)
    two.restore(json.loads(json.dumps(one.state())))
    assert two == one
    with pytest.raises(InputError, match="ledger state lacks wall"):
        two.restore({})
