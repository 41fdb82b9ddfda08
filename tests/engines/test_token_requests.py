"""Two requests make the rollout that the torch generator makes token by token. TRAPS 17-19, 21, 22."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalerl.engines.generator import GeneratorSettings
from scalerl.engines.length_control import LengthLimits
from scalerl.engines.slots import Slots
from scalerl.engines.token_requests import Completion, RolloutPlan, TokenRequest, generate
from scalerl.engines.vllm_generator import VLLMGenerator
from scalerl.errors import EngineDied, InputError
from scalerl.types import Prompt, Rollout

CLOSE, PHRASE, ENDS = 3, (4, 1, 3), (1, 2)  # an end token inside the phrase ends nothing
THINK = LengthLimits((1, 6), 4, CLOSE, PHRASE, ENDS)
LIMITS = (THINK, LengthLimits((0, 0), 7, None, (), ENDS), LengthLimits((2, 3), 4, CLOSE, (), ENDS))
PROMPT = Prompt((7, 8, 9), "p", "t")


def token_by_token(limits: LengthLimits, samples: list[int], seed: int) -> tuple[Rollout, int]:
    """The torch generator's bookkeeping, and the budget that it drew."""
    slots = Slots(limits, 1)
    slots.start(np.array([0]), [(0, PROMPT)], torch.Generator().manual_seed(seed))
    budget, played, version = int(slots.control.budget[0]), iter(samples), 0
    while True:
        inserting = slots.control.phase[0] == 1
        token = 0 if inserting else next(played)
        version += not inserting and token % 2  # an update before every odd sample
        logprob = np.array([-token / 8], np.float32)
        _, ended = slots.record(np.array([0]), np.array([token]), logprob, version)
        if ended:
            return ended[0], budget


def player(samples: list[int], asked: list[TokenRequest]) -> Callable[..., Any]:
    """An engine that samples these tokens, and takes new weights before every odd one."""
    played, version = iter(samples), 0

    async def complete(request: TokenRequest, started: Callable[[], None]) -> Completion:
        nonlocal version
        asked.append(request)
        tokens, versions = [], []
        while len(tokens) < request.most and not (tokens and tokens[-1] in request.stop):
            tokens.append(next(played))
            version += tokens[-1] % 2
            versions.append(version)
            started()
        return Completion(tokens, [-token / 8 for token in tokens], versions)

    return complete


