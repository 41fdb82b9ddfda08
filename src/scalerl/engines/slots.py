"""What runs in which slot: positions, the tokens so far with all that is known of each, and finished rollouts."""

from __future__ import annotations

import numpy as np
import torch

from scalerl.engines.length_control import LengthControl, LengthLimits
from scalerl.types import FloatArray, IntArray, Prompt, Rollout


class Slots:
    """Arrays with one row a slot; numpy's, because on a few hundred numbers its calls cost a third of torch's.

    Attributes:
        active: whether a rollout runs. position: where its next input stands. next_input: that token.
        count: tokens it has so far. running: its group_id and prompt, None where nothing runs.
    """

    def __init__(self, limits: LengthLimits, slots: int) -> None:
        self.control = LengthControl(limits, slots)
        self.active = np.zeros(slots, np.bool_)
        self.next_input, self.position, self.count = (np.zeros(slots, np.int64) for _ in range(3))
        shape = (slots, limits.most)
        self._tokens, self._versions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._logprobs, self._mask = np.zeros(shape, np.float32), np.zeros(shape, np.bool_)
        self.running: list[tuple[int, Prompt] | None] = [None] * slots

    def __len__(self) -> int:
        return len(self.active)

    @property
    def rows(self) -> IntArray:
        """Slots with a rollout, in order."""
        return np.flatnonzero(self.active)

    def start(self, slots: IntArray, taken: list[tuple[int, Prompt]], rng: torch.Generator) -> None:
        """Begin a rollout for each (group_id, prompt); the prompt's last token is the first input."""
        for slot, item in zip(slots.tolist(), taken, strict=True):
            self.running[slot] = item
        self.active[slots] = True
        self.position[slots] = [len(prompt.token_ids) - 1 for _, prompt in taken]
        self.next_input[slots] = [prompt.token_ids[-1] for _, prompt in taken]
        self.count[slots] = 0
        self.control.start(slots, rng)

    def move(self, sources: IntArray, targets: IntArray) -> None:
        """Let free slots take over the rollouts of others, which become free."""
        for state in (
            self.next_input, self.position, self.count, self._tokens, self._versions, self._logprobs, self._mask,
        ):  # fmt: skip
            state[targets] = state[sources]
        self.control.move(sources, targets)
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self.running[target], self.running[source] = self.running[source], None
        self.active[targets], self.active[sources] = True, False

    def record(
        self, rows: IntArray, sampled: IntArray, logprobs: FloatArray, version: int
    ) -> tuple[int, list[Rollout]]:
        """Append a token to each running rollout.

        Args:
            rows: (b,) all slots that run. sampled: (b,) tokens of the policy, and their (b,) log-probabilities.
            version: of the weights that computed them.

        Returns:
            How many tokens are the policy's and not inserted, and the rollouts that end with theirs.
        """
        token, from_policy, stopped, ran_out = self.control.advance(rows, sampled)
        at = (rows, self.count[rows])
        self._tokens[at], self._versions[at] = token, version
        self._logprobs[at], self._mask[at] = np.where(from_policy, logprobs, np.float32(0)), from_policy
        self.count[rows] += 1
        self.position[rows] += 1
        self.next_input[rows] = token
        done = stopped | ran_out
        ended = [self._finish(*end) for end in zip(rows[done].tolist(), stopped[done].tolist(), strict=True)]
        return int(np.count_nonzero(from_policy)), ended

    def _finish(self, slot: int, by_end: bool) -> Rollout:
        running = self.running[slot]
        assert running is not None  # only active slots finish
        group_id, prompt = running
        n = int(self.count[slot])
        self.running[slot] = None
        self.active[slot] = False
        return Rollout(
            prompt, group_id, self._tokens[slot, :n].copy(), self._logprobs[slot, :n].copy(),
            self._mask[slot, :n].copy(), self._versions[slot, :n].copy(),
            "stop" if by_end else "length", bool(self.control.interrupted[slot]),
        )  # fmt: skip
