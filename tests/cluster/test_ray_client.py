"""A cluster that is slow to serve a client is asked again."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")

import ray

from scalerl.engines.ray_cluster import connected
from scalerl.errors import InputError

SLOW = ConnectionAbortedError("Initialization failure from server:\nStarting Ray client server failed.")


@pytest.mark.parametrize(
    ("failures", "tries"),
    [([SLOW, SLOW], 3), ([SLOW] * 3, 3), ([ConnectionError("ray client connection timeout")], 1)],
    ids=["slow", "too slow", "nobody there"],
)
def test_a_slow_cluster_is_asked_again(failures: list[Exception], tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def init(**arguments: Any) -> None:
        asked.append(arguments["address"])
        if len(asked) <= len(failures):
            raise failures[len(asked) - 1]

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    if len(failures) < tries:
        with connected("ray://head:10001"):
            pass
    else:
        with pytest.raises(InputError, match="no Ray cluster answers"), connected("ray://head:10001"):
            pass
    assert asked == ["ray://head:10001"] * tries