@given(
    limits=st.sampled_from(LIMITS), samples=st.lists(st.integers(1, 12), min_size=12, max_size=12),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_the_same_samples_make_the_same_rollout_as_the_torch_generators(
    limits: LengthLimits, samples: list[int], seed: int
) -> None:
    expected, budget = token_by_token(limits, samples, seed)
    asked: list[TokenRequest] = []
    plan = RolloutPlan(limits, budget, 1.0, "0")
    found = asyncio.run(generate(player(samples, asked), 0, PROMPT, plan, lambda: None))
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.loss_mask.tolist() == expected.loss_mask.tolist()
    assert np.array_equal(found.generator_logprobs, expected.generator_logprobs)
    assert (found.finish_reason, found.interrupted) == (expected.finish_reason, expected.interrupted)
    sampled = found.loss_mask
    assert found.policy_versions[sampled].tolist() == expected.policy_versions[sampled].tolist()
    assert (np.diff(found.policy_versions) >= 0).all()
    if len(asked) == 2:  # the answer stands on all that is known by then
        assert asked[1].token_ids == (*PROMPT.token_ids, *found.token_ids.tolist())[: len(asked[1].token_ids)]
        assert asked[1].salt == asked[0].salt


class Slow:
    """An engine whose requests start and end when told to."""

    def __init__(self) -> None:
        self.requests: list[tuple[TokenRequest, Callable[[], None], asyncio.Future[Completion]]] = []
        self.aborted: list[TokenRequest] = []
        self.log: list[str] = []
        self.fails = False

    async def open(self, version: int) -> None:
        self.log.append(f"open {version}")

    async def complete(self, request: TokenRequest, started: Callable[[], None]) -> Completion:
        if self.fails:
            raise EngineDied("gone")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.requests.append((request, started, future))
        try:
            return await future
        except asyncio.CancelledError:
            self.aborted.append(request)
            raise

    def stage(self, version: int, source: Any) -> str:
        return f"staged {version}"

    async def pause(self) -> None:
        self.log.append("pause")

    async def load(self, version: int, staged: str) -> None:
        self.log.append(f"load {version} {staged}")

    async def resume(self) -> None:
        self.log.append("resume")

    async def close(self) -> None:
        self.log.append("close")


@pytest.fixture
def slow() -> Any:
    engine = Slow()
    generator = VLLMGenerator(engine, GeneratorSettings(2, 8, LIMITS[1]))
    yield engine, generator
    generator.close()
    generator.close()
    assert engine.log.count("close") == 1


def settled(generator: VLLMGenerator) -> None:
    """Once through the loop, and all that it had to do."""
    for _ in range(3):
        generator._call(asyncio.sleep(0))


def tell(generator: VLLMGenerator, call: Callable[..., Any], *arguments: Any) -> None:
    generator._loop.call_soon_threadsafe(call, *arguments)
    settled(generator)


def test_what_has_no_token_at_an_update_starts_again_under_the_new_version(slow: Any) -> None:
    engine, generator = slow
    generator.submit([(i, PROMPT) for i in range(3)])
    settled(generator)
    assert [r.salt for r, _, _ in engine.requests] == ["0", "0"]  # two slots: the third waits here
    tell(generator, engine.requests[1][1])
    generator.update_weights(5, ())
    assert engine.log == ["open 0", "pause", "load 5 staged 5", "resume"]
    settled(generator)
    assert engine.aborted == [engine.requests[0][0]]
    assert [r.salt for r, _, _ in engine.requests] == ["0", "0", "5"]
    assert generator.state()["restarted"] == 1
    for _, _, future in engine.requests[1:]:
        tell(generator, future.set_result, Completion([6, 1], [-1.0, -2.0], [0, 5]))
    tell(generator, engine.requests[3][2].set_result, Completion([1], [-1.0], [5]))
    assert sorted(r.group_id for r in generator.poll()) == [0, 1, 2]
    assert generator.idle


def test_a_failed_update_stops_the_generator_until_one_succeeds(slow: Any) -> None:
    engine, generator = slow
    real = engine.load

    async def refuse(version: int, staged: str) -> None:
        raise EngineDied("wrong weights")

    engine.load = refuse
    with pytest.raises(EngineDied, match="wrong weights"):
        generator.update_weights(1, ())
    generator.submit([(0, PROMPT)])
    settled(generator)
    assert engine.requests == []
    assert "resume" not in engine.log
    engine.load = real
    generator.update_weights(2, ())
    settled(generator)
    assert [r.salt for r, _, _ in engine.requests] == ["2"]
    assert generator.version == 2


def test_an_engines_death_is_told_to_whoever_polls(slow: Any) -> None:
    engine, generator = slow
    engine.fails = True
    generator.submit([(0, PROMPT)])
    settled(generator)
    with pytest.raises(EngineDied, match="gone"):
        generator.poll()


def test_prompts_that_do_not_fit_are_refused(slow: Any) -> None:
    _, generator = slow
    for token_ids in ((), tuple(range(9))):
        with pytest.raises(InputError, match="raise prompt_tokens"):
            generator.submit([(0, Prompt(token_ids, "p", "t"))])


def test_seeds_are_given_only_once_asked_for_and_can_be_repeated(slow: Any) -> None:
    engine, generator = slow
    seeds = []
    for turn in range(3):
        if turn:
            generator.reseed(11)
        generator.submit([(turn, PROMPT)])
        settled(generator)
        request, _, future = engine.requests[-1]
        seeds.append(request.seed)
        tell(generator, future.set_result, Completion([1], [-1.0], [0]))
    assert seeds[0] is None
    assert seeds[1] is not None
    assert seeds[1] == seeds[2]
