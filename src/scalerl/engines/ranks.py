"""Ranks of a sharded trainer: joining them, and running them as processes behind one pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

_PATIENCE = timedelta(days=7)
"""For a collective. Ranks wait in one while generators work; that one has died is seen by its closed pipe."""


@contextmanager
def joined(rank: int, ranks: int, rendezvous: str) -> Iterator[None]:
    """Be one of `ranks` within: NCCL between GPUs, one a rank, and gloo between CPUs.

    Args:
        rendezvous: of `torch.distributed.init_process_group`, such as file:///shared/new-file or tcp://host:port.
    """
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, rendezvous, _PATIENCE, ranks, rank)
    try:
        yield
    finally:
        dist.destroy_process_group()
