"""W&B logs: checked against the real client in offline mode, and against logs written byte by byte."""

from __future__ import annotations

import math
import struct
import sys
import types
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.runs.formats import wandb_offline, wandb_online

HEADER = b":W&B" + struct.pack("<HB", 0xBEE1, 0)


def number(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def block(field: int, content: bytes) -> bytes:
    return number(field << 3 | 2) + number(len(content)) + content


def history(step: int, **values: str) -> bytes:
    """A history record; `a__b` is the nested key a -> b, values are JSON."""
    items = b""
    for key, value in values.items():
        parts = key.split("__")
        keys = block(1, key.encode()) if len(parts) == 1 else b"".join(block(2, p.encode()) for p in parts)
        items += block(1, keys + block(16, value.encode()))
    return block(2, items + block(2, b"\x08" + number(step)))


def run_record(run_id: str, name: str = "", start: int = 0) -> bytes:
    time = block(17, b"\x08" + number(start)) if start else b""
    return block(17, block(1, run_id.encode()) + block(8, name.encode()) + time)


def log(*records: bytes) -> bytes:
    """Records in blocks of 32 KiB, split where a block ends."""
    out = HEADER
    for record in records:
        first, rest = True, record
        while first or rest:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += bytes(room)
                continue
            piece, rest = rest[: room - 7], rest[room - 7 :]
            kind = (1 if not rest else 2) if first else (4 if not rest else 3)
            out += struct.pack("<IHB", zlib.crc32(bytes([kind]) + piece), len(piece), kind) + piece
            first = False
    return out


def write(folder: Path, data: bytes, run_id: str = "abc") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"run-{run_id}.wandb"
    path.write_bytes(data)
    return path


def rows(count: int) -> list[bytes]:
    return [history(i, acc=str(i / 8)) for i in range(count)]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A directory in which the real client logged one offline run."""
    wandb = pytest.importorskip("wandb")
    root = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
            patch.setenv(name, str(root))
        options = wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True)
        run = wandb.init(mode="offline", project="p", name="first", dir=str(root), settings=options)
        for i in range(400):
            run.log(
                {
                    "eval": {"acc": i / 512, "deep": {"x": i}},
                    "train/loss@1": 1 / (i + 1),
                    "global_step": 10 * i,
                    "odd": (math.nan, math.inf, -math.inf)[i % 3],
                    "phase": "warm",
                    "flag": i % 2 == 0,
                    "hist": wandb.Histogram([1, 2, i]),
                }
            )
        run.log({"only_here": 5})
        run.finish()
        wandb.teardown()  # ends the client's service: on a busy machine it still writes after `finish`
    return root


def test_reads_what_the_client_writes(real):
    table = wandb_offline.read(real)
    assert table.format == "W&B offline"
    assert table.rows == 401
    assert table.columns["eval/acc"][:-1].tolist() == [i / 512 for i in range(400)]
    assert table.columns["eval/deep/x"][-2] == 399
    assert table.columns["train/loss@1"][1] == 0.5
    assert table.columns["global_step"][-2] == 3990
    assert table.columns["_step"].tolist() == list(range(401))
    assert np.all(np.diff(table.columns["_timestamp"]) >= 0)
    assert table.columns["_timestamp"][0] > 1.6e9
    assert table.columns["_runtime"][-1] >= table.columns["_runtime"][0] >= 0
    assert np.array_equal(table.columns["odd"][:3], [math.nan, math.inf, -math.inf], equal_nan=True)
    assert table.columns["flag"][:2].tolist() == [1.0, 0.0]
    assert table.columns["only_here"][-1] == 5
    assert list(table.text["phase"][:1]) == ["warm"]
    assert set(table.text["run"]) == {"first"}
    assert not any(name.startswith("hist") for name in table.columns)
    assert any("1 series without numbers" in note and "hist" in note for note in table.notes)


def test_every_level_of_the_directory_is_recognised(real):
    (run,) = (real / "wandb").glob("offline-run-*")
    (file,) = run.glob("*.wandb")
    for path in (real, real / "wandb", run, real / "wandb" / "latest-run", file):
        assert wandb_offline.matches(path, b"" if path.is_dir() else path.read_bytes()[:65536])
        assert wandb_offline.read(path).rows == 401


def test_trap_33_the_real_file_cut_off_anywhere_keeps_its_beginning(real, tmp_path):
    (file,) = real.glob("wandb/offline-run-*/*.wandb")
    data = file.read_bytes()
    whole = wandb_offline.read(file).columns["eval/acc"]
    assert len(data) > 3 * 32768  # records cross blocks
    for share in (0.2, 0.5, 0.9):
        cut = write(tmp_path, data[: int(share * len(data))])
        table = wandb_offline.read(cut)
        assert 0.15 * share < table.rows / whole.size < share + 0.05
        assert table.columns["eval/acc"].tolist() == whole[: table.rows].tolist()
        (note,) = [n for n in table.notes if "cut off" in n]
        assert f"{table.rows} rows kept" in note


def test_trap_33_damage_in_the_middle_loses_little_and_says_so(real, tmp_path):
    (file,) = real.glob("wandb/offline-run-*/*.wandb")
    data = bytearray(file.read_bytes())
    data[50_000:53_000] = b"x" * 3000
    table = wandb_offline.read(write(tmp_path, bytes(data)))
    assert 395 <= table.rows < 401
    assert table.columns["_step"][-1] == 400
    assert any("damaged record" in note for note in table.notes)


def test_trap_33_a_lost_header_costs_one_record(tmp_path):
    data = bytearray(log(*rows(6)))
    at = len(log(*rows(2)))
    data[at : at + 7] = bytes(7)
    table = wandb_offline.read(write(tmp_path, bytes(data) + bytes(100)))
    assert table.columns["_step"].tolist() == [0, 1, 3, 4, 5]
    assert any("1 damaged record left out" in note for note in table.notes)
    assert any("the last 100 bytes lost" in note for note in table.notes)


def test_hand_written_log(tmp_path):
    path = write(tmp_path, log(run_record("abc", "my run"), *rows(3)))
    table = wandb_offline.read(path)
    assert table.columns["acc"].tolist() == [0, 1 / 8, 2 / 8]
    assert table.columns["_step"].tolist() == [0, 1, 2]  # from the record, where the row has no `_step`
    assert list(table.text["run"]) == ["my run"] * 3


def test_trap_33_numbers_in_words(tmp_path):
    words = ["NaN", '"NaN"', "Infinity", '"Infinity"', '"-Infinity"', "null", "true", "1e3"]
    table = wandb_offline.read(write(tmp_path, log(*[history(i, a=w, b="1") for i, w in enumerate(words)])))
    expected = [math.nan, math.nan, math.inf, math.inf, -math.inf, math.nan, 1, 1000]
    assert np.array_equal(table.columns["a"], expected, equal_nan=True)


def test_trap_32_nested_keys_and_whole_objects(tmp_path):
    record = history(4, eval__math__acc="0.5", other='{"x": {"y": 2}, "z": [1, 2]}', _step="4")
    media = history(5, picture='{"_type": "image-file", "width": 3}', acc="1")
    table = wandb_offline.read(write(tmp_path, log(record, media)))
    assert sorted(table.columns) == ["_step", "acc", "eval/math/acc", "other/x/y"]
    assert table.columns["other/x/y"][0] == 2
    assert any("other/z" in note and "picture" in note for note in table.notes)


def test_trap_31_a_resumed_run_is_joined_in_the_order_of_its_start(tmp_path):
    second = [history(i, acc=str(-i)) for i in (2, 3)]
    write(tmp_path / "wandb" / "run-1-abc", log(run_record("abc", "r", 2000), *second))
    write(tmp_path / "wandb" / "run-2-abc", log(run_record("abc", "r", 1000), *rows(4)))
    table = wandb_offline.read(tmp_path)
    assert table.columns["_step"].tolist() == [0, 1, 2, 3, 2, 3]
    assert table.columns["acc"].tolist()[4:] == [-2, -3]
    assert any("Run r was resumed: 2 files" in note for note in table.notes)


def test_several_runs_are_told_apart(tmp_path):
    for run_id, name in (("aaa", "same"), ("bbb", "same"), ("ccc", "")):
        write(tmp_path / f"run-1-{run_id}", log(run_record(run_id, name, 1000), *rows(2)), run_id)
    assert list(dict.fromkeys(wandb_offline.read(tmp_path).text["run"])) == ["same (aaa)", "same (bbb)", "ccc"]


def test_errors_are_one_line_that_teaches(tmp_path):
    empty, foreign = write(tmp_path / "a", log(run_record("a"))), write(tmp_path / "b", b"hello world")
    for path in (empty, foreign, write(tmp_path / "c", b""), tmp_path / "absent", tmp_path / "d"):
        with pytest.raises(InputError) as caught:
            wandb_offline.read(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


def gives_rows_or_one_line(path: Path) -> bool:
    try:
        return wandb_offline.read(path).rows > 0
    except InputError as error:
        return "\n" not in str(error)


@settings(max_examples=150)
@given(st.binary(max_size=200), st.integers(0, 10_000), st.integers(0, 255))
def test_fuzz_random_bytes_and_flipped_bytes_never_crash(tmp_path_factory, noise, place, byte):
    whole = log(run_record("abc", "r", 9), *rows(5), history(9, text='"x"', a__b='{"c": 1}'))
    flipped = bytearray(whole)
    flipped[place % len(whole)] = byte
    for data in (
        noise,
        HEADER + noise,
        log(noise, block(2, noise), *rows(1)),
        bytes(flipped),
        whole[: place % len(whole)],
    ):
        assert gives_rows_or_one_line(write(tmp_path_factory.getbasetemp(), data, "fuzz"))


# --- online: a stand-in for the client, since tests have no network ---


def client(monkeypatch, history=(), error: Exception | None = None, state: str = "finished") -> list:
    """Installs a `wandb` whose Api gives `history` or raises `error`; returns the calls it has seen."""
    calls: list = []

    class Api:
        def __init__(self, **options):
            calls.append(options)

        def run(self, path):
            calls.append(path)
            if error:
                raise error
            return types.SimpleNamespace(name="n", id="i", state=state, scan_history=lambda: iter(history))

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(Api=Api))
    return calls


@pytest.mark.parametrize(
    ("address", "server"),
    [
        ("wandb://e/p/r1", None),
        (Path("wandb://e/p/r1"), None),
        ("https://wandb.ai/e/p/runs/r1?nw=nwuser", None),
        (Path("https://wandb.ai/e/p/runs/r1/overview"), None),
        ("http://localhost:8080/e/p/runs/r1", "http://localhost:8080"),
    ],
)
def test_addresses(monkeypatch, address, server):
    calls = client(monkeypatch, [{"_step": 0, "acc": 0.5}])
    assert wandb_online.matches(address)
    table = wandb_online.read(address)
    assert calls[0]["overrides"] == ({"base_url": server} if server else None)
    assert calls[1] == "e/p/r1"
    assert list(table.text["run"]) == ["n"]


def test_history_online(monkeypatch):
    picture = {"_type": "image-file", "path": "x.png"}
    client(
        monkeypatch,
        [{"_step": 0, "acc": "NaN"}, {"_step": 5, "acc": 0.5, "e": {"x": 1}, "p": picture}],
        state="running",
    )
    table = wandb_online.read("wandb://e/p/r")
    assert np.array_equal(table.columns["acc"], [math.nan, 0.5], equal_nan=True)
    assert table.columns["e/x"][1] == 1
    assert sorted(table.columns) == ["_step", "acc", "e/x"]
    assert any("still going on" in note for note in table.notes)
    assert any("p" in note and "left out" in note for note in table.notes)


@pytest.mark.parametrize(
    ("error", "mend"),
    [
        (ConnectionError("no route\nto host"), "export the run as CSV"),
        (RuntimeError("api_key not configured (no-tty). call wandb.login"), "wandb login"),
        (ValueError("Could not find run <Run e/p/r (not found)>"), "check entity"),
        (TimeoutError(), "export the run as CSV"),
    ],
)
def test_failures_online_are_one_line(monkeypatch, error, mend):
    client(monkeypatch, error=error)
    with pytest.raises(InputError, match=mend) as caught:
        wandb_online.read("wandb://e/p/r")
    assert "\n" not in str(caught.value)


def test_without_history_without_client_and_without_sense(monkeypatch):
    client(monkeypatch)
    with pytest.raises(InputError, match="no history"):
        wandb_online.read("wandb://e/p/r")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"pip install 'scalerl\[wandb\]'"):
        wandb_online.read("wandb://e/p/r")
    with pytest.raises(InputError, match="entity/project/run"):
        wandb_online.read("wandb://e")


def test_the_real_client_without_a_server_gives_one_line(monkeypatch, tmp_path):
    pytest.importorskip("wandb")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(InputError, match="wandb login") as caught:
        wandb_online.read("http://127.0.0.1:9/e/p/runs/r")
    assert "\n" not in str(caught.value)
