"""Which slots of the cache hold the keys of which prompt, so that each prompt is computed once for its whole group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Tokens = tuple[int, ...]


class FilledPrompts:
    """What was computed with the weights of now; on an update `forget_all`.

    Args:
        shelf: slots in which nothing runs: prompts lie there that were computed ahead of their turn.
    """

    def __init__(self, shelf: Sequence[int]) -> None:
        self._shelf, self._next = shelf, 0
        self._slots_of: dict[Tokens, set[int]] = {}
        self._prompt_in: dict[int, Tokens] = {}

    def assign(
        self, slots: list[int], prompts: list[Tokens], coming: Iterable[Tokens] = ()
    ) -> tuple[dict[Tokens, int], list[tuple[int, int]]]:
        """Let slots hold these prompts from now on.

        Args:
            slots: whose contents are lost. prompts: one for each. coming: will be wanted later.

        Returns:
            Slots to compute prompts in, and then (source, target) slots to copy.
        """
        self.forget(slots)
        missing = list(dict.fromkeys(prompt for prompt in prompts if prompt not in self._slots_of))
        new = self._ahead(missing, coming) if 0 < len(missing) <= len(self._shelf) else {}
        copied = []
        sources = {prompt: min(self._slots_of[prompt]) for prompt in set(prompts) if prompt in self._slots_of}
        for slot, prompt in zip(slots, prompts, strict=True):
            if prompt in sources:
                copied.append((sources[prompt], slot))
            else:
                sources[prompt] = new[prompt] = slot
            self._hold(slot, prompt)
        return new, copied

    def forget(self, slots: list[int]) -> None:
        """These slots are about to hold something else."""
        for slot in slots:
            prompt = self._prompt_in.pop(slot, None)
            if prompt is not None:
                self._slots_of[prompt].remove(slot)
                if not self._slots_of[prompt]:
                    del self._slots_of[prompt]

    def forget_all(self) -> None:
        """Nothing is worth copying any more."""
        self._slots_of.clear()
        self._prompt_in.clear()

    def _ahead(self, missing: list[Tokens], coming: Iterable[Tokens]) -> dict[Tokens, int]:
        """Slots on the shelf for these prompts and, where there is room, for the next ones."""
        wanted = dict.fromkeys(missing)
        for prompt in coming:
            if len(wanted) == len(self._shelf):
                break
            if prompt not in self._slots_of:
                wanted[prompt] = None
        new = {}
        for prompt in wanted:
            slot = self._shelf[self._next]
            self._next = (self._next + 1) % len(self._shelf)
            self.forget([slot])
            self._hold(slot, prompt)
            new[prompt] = slot
        return new

    def _hold(self, slot: int, prompt: Tokens) -> None:
        self._slots_of.setdefault(prompt, set()).add(slot)
        self._prompt_in[slot] = prompt
