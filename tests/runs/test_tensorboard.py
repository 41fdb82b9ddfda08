"""TensorBoard event files: checked against tensorboardX's own writer, and against records written byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboardX import SummaryWriter

from scalerl.errors import InputError
from scalerl.runs.formats import tensorboard
from scalerl.runs.formats.protobuf_wire import WireError, as_float, as_int, fields
from scalerl.runs.formats.series_rows import SeriesRows
from scalerl.runs.formats.tfrecord import find_records, masked_crc

NOW = 1_700_000_000.0


def number(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def block(field: int, content: bytes) -> bytes:
    return number(field << 3 | 2) + number(len(content)) + content


def record(data: bytes) -> bytes:
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", masked_crc(size)) + data + struct.pack("<I", masked_crc(data))


def event(step: int, *values: bytes, time: float = NOW) -> bytes:
    return record(
        b"\x09" + struct.pack("<d", time) + b"\x10" + number(step) + block(5, b"".join(block(1, v) for v in values))
    )


def simple(tag: str, value: float) -> bytes:
    return block(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(tag: str, content: bytes, plugin: str = "scalars") -> bytes:
    return block(1, tag.encode()) + block(8, content) + block(9, block(1, block(1, plugin.encode())))


VERSION = record(b"\x09" + struct.pack("<d", NOW) + block(3, b"brain.Event:2"))


def write(folder: Path, *events: bytes, name: str = "events.out.tfevents.1.host") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(VERSION + b"".join(events))
    return path


def column(table, name: str) -> list[float]:
    values = table.columns[name]
    return values[~np.isnan(values)].tolist()


def test_checksum_has_the_published_value():
    # RFC 3720: CRC-32C of 32 zero bytes is 8A9136AA; the record format rotates it by 15 and adds a constant.
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_reads_what_tensorboardx_writes(tmp_path):
    with SummaryWriter(str(tmp_path / "log")) as writer:
        for i in range(30):
            writer.add_scalar("eval/acc", i / 32, i * 10, walltime=NOW + 60 * i)
            writer.add_scalar("train/loss", 1 / (i + 1), i * 10, walltime=NOW + 60 * i)
        writer.add_histogram("weights", np.arange(10), 0)
        writer.add_text("note", "hello", 0)
    table = tensorboard.read(tmp_path / "log")
    assert table.format == "TensorBoard"
    assert column(table, "eval/acc") == [i / 32 for i in range(30)]
    acc = ~np.isnan(table.columns["eval/acc"])
    assert table.columns["step"][acc].tolist() == [i * 10 for i in range(30)]
    assert table.columns["wall_time"][acc].tolist() == [NOW + 60 * i for i in range(30)]
    assert np.isnan(table.columns["train/loss"]).tolist() == (~acc).tolist()  # one row a step
    assert set(table.text["run"]) == {"log"}
    assert any("2 series without numbers" in note and "weights" in note for note in table.notes)


def test_a_file_and_a_directory_are_recognised_by_content(tmp_path):
    path = write(tmp_path / "log", event(1, simple("a", 1)), name="renamed.bin")
    assert tensorboard.matches(path, path.read_bytes()[:65536])
    assert column(tensorboard.read(path), "a") == [1.0]
    assert not tensorboard.matches(tmp_path / "log", b"")  # nothing TensorBoard itself would pick up
    write(tmp_path / "log", event(1, simple("a", 1)))
    assert tensorboard.matches(tmp_path, b"")
    assert not tensorboard.matches(path, b"step,score\n1,0.5\n")
    assert not tensorboard.matches(path, b"")


@pytest.mark.parametrize(
    "content",
    [
        b"\x08\x01" + block(2, b"") + block(4, struct.pack("<f", 0.25)),  # as TensorFlow writes it
        b"\x08\x01" + block(5, struct.pack("<f", 0.25)),  # packed float_val
        b"\x08\x01\x2d" + struct.pack("<f", 0.25),  # single float_val
        b"\x08\x02" + block(4, struct.pack("<d", 0.25)),
        b"\x08\x02" + block(6, struct.pack("<d", 0.25)),
        b"\x08\x13" + block(4, struct.pack("<e", 0.25)),
        b"\x08\x13" + block(13, number(struct.unpack("<H", struct.pack("<e", 0.25))[0])),
        b"\x08\x0e" + block(4, struct.pack("<f", 0.25)[2:]),  # bfloat16
        b"\x08\x0e" + block(13, number(0x3E80)),
        b"\x08\x01" + block(2, block(2, b"\x08\x01")) + block(4, struct.pack("<f", 0.25)),  # shape [1]
    ],
)
def test_scalars_as_tensors(tmp_path, content):
    path = write(tmp_path, event(3, tensor("acc", content)))
    assert column(tensorboard.read(path), "acc") == [0.25]


def test_integers_zeros_and_what_is_no_scalar(tmp_path):
    vector = b"\x08\x01" + block(2, block(2, b"\x08\x02")) + block(4, bytes(8))
    path = write(
        tmp_path,
        event(1, tensor("int", b"\x08\x09" + block(10, number(7))), tensor("zero", b"\x08\x01")),
        event(1, tensor("vector", vector), tensor("text", b"\x08\x07"), tensor("hp", b"\x08\x01", "hparams")),
    )
    table = tensorboard.read(path)
    assert column(table, "int") == [7.0]
    assert column(table, "zero") == [0.0]
    assert list(table.columns) == ["step", "wall_time", "int", "zero"]
    assert any("3 series without numbers" in note for note in table.notes)


def test_trap_31_a_restart_keeps_time_order_for_the_later_run_to_win(tmp_path):
    write(tmp_path, *[event(s, simple("a", s), time=NOW + s) for s in (100, 200, 300)], name="tfevents.9")
    write(tmp_path, *[event(s, simple("a", -s), time=NOW + 900 + s) for s in (200, 300)], name="tfevents.1")
    table = tensorboard.read(tmp_path)
    assert table.columns["step"].tolist() == [100, 200, 300, 200, 300]
    assert table.columns["a"].tolist() == [100, 200, 300, -200, -300]
    assert np.all(np.diff(table.columns["wall_time"]) > 0)
    assert any(note.startswith("2 event files") for note in table.notes)


def test_trap_31_purge_step_begins_a_new_session(tmp_path):
    for run in range(2):
        with SummaryWriter(str(tmp_path), purge_step=20 if run else None, filename_suffix=str(run)) as writer:
            for step in (20, 30) if run else (0, 10, 20, 30):
                writer.add_scalar("a", run, step, walltime=NOW + 1000 * run + step)
    assert tensorboard.read(tmp_path).columns["a"].tolist() == [0, 0, 0, 0, 1, 1]


def test_two_writers_with_different_tags_share_steps(tmp_path):
    write(tmp_path, *[event(s, simple("train", s), time=NOW + s) for s in range(5)], name="tfevents.1.train")
    write(tmp_path, *[event(s, simple("eval", s), time=NOW + s + 1) for s in range(5)], name="tfevents.2.eval")
    table = tensorboard.read(tmp_path)
    assert table.columns["step"].tolist() == [0, 1, 2, 3, 4]
    assert table.columns["train"].tolist() == table.columns["eval"].tolist() == [0, 1, 2, 3, 4]


def test_several_runs_are_named_by_their_directories(tmp_path):
    write(tmp_path / "a", event(1, simple("acc", 0.5)))
    write(tmp_path / "b" / "eval", event(1, simple("acc", 0.75), simple("more", 1)))
    table = tensorboard.read(tmp_path)
    assert list(table.text["run"]) == ["a", "b/eval"]
    assert table.columns["acc"].tolist() == [0.5, 0.75]


def test_a_tag_named_step_does_not_hide_the_step(tmp_path):
    table = tensorboard.read(write(tmp_path, event(7, simple("step", 70))))
    assert table.columns["step"].tolist() == [7]
    assert table.columns["step (logged)"].tolist() == [70]


def test_trap_33_a_file_cut_off_is_salvaged_and_the_loss_told(tmp_path):
    last = event(3, simple("a", 3))
    path = write(tmp_path, event(1, simple("a", 1)), event(2, simple("a", 2)), last[:-7])
    table = tensorboard.read(path)
    assert column(table, "a") == [1, 2]
    assert f"{path.name} is cut off: 3 records kept, the last {len(last) - 7} bytes lost." in table.notes


def test_trap_33_wrong_checksums_are_left_out_and_counted(tmp_path):
    events = [event(i, simple("a", i)) for i in range(6)]
    bad_data = bytearray(events[2])
    bad_data[-6] ^= 0xFF
    bad_length = bytearray(events[4])
    bad_length[0] ^= 0x55  # loses the thread; found again at the next record
    events[2], events[4] = bytes(bad_data), bytes(bad_length)
    table = tensorboard.read(write(tmp_path, *events))
    assert column(table, "a") == [0, 1, 3, 5]
    assert any("1 record with a wrong checksum" in note for note in table.notes)
    assert any(f"{len(bad_length)} damaged bytes skipped" in note for note in table.notes)


def test_trap_33_nan_and_infinity(tmp_path):
    values = [float("nan"), float("inf"), 1.0]
    table = tensorboard.read(write(tmp_path, *[event(i, simple("a", v)) for i, v in enumerate(values)]))
    assert np.array_equal(table.columns["a"], values, equal_nan=True)


def test_an_event_that_came_late_is_no_restart():
    rows = SeriesRows()
    for step in (0, 10, 20, 40, 30, 50):  # 30 was written by a slower process
        rows.add("a", step, NOW + step, step)
    assert rows.columns()["step"].tolist() == [0, 10, 20, 30, 40, 50]


def test_series_with_clocks_of_their_own_keep_their_wall_times():
    rows = SeriesRows()
    for epoch in range(3):
        for batch in range(10):
            rows.add("loss", epoch * 10 + batch, NOW + 1000 * epoch + 100 * batch, 0.0)
        rows.add("acc", epoch, NOW + 1000 * (epoch + 1), epoch)
    table = rows.columns()
    assert table["wall_time"][~np.isnan(table["acc"])].tolist() == [NOW + 1000, NOW + 2000, NOW + 3000]


def test_errors_are_one_line_that_teaches(tmp_path):
    for path in (tmp_path, write(tmp_path / "x", event(1, tensor("t", b"\x08\x07"))), tmp_path / "absent"):
        with pytest.raises(InputError) as caught:
            tensorboard.read(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


def test_wire_decoder_knows_its_limits():
    assert list(fields(b"\x08\x96\x01" + block(2, b"hi"))) == [(1, 150), (2, b"hi")]
    assert as_int((1 << 64) - 5) == -5
    for bad in (b"\x08", b"\x08" + b"\xff" * 11, b"\x12\x05ab", b"\x0b", b"\x00\x01", b"\x09abc"):
        with pytest.raises(WireError):
            list(fields(bad))
    with pytest.raises(WireError):
        as_float(b"abc")


def gives_rows_or_one_line(path: Path) -> bool:
    try:
        return tensorboard.read(path).rows > 0
    except InputError as error:
        return "\n" not in str(error)


@settings(max_examples=150)
@given(st.binary(max_size=300), st.integers(0, 10_000), st.integers(0, 255))
def test_fuzz_random_bytes_and_flipped_bytes_never_crash(tmp_path_factory, noise, place, byte):
    whole = VERSION + b"".join(event(i, simple("a", i), tensor("b", b"\x08\x01")) for i in range(5))
    flipped = bytearray(whole)
    flipped[place % len(whole)] = byte
    for data in (noise, VERSION + record(noise) + noise, bytes(flipped), whole[: place % len(whole)]):
        path = tmp_path_factory.getbasetemp() / "fuzz.tfevents"
        path.write_bytes(data)
        assert gives_rows_or_one_line(path)


def test_many_checksums_at_once_agree_with_one_by_one():
    rng = np.random.default_rng(0)
    pieces = [rng.bytes(int(n)) for n in rng.integers(0, 700, size=60)]
    found = find_records(b"".join(map(record, pieces)))
    assert found.damaged == found.lost_bytes == found.cut_bytes == 0
    assert (found.stop - found.start).tolist() == [len(p) for p in pieces]
