"""Whatever stands in a file: a curve, or one line of InputError. Never a traceback, never a second line."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.runs import read_run

SAMPLES = [
    b"step,accuracy,run\n" + b"".join(b"%d,0.%d,%s\n" % (n, n + 10, b"a" if n % 2 else b"b") for n in range(20)),
    b"".join(b'{"step": %d, "reward": 0.%d, "eval": {"acc": NaN}}\n' % (n, n + 10) for n in range(20)),
    json.dumps({"log_history": [{"step": n, "reward": n / 20, "epoch": 0.1} for n in range(20)]}, indent=1).encode(),
    b"".join(
        b"\x1b[36m(T pid=1)\x1b[0m step:%d - critic/score/mean:np.float64(0.%d) - a/b:1\n" % (n, n) for n in range(9)
    ),
    b"".join(b" 1%%|x| %d/20 [00:01]\r{'loss': '0.1', 'reward': 0.%d, 'epoch': 0.1}\n" % (n, n) for n in range(9)),
    b"".join(b"[tag]  %d/20 | loss=0.1 | acc=%d.5%%\n" % (n, n) for n in range(9)),
    b'"Step","a - acc","a - acc__MIN","b - acc"\n' + b"".join(b"%d,0.1,0.1,0.2\n" % n for n in range(9)),
    "step,acc\n1,0.2\n2,0.3\n".encode("utf-16"),
]
PIECES = [b"NaN", b"-Infinity", b"{", b"}", b"[", b'"', b"'", b",", b"\n", b"\r", b"\0",
          b"1e400", b"9" * 400, b"\xff\xfe",
          b"\x1f\x8b",
          b"%", b" - ", b"\xe2\x80\xa8", b"\x85", b"step", b":", b"=", b"nan", b"\x1b["]  # fmt: skip
edits = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(0, 40), st.one_of(st.sampled_from(PIECES), st.binary(max_size=8))),
    min_size=1,
    max_size=6,
)
options = st.sampled_from(
    [
        {},
        {"x": "step"},
        {"y": "reward"},
        {"devices": 8.0},
        {"factor": 2.0},
        {"scale": "percent"},
        {"trials": 10},
        {"run": "a"},
    ]
)


def check(content: bytes, **kwargs: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(content)
        try:
            log = read_run(path)
            curve = log.curve(**kwargs)  # type: ignore[arg-type]
            assert ((curve.score >= 0) & (curve.score <= 1)).all()
            log.truncation()
        except InputError as error:
            message = str(error)
            assert len(message.splitlines()) == 1, message
            assert len(message) < 1000


@settings(max_examples=150)
@given(st.sampled_from(SAMPLES), edits, options)
def test_damaged_logs(sample: bytes, changes: list[tuple[int, int, bytes]], kwargs: dict[str, object]) -> None:
    content = sample
    for at, length, piece in changes:
        at %= len(content) + 1
        content = content[:at] + piece + content[at + length :]
    check(content, **kwargs)


@settings(max_examples=100)
@given(st.binary(max_size=600))
def test_random_bytes(content: bytes) -> None:
    check(content)


@settings(max_examples=100)
@given(st.text(alphabet=st.sampled_from('{}[]",:=.|-+ \n\t0123456789eNaInfstepacrw/@%'), max_size=200))
def test_random_text_of_logs(content: str) -> None:
    check(content.encode())


@settings(max_examples=60)
@given(st.sampled_from(SAMPLES), st.integers(0, 2000))
def test_cut_anywhere(sample: bytes, at: int) -> None:
    check(sample[: at % (len(sample) + 1)])
