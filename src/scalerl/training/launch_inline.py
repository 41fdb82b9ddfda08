"""Everything in this process, in turns: for tests and for lockstep."""

from __future__ import annotations

from typing import Any

from scalerl.training.engines import Engines, Launch, make_trainer
from scalerl.training.inline import InlineGenerator


def launch_inline(ask: Launch) -> Engines:
    """Engines that compute within the calls of the controller."""
    import torch

    settings, folder = ask.settings, ask.origin.folder
    before = torch.get_num_threads()
    torch.set_num_threads(settings.engines.trainer_threads or 1)
    ask.closing.callback(torch.set_num_threads, before)
    dtype, lockstep = settings.engines.generator_dtype, settings.recipe.schedule == "lockstep"
    generator = _turn(ask, ask.generator_factory(folder, dtype, ask.generation))
    evaluator = generator
    if not lockstep and settings.evaluation.every:
        evaluator = _turn(ask, ask.evaluator_factory(folder, dtype, ask.evaluation))
    return Engines(generator, evaluator, make_trainer(folder, ask.training))


def _turn(ask: Launch, generator: Any) -> InlineGenerator:
    ask.closing.callback(getattr(generator, "close", lambda: None))
    return InlineGenerator(generator)
