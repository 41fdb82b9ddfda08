"""MLflow stores: checked against mlflow-skinny's file store, and SQLite files with MLflow's schema."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.runs.formats import mlflow as reader

NOW = 1_700_000_000


def make_run(root: Path, run_id: str, name: str = "", stage: str = "active", **metrics: str) -> Path:
    """A run of a hand-written file store; a metric's text is its file, `a__b` is the metric a/b."""
    folder = root / "7" / run_id
    (folder / "metrics").mkdir(parents=True)
    (root / "7" / "meta.yaml").write_text("experiment_id: '7'\nname: e\n")
    (folder / "meta.yaml").write_text(
        f"experiment_id: '7'\nrun_id: {run_id}\nrun_name: {name}\nlifecycle_stage: {stage}\nstart_time: {NOW}000\n"
    )
    for key, text in metrics.items():
        file = folder / "metrics" / key.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
    return folder


def lines(*points: tuple[int, object], start: int = NOW, gap: int = 100) -> str:
    return "".join(f"{(start + gap * i) * 1000} {value} {step}\n" for i, (step, value) in enumerate(points))


def make_database(path: Path, values=(), runs=(("r1", "first", "active", NOW * 1000),)) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name VARCHAR(256) NOT NULL);"
            "CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL PRIMARY KEY, name VARCHAR(250), source_type VARCHAR(20),"
            " status VARCHAR(20), start_time BIGINT, lifecycle_stage VARCHAR(20), experiment_id INTEGER);"
            "CREATE TABLE metrics (key VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,"
            " run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL,"
            " PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan));"
        )
        database.executemany("INSERT INTO runs (run_uuid, name, lifecycle_stage, start_time) VALUES (?, ?, ?, ?)", runs)
        database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", values)
        database.commit()
    return path


