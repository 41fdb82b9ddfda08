"""The groups under way: submitted -> finished -> in batch -> trained. A slot is freed by the last arrow only.

A group is finished when all its rollouts have arrived and been judged. Left out on purpose: verification itself, and
any choice by content; the order of training is by deadline, then by who finished first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import CheckpointError
from scalerl.pipeline.admission import Admission
from scalerl.types import Group, Prompt, Rollout

Arrays = dict[str, NDArray[Any]]
_FIELDS = ("token_ids", "generator_logprobs", "loss_mask", "policy_versions")


class State(StrEnum):
    """Where a group stands; once trained it is forgotten."""

    SUBMITTED = "submitted"
    FINISHED = "finished"
    IN_BATCH = "in-batch"


@dataclass(eq=False, slots=True)
class Entry:
    """One draw of one prompt.

    Attributes:
        deadline: last step at which it may be trained. version: policy version of the generator when it was submitted.
        rewards: one a rollout, NaN for excluded ones, None while it is being judged.
    """

    group_id: int
    prompt: Prompt
    deadline: int
    version: int
    state: State = State.SUBMITTED
    rollouts: list[Rollout] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    judged: int = 0

    def group(self) -> Group:
        """As the recipe takes it."""
        return Group(self.group_id, tuple(self.rollouts), np.array(self.rewards, dtype=np.float32))


class Buffer:
    """Holds at most `admission.capacity` groups.

    Args:
        admission: the bound on their number and staleness.
        generations: rollouts a group.
        in_order: batches by group id instead of by who finished first, so that a run can be repeated exactly.

    Attributes:
        surplus: rollouts of no group, or of a complete one, dropped. too_old: those that began on weights older than
            their group's submission, so that training them could break the bound; dropped and asked for again.
    """

    def __init__(self, admission: Admission, generations: int, in_order: bool = False) -> None:
        self.admission, self.generations, self.in_order = admission, generations, in_order
        self.next_group = self.finished = self.unfinished = self.surplus = self.too_old = 0
        self._entries: dict[int, Entry] = {}
        self._ready: dict[int, list[Entry]] = {}
        self._looked = False
        """Whether nothing has finished since a batch was last refused."""

    def __len__(self) -> int:
        return len(self._entries)

    def submit(self, prompt: Prompt, version: int) -> Entry:
        """A new group; see `admission.free`. The generator must hold `version` or later by now."""
        entry = Entry(self.next_group, prompt, self.admission.admit(), version)
        self.next_group += 1
        self._entries[entry.group_id] = entry
        self.unfinished += 1
        return entry

    def add(self, rollout: Rollout) -> int | None:
        """Take in a rollout; returns its place within the group, for `judge`. None if it was dropped: ask `wants`."""
        entry = self._entries.get(rollout.group_id)
        if entry is None or len(entry.rollouts) >= self.generations:
            self.surplus += 1
            return None
        if rollout.oldest_version < entry.version:
            self.too_old += 1
            return None
        entry.rollouts.append(rollout)
        entry.rewards.append(None)
        return len(entry.rollouts) - 1

    def wants(self, group_id: int) -> bool:
        """Whether a group still lacks rollouts."""
        entry = self._entries.get(group_id)
        return entry is not None and len(entry.rollouts) < self.generations

    def judge(self, group_id: int, place: int, reward: float | None) -> Entry | None:
        """Set a rollout's reward, None where it must be excluded; returns the group if that finished it."""
        entry = self._entries[group_id]
        entry.rewards[place] = float("nan") if reward is None else reward
        entry.judged += 1
        if entry.judged < self.generations:
            return None
        self.unfinished -= 1
        self._finish(entry)
        return entry

    def take(self) -> list[Entry] | None:
        """The groups of the next batch, or None if it must wait. They keep their slots until `trained`."""
        wanted = self.admission.prompts_per_step
        if self.finished < wanted or self._looked:
            return None
        self._looked = True
        batch: list[Entry] = []
        for deadline in sorted(self._ready):
            queue = self._ready[deadline]
            if self.in_order:
                queue.sort(key=lambda entry: entry.group_id)
            batch += queue[: wanted - len(batch)]
        if not self.admission.allows(entry.deadline for entry in batch):
            return None
        for entry in batch:
            entry.state = State.IN_BATCH
        for deadline in {entry.deadline for entry in batch}:
            left = [entry for entry in self._ready.pop(deadline) if entry.state is State.FINISHED]
            if left:
                self._ready[deadline] = left
        self.finished -= wanted
        self._looked = False
        return batch

    def trained(self, batch: list[Entry]) -> None:
        """The step on these groups was taken: one step further, and their slots are free."""
        self.admission.trained(entry.deadline for entry in batch)
        for entry in batch:
            del self._entries[entry.group_id]
        self._looked = False

    def start_again(self, version: int) -> list[tuple[int, Prompt]]:
        """What a new generator must be asked for, since the old one's work is lost: (group_id, prompt) a rollout.

        Rollouts that have arrived are kept. A group that has none starts afresh and gets a new deadline.
        """
        requests: list[tuple[int, Prompt]] = []
        for entry in self._entries.values():
            missing = self.generations - len(entry.rollouts)
            if missing == self.generations:
                entry.deadline, entry.version = self.admission.renew(entry.deadline), version
            requests += [(entry.group_id, entry.prompt)] * missing
        self._looked = False
        return requests

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """All outstanding groups: what JSON can hold, and the tokens of their rollouts as arrays.

        Raises:
            RuntimeError: a batch is being trained; a checkpoint is taken between steps.
        """
        rollouts = [rollout for entry in self._entries.values() for rollout in entry.rollouts]
        if any(e.state is State.IN_BATCH for e in self._entries.values()):
            raise RuntimeError("the buffer is saved only between steps")
        ranks = {e.group_id: rank for rank, e in enumerate(e for queue in self._ready.values() for e in queue)}
        entries = [
            {
                "group_id": e.group_id, "prompt_id": e.prompt.prompt_id, "deadline": e.deadline, "version": e.version,
                "finished": ranks.get(e.group_id), "rollouts": len(e.rollouts),
                "rewards": [None if reward is None or np.isnan(reward) else reward for reward in e.rewards],
                "unjudged": [place for place, reward in enumerate(e.rewards) if reward is None],
                "finish_reasons": [rollout.finish_reason for rollout in e.rollouts],
                "interrupted": [rollout.interrupted for rollout in e.rollouts],
            }
            for e in self._entries.values()
        ]  # fmt: skip
        arrays: Arrays = {"lengths": np.array([len(rollout.token_ids) for rollout in rollouts], dtype=np.int64)}
        for name, kind in zip(_FIELDS, (np.int64, np.float32, np.bool_, np.int64), strict=True):
            parts: list[NDArray[Any]] = [getattr(rollout, name) for rollout in rollouts]
            arrays[name] = np.concatenate([np.zeros(0, dtype=kind), *parts])
        counts = {name: getattr(self, name) for name in ("next_group", "surplus", "too_old")}
        return {"entries": entries, **counts}, arrays

    def restore(
        self, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], prompt: Callable[[str], Prompt]
    ) -> None:
        """Take in what `state` returned; `prompt` finds one by its id. Then call `start_again` and `unjudged`.

        Raises:
            CheckpointError: state and arrays do not fit together.
        """
        for name in ("next_group", "surplus", "too_old"):
            setattr(self, name, int(state[name]))
        ends = np.cumsum([0, *arrays["lengths"]])
        if any(len(arrays[name]) != ends[-1] for name in _FIELDS) or len(arrays["lengths"]) != sum(
            item["rollouts"] for item in state["entries"]
        ):
            raise CheckpointError(
                "the checkpoint's buffer does not hold the tokens that its state names: use another one"
            )
        at, ready = 0, []
        for item in state["entries"]:
            self.admission.restore(item["deadline"])
            entry = Entry(item["group_id"], prompt(item["prompt_id"]), item["deadline"], item["version"])
            for i in range(item["rollouts"]):
                cut = slice(ends[at], ends[at + 1])
                tokens, logprobs, mask, versions = (arrays[name][cut].copy() for name in _FIELDS)
                why, interrupted = item["finish_reasons"][i], item["interrupted"][i]
                entry.rollouts.append(
                    Rollout(entry.prompt, entry.group_id, tokens, logprobs, mask, versions, why, interrupted)
                )
                at += 1
            entry.rewards = [float("nan") if reward is None else float(reward) for reward in item["rewards"]]
            _unjudge(entry, item["unjudged"])
            self._entries[entry.group_id] = entry
            if item["finished"] is None or entry.judged < self.generations:
                self.unfinished += 1
            else:
                ready.append((item["finished"], entry))
        for _, entry in sorted(ready, key=lambda pair: pair[0]):
            self._finish(entry)

    def unjudged(self) -> list[tuple[int, int, Rollout]]:
        """(group_id, place, rollout) of those without a verdict, for `judge`."""
        return [
            (entry.group_id, place, rollout)
            for entry in self._entries.values()
            for place, rollout in enumerate(entry.rollouts)
            if entry.rewards[place] is None
        ]

    def _finish(self, entry: Entry) -> None:
        entry.state = State.FINISHED
        self._ready.setdefault(entry.deadline, []).append(entry)
        self.finished += 1
        self._looked = False


def _unjudge(entry: Entry, places: list[int]) -> None:
    """Forget the verdicts of these places, and all of a group without any: what failed may be mended by now."""
    if all(reward is not None and np.isnan(reward) for reward in entry.rewards):
        places = [place for place, rollout in enumerate(entry.rollouts) if rollout.finish_reason != "late"]
    for place in places:
        entry.rewards[place] = None
    entry.judged = len(entry.rewards) - len(places)
