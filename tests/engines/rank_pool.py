"""Ranks that wait for functions to run: started once for many checks, since each start costs seconds."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_MODELS = [f"transformers.models.{kind}.modeling_{kind}" for kind in ("qwen3", "qwen3_moe")]
_context.set_forkserver_preload(["rank_checks", *_MODELS])  # imported once for all ranks


class RankPool:
    """`count` processes that have joined one another."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count = count
        pairs = [_context.Pipe() for _ in range(count)]
        self.pipes = [ours for ours, _ in pairs]
        rendezvous = f"file://{folder}/rendezvous"
        self.processes = [
            _context.Process(target=_serve, args=(theirs, rank, count, rendezvous), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process in self.processes:
            process.start()
        for _, theirs in pairs:
            theirs.close()

    def run(self, function: Callable[..., Any], *arguments: Any, timeout: float = 60.0) -> list[Any]:
        """What function(*arguments) returns on each rank; it is found by its name in its module."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        results = []
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(timeout), f"rank {rank} of {self.count} hangs in {function.__name__}"
            result, error = pipe.recv()
            assert error is None, f"rank {rank} of {self.count}: {error}"
            results.append(result)
        return results

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: Connection, rank: int, count: int, rendezvous: str) -> None:
    import torch

    from scalerl.engines.ranks import joined

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with joined(rank, count, rendezvous):
        while True:
            try:
                function, arguments = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send((function(*arguments), None))
            except Exception:
                pipe.send((None, traceback.format_exc()))
