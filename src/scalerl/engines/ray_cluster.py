"""A Ray cluster: the one that is there, or one on this machine; and room for groups of actors on it."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from scalerl.errors import InputError

_log = logging.getLogger(__name__)
_SOON = 5.0
"""Seconds after which whoever waits for room is told so."""
_TRIES = 3
"""To become a client of a cluster."""
Resources = Mapping[str, float]
"""Of one actor: CPU, GPU, and custom resources of the cluster."""


def _init(**arguments: Any) -> None:
    """`ray.init`, again where a cluster that answers has not started a client's server within its half minute."""
    for left in range(_TRIES - 1, -1, -1):
        try:
            ray.init(**arguments)
        except ConnectionAbortedError as error:
            if not left or "Initialization failure from server" not in str(error):
                raise
        else:
            return


@contextmanager
def connected(
    address: str | None = None, runtime_env: Mapping[str, Any] | None = None, cpus: float = 0
) -> Iterator[None]:
    """Be a driver of a cluster within; one that is connected already stays so.

    Args:
        address: host:port, ray://host:port, or auto for the cluster of this machine; None: what RAY_ADDRESS names, else
            a new one on this machine, which ends with this process.
        runtime_env: of every actor, as Ray takes it.
        cpus: that will be asked for; a new cluster has at least so many, whatever the machine has.

    Raises:
        InputError: there is no cluster at that address.
    """
    if ray.is_initialized():
        yield
        return
    where = address or os.environ.get("RAY_ADDRESS")
    # Usage reports would leave the machine; a dashboard costs a process that nobody here looks at.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    own = {} if where else {"include_dashboard": False, "num_cpus": max(os.cpu_count() or 1, math.ceil(cpus))}
    try:
        with _own_signal_handlers():
            _init(
                address=where or "local",  # else Ray would look for one that was left running here
                runtime_env=None if runtime_env is None else dict(runtime_env),
                log_to_driver=False,
                logging_level="warning",
                **own,
            )
    except Exception as error:  # Ray raises bare ones where a start takes too long
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if where is None:
            raise InputError(
                f"engines.launch = ray: Ray could not be started on this machine ({reason}); try again when it is less "
                "busy, or name a cluster by engines.ray.address"
            ) from error
        raise InputError(
            f"engines.ray.address = {where}: no Ray cluster answers ({reason}); start one with `ray start --head`, "
            "leave the address out for one on this machine, or set RAY_AUTH_MODE=token if that one asks for a token"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def reserved(actors: int, each: Resources, strategy: str, what: str, seconds: float) -> Iterator[PlacementGroup]:
    """Room for so many actors, taken as a whole or not at all.

    Args:
        strategy: PACK: on few nodes; SPREAD: on many. what: for messages. seconds: to wait for it.

    Raises:
        InputError: the cluster has not that much, or not within the time.
    """
    group = placement_group([dict(each)] * actors, strategy=strategy)
    try:
        if not group.wait(min(_SOON, seconds)):
            has, free = _said(ray.cluster_resources(), each), _said(ray.available_resources(), each)
            there = f"the cluster has {has}, free are {free}"
            _log.warning("%s: waiting up to %g s for %d x %s; %s", what, seconds, actors, _said(each), there)
            if not group.wait(max(seconds - _SOON, 0)):
                raise InputError(
                    f"{what}: {actors} x {_said(each)} cannot be had within {seconds:g} s; {there}: ask for less, "
                    "or add nodes"
                )
        yield group
    finally:
        remove_placement_group(group)


def options(each: Resources, group: PlacementGroup | None, place: int = -1) -> dict[str, Any]:
    """Of an actor at a place of a group, or anywhere if there is none."""
    found: dict[str, Any] = {
        "num_cpus": each.get("CPU", 0),
        "num_gpus": each.get("GPU", 0),
        "resources": {name: amount for name, amount in each.items() if name not in ("CPU", "GPU")},
    }
    if group is None:
        return found | {"scheduling_strategy": "SPREAD"}
    strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=place)
    return found | {"scheduling_strategy": strategy}


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep this process's handlers: Ray would put its own in their place, and abort where a run ends in good order."""
    signals = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _said(resources: Mapping[str, float], only: Sequence[str] | Resources | None = None) -> str:
    names = sorted(only if only is not None else resources)
    return " + ".join(f"{resources.get(name, 0):g} {name}" for name in names) or "nothing"
