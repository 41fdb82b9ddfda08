"""The choice of a dtype: measured in seconds, whatever the model's size."""

from __future__ import annotations

import pytest
from tiny_models import tiny
from torch import Tensor, nn

from scalerl.engines import compute
from scalerl.engines.model import body


class Passes:
    """A body that takes `seconds[bf16]` a pass by the clock, and knows what it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fp32: float, bf16: float) -> None:
        self.seconds, self.now = {False: fp32, True: bf16}, 0.0
        self.tokens: list[int] = []
        monkeypatch.setattr(compute, "make_body", self.make)
        monkeypatch.setattr(compute.time, "perf_counter", lambda: self.now)

    def make(self, model: nn.Module, bf16: bool) -> compute.Body:
        weight = next(body(model).parameters())

        def run(token_ids: Tensor, lengths: Tensor | None) -> Tensor:
            self.now += self.seconds[bf16]
            self.tokens.append(token_ids.numel())
            return weight[:1]

        return run


@pytest.mark.parametrize(("bf16", "chosen"), [(0.5, "bf16"), (0.89, "bf16"), (0.95, "fp32"), (2.0, "fp32")])
def test_bf16_must_win_by_a_tenth(monkeypatch: pytest.MonkeyPatch, bf16: float, chosen: str) -> None:
    Passes(monkeypatch, 1e-3, bf16 * 1e-3)
    assert compute.choose_dtype(tiny(), 1024) == chosen


@pytest.mark.parametrize(("parameters", "tokens"), [(800_000, 4096), (135_000_000, 192), (8_000_000_000, 128)])
def test_a_large_model_is_asked_with_fewer_tokens(
    monkeypatch: pytest.MonkeyPatch, parameters: int, tokens: int
) -> None:
    passes = Passes(monkeypatch, 1e-3, 2e-3)
    monkeypatch.setattr(compute, "count_parameters", lambda model, active: parameters)
    compute.choose_dtype(tiny(), 4096)
    assert set(passes.tokens) == {tokens}
    assert len(passes.tokens) == 8


def test_long_passes_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(monkeypatch, 5.0, 1.0)
    assert compute.choose_dtype(tiny(), 4096) == "bf16"
    assert len(passes.tokens) == 4
