"""Weights in shared memory: never torn, pinned while held, and safe from readers that die (TRAPS 8, 21)."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import torch
from tiny_models import tiny
from torch import Tensor

from scalerl.engines.model import bind_tensors, checksum, head_weight, named_tensors
from scalerl.engines.weights import NewestWeights, SharedWeights
from scalerl.errors import ScaleRLError

SPAWN = multiprocessing.get_context("spawn")


def filled(version: int) -> dict[str, Tensor]:
    """Every element of every tensor says the version: any mixture shows."""
    return {"a": torch.full((300, 70), float(version)), "b": torch.full((5,), float(version))}


def read_for_a_while(shared: SharedWeights, pipe: Connection, seconds: float) -> None:
    reader, end = shared.reader(), time.monotonic() + seconds
    torn = backwards = reads = last = 0
    pipe.send("ready")
    while time.monotonic() < end:
        held = reader.acquire()
        if held is None:
            continue
        with held:
            views = dict(held)
            torn += any(bool((view != held.version).any()) for view in views.values())
            torn += any(bool((view != held.version).any()) for view in views.values())  # still so a moment later
            backwards += held.version < last
            last = held.version
            reads += 1
    pipe.send((torn, backwards, reads))


def hold_for_ever(shared: SharedWeights, pipe: Connection) -> None:
    held = shared.reader().acquire()
    assert held is not None
    pipe.send(held.version)
    time.sleep(600)


@pytest.fixture
def shared() -> SharedWeights:
    return SharedWeights(filled(0), buffers=3)


def test_concurrent_readers_never_see_a_torn_or_older_set(shared: SharedWeights) -> None:
    pipes, children = [], []
    for _ in range(2):
        ours, theirs = SPAWN.Pipe()
        children.append(SPAWN.Process(target=read_for_a_while, args=(shared, theirs, 1.0)))
        children[-1].start()
        pipes.append(ours)
    assert [p.recv() for p in pipes] == ["ready", "ready"]
    version = 0
    while not all(p.poll() for p in pipes):
        version += 1
        shared.publish(version, filled(version))
    for pipe, child in zip(pipes, children, strict=True):
        torn, backwards, reads = pipe.recv()
        child.join()
        assert (torn, backwards) == (0, 0)
        assert reads > 20
    assert version > 20


def test_a_reader_that_is_killed_blocks_nobody(shared: SharedWeights) -> None:
    shared.publish(1, filled(1))
    children = []
    for version in (1, 2):  # two of three buffers held, the third is the newest: nothing is free
        ours, theirs = SPAWN.Pipe()
        children.append(SPAWN.Process(target=hold_for_ever, args=(shared, theirs)))
        children[-1].start()
        assert ours.recv() == version
        shared.publish(version + 1, filled(version + 1))
    with pytest.raises(ScaleRLError, match="no free weight buffer"):
        shared.publish(4, filled(4), timeout=0.05)
    os.kill(children[0].pid or 0, signal.SIGKILL)
    shared.publish(4, filled(4), timeout=10.0)  # not reaped yet: a zombie holds nothing
    for child in children:
        child.kill()
        child.join()
    assert shared.newest_version == 4


def test_a_held_version_stays_whole_and_can_be_held_by_its_number(shared: SharedWeights) -> None:
    reader = shared.reader()
    assert reader.acquire() is None
    shared.publish(1, filled(1))
    pinned = reader.acquire(1)
    assert pinned is not None
    for version in range(2, 9):
        shared.publish(version, filled(version))
    assert all(bool((view == 1).all()) for _, view in pinned)
    assert reader.acquire(2) is None  # long overwritten
    again = reader.acquire(1)
    assert again is not None
    pinned.release(), pinned.release()  # a second release is nothing
    shared.publish(9, filled(9)), shared.publish(10, filled(10))
    assert all(bool((view == 1).all()) for _, view in again)
    again.release()
    shared.publish(11, filled(11)), shared.publish(12, filled(12))
    assert shared.versions() == [11, 12] or len(shared.versions()) == 3
    assert 1 not in shared.versions()


@pytest.mark.parametrize("kind", ["tied", "untied", "moe"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_every_parameter_arrives_and_costs_no_copy(kind: str, dtype: torch.dtype | None) -> None:
    writer, generator = tiny(kind), tiny(kind, seed=1)
    shared = SharedWeights(named_tensors(writer), dtype=dtype)
    shared.publish(1, named_tensors(writer))
    held = shared.reader().acquire()
    assert held is not None
    bind_tensors(generator, dict(held))
    sent = {n: t.detach().to(dtype or t.dtype) for n, t in named_tensors(writer).items()}
    assert checksum(named_tensors(generator).items()) == checksum(sent.items())
    assert all(t.is_shared() for t in named_tensors(generator).values())
    assert [m[0] for m in held.metadata()] == list(sent)
    if kind == "tied":
        assert head_weight(generator).data_ptr() == generator.get_input_embeddings().weight.data_ptr()


def test_iterating_takes_the_newest_and_lets_the_old_go(shared: SharedWeights) -> None:
    source = NewestWeights(shared)
    with pytest.raises(ScaleRLError, match="no weights have been published"):
        dict(source)
    for version in range(6):
        shared.publish(version, filled(version), timeout=1.0)
        assert float(dict(source)["b"][0]) == version
    assert source.metadata() == [("a", "float32", (300, 70)), ("b", "float32", (5,))]


def test_a_full_table_of_readers_says_so() -> None:
    shared = SharedWeights(filled(0), readers=1)
    first = shared.reader()
    with pytest.raises(ScaleRLError, match="make room for more readers"):
        shared.reader()
    first.close()
    shared.reader()


def test_another_set_of_tensors_is_refused(shared: SharedWeights) -> None:
    with pytest.raises(ValueError, match="differs"):
        shared.publish(1, {"a": torch.zeros(300, 70)})
    for foreign in ("a", "c"):
        with pytest.raises(ValueError, match=f"differs.*{foreign} is not theirs"):
            shared.publish(1, ((name, torch.zeros(300, 70)) for name in ("a", foreign)))
    assert 1 not in shared.versions()
    shared.publish(2, iter(filled(2).items()))
    assert shared.newest_version == 2
    with pytest.raises(ValueError, match="at least 3"):
        SharedWeights(filled(0), buffers=2)


@pytest.fixture(autouse=True)
def _no_children_left() -> Iterator[None]:
    yield
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