@pytest.mark.filterwarnings("ignore")
def test_reads_what_mlflow_writes(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # in maintenance, but on many disks
    from mlflow import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.create_experiment("grid")
    for name in ("a", "b"):
        run = client.create_run(experiment, run_name=name).info.run_id
        for i in range(5):
            client.log_metric(run, "eval/acc", i / 8, timestamp=(NOW + 60 * i) * 1000, step=10 * i)
            client.log_metric(run, "loss", math.nan if i == 2 else 1.0, timestamp=(NOW + 60 * i) * 1000, step=10 * i)
        client.log_param(run, "lr", 1e-6)
    gone = client.create_run(experiment, run_name="gone").info.run_id
    client.log_metric(gone, "eval/acc", 1.0)
    client.delete_run(gone)
    for path in (tmp_path, tmp_path / "mlruns", tmp_path / "mlruns" / experiment):
        assert reader.matches(path, b"")
        table = reader.read(path)
        assert table.format == "MLflow"
        assert list(table.text["run"]) == ["a"] * 5 + ["b"] * 5
        assert table.columns["eval/acc"].tolist() == [i / 8 for i in range(5)] * 2
        assert table.columns["step"].tolist() == [0, 10, 20, 30, 40] * 2
        assert table.columns["wall_time"].tolist() == [NOW + 60 * i for i in range(5)] * 2
        assert np.isnan(table.columns["loss"]).tolist() == [False, False, True, False, False] * 2
        assert "1 deleted run left out." in table.notes
    one = tmp_path / "mlruns" / experiment / run
    assert reader.matches(one, b"")
    assert set(reader.read(one).text["run"]) == {"b"}


def test_trap_31_several_values_a_step_and_a_restart(tmp_path):
    points = [(1, 0.1), (2, 0.2), (2, 0.3), (3, 0.4), (2, 0.5), (3, 0.6)]
    make_run(tmp_path, "r", "n", acc=lines(*points))
    table = reader.read(tmp_path)
    assert table.columns["step"].tolist() == [1, 2, 2, 3, 2, 3]
    assert table.columns["acc"].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


def test_nested_names_old_two_column_lines_and_seconds(tmp_path):
    make_run(tmp_path, "r", "n", val__math__acc=f"{NOW} 0.5\n", more=f"{NOW}000 0.25 3 extra run\n")
    table = reader.read(tmp_path)
    assert table.columns["val/math/acc"][0] == 0.5
    assert table.columns["wall_time"].tolist() == [NOW, NOW]
    assert table.columns["step"].tolist() == [0, 3]


def test_trap_33_cut_off_lines_words_and_rubbish(tmp_path):
    text = lines((1, 0.5), (2, "nan"), (3, "inf"), (4, "0.x")) + f"{NOW}999 0.12"
    make_run(tmp_path, "r", "n", acc=text)
    table = reader.read(tmp_path)
    assert np.array_equal(table.columns["acc"], [0.5, math.nan, math.inf], equal_nan=True)
    assert any("acc is cut off" in note for note in table.notes)
    assert any("1 line that cannot be read" in note for note in table.notes)


def test_damaged_meta_and_equal_names(tmp_path):
    for run_id in ("aaaaaaaaaaaa", "bbbbbbbbbbbb"):
        make_run(tmp_path, run_id, "same", acc=lines((1, 0.5)))
    broken = make_run(tmp_path, "cccccccccccc", acc=lines((1, 0.5)))
    (broken / "meta.yaml").write_bytes(b"experiment_id: '7\nrun_id: [")
    table = reader.read(tmp_path)
    assert sorted(table.text["run"]) == ["cccccccccccc", "same (aaaaaaaa)", "same (bbbbbbbb)"]
    assert any("meta.yaml is damaged" in note for note in table.notes)


def test_sqlite(tmp_path):
    values = [("acc", i / 8, (NOW + 60 * i) * 1000, "r1", 10 * i, 0) for i in range(4)]
    values += [
        ("loss", 0.0, NOW * 1000, "r1", 0, 1),
        ("loss", 1.7976931348623157e308, NOW * 1000 + 60_000, "r1", 10, 0),
    ]
    values += [("acc", 0.9, NOW * 1000, "r2", 0, 0), ("acc", 0.1, NOW * 1000, "r3", 0, 0)]
    runs = [("r1", "first", "active", 1), ("r2", "gone", "deleted", 2), ("r3", None, "active", 3)]
    path = make_database(tmp_path / "mlflow.db", values, runs)
    for place in (path, tmp_path):
        assert reader.matches(place, b"" if place.is_dir() else path.read_bytes()[:65536])
        table = reader.read(place)
        assert list(table.text["run"]) == ["first"] * 4 + ["r3"]
        assert table.columns["acc"].tolist() == [0, 1 / 8, 2 / 8, 3 / 8, 0.1]
        assert table.columns["step"].tolist() == [0, 10, 20, 30, 0]
        assert np.array_equal(table.columns["loss"][:2], [math.nan, math.inf], equal_nan=True)
        assert "1 deleted run left out." in table.notes


def test_other_databases_and_directories_are_not_ours(tmp_path):
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE t (x)")
    assert not reader.matches(tmp_path / "other.db", (tmp_path / "other.db").read_bytes())
    (tmp_path / "meta.yaml").write_text("title: mine\n")
    assert not reader.matches(tmp_path, b"")


def test_errors_are_one_line_that_teaches(tmp_path):
    make_run(tmp_path / "empty", "r", "n")
    database = make_database(tmp_path / "none.db")
    for path in (tmp_path / "empty", database, tmp_path / "absent.db"):
        with pytest.raises(InputError) as caught:
            reader.read(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


def gives_rows_or_one_line(path: Path) -> bool:
    try:
        return reader.read(path).rows > 0
    except InputError as error:
        return "\n" not in str(error)


@settings(max_examples=40)
@given(st.binary(max_size=200), st.integers(0, 100_000), st.binary(min_size=1, max_size=400))
def test_fuzz_damaged_stores_never_crash(tmp_path_factory, noise, place, patch):
    base = tmp_path_factory.mktemp("fuzz")
    values = [("acc", i / 8, (NOW + i) * 1000, "r1", i, 0) for i in range(200)]
    path = make_database(base / "mlflow.db", values)
    data = bytearray(path.read_bytes())
    at = place % len(data)
    data[at : at + len(patch)] = patch
    make_run(base / "files", "r", "n", acc=lines((1, 0.5))).joinpath("metrics", "noise").write_bytes(noise)
    for content in (bytes(data), bytes(data[:at]), b"SQLite format 3\0" + noise):
        path.write_bytes(content)
        for place_to_read in (path, base / "files"):
            if reader.matches(place_to_read, content[:65536]):
                assert gives_rows_or_one_line(place_to_read)
