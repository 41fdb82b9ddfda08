"""A real vLLM reports what the model says, over updates in flight too. TRAPS 1, 3, 4, 7, 8, 17-19, 21, 22."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

from scalerl.engines.generator import GeneratorSettings
from scalerl.engines.head import token_logprobs
from scalerl.engines.length_control import LengthLimits
from scalerl.engines.model import body, build_model, export_model, head_weight, named_tensors
from scalerl.engines.token_requests import TokenRequest
from scalerl.engines.vllm_engine import VLLMEngine
from scalerl.engines.vllm_generator import VLLMGenerator
from scalerl.engines.vllm_options import VLLMOptions
from scalerl.engines.weights import TensorSource
from scalerl.errors import ScaleRLError
from scalerl.types import Prompt, Rollout

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
END, CLOSE, PHRASE = 1, 3, (4, 5, 3)
QWEN = {
    "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32,
    "num_key_value_heads": 1, "intermediate_size": 96, "vocab_size": 40, "max_position_embeddings": 256,
    "tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": END, "initializer_range": 0.15,
}  # fmt: skip
LONGEST, BLOCK = 80, 32
THINK = LengthLimits(thinking=(4, 9), answer=6, end_of_thinking=CLOSE, phrase=PHRASE, end_tokens=(END, 2))
PLAIN = LengthLimits((0, 0), 24, None, (), (END,))
ENDLESS = LengthLimits((0, 0), 100, None, (), ())
"""Nothing ends early."""


@pytest.fixture(scope="module")
def model() -> Any:
    torch.set_num_threads(1)
    return build_model(QWEN, seed=1)


@pytest.fixture(scope="module")
def started(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMGenerator]:
    folder = tmp_path_factory.mktemp("model")
    export_model(model, folder)
    settings = GeneratorSettings(8, LONGEST, ENDLESS)
    generator = VLLMGenerator(VLLMEngine(Path(folder), settings, VLLMOptions(check="full")), settings)
    yield generator
    generator.close()


@pytest.fixture
def generator(started: VLLMGenerator, model: Any) -> VLLMGenerator:
    """With the first weights under a version of their own, and nothing in its prefix cache that a test could meet."""
    started.update_weights(started.version + 1, source(model))
    return started


def source(model: Any) -> TensorSource:
    return TensorSource({name: tensor.detach() for name, tensor in named_tensors(model).items()})


def prompts(n: int, seed: int = 0, length: int | None = None) -> list[tuple[int, Prompt]]:
    rng = np.random.default_rng(seed)
    lengths = [length or int(rng.integers(1, 9)) for _ in range(n)]
    return [(i, Prompt(tuple(rng.integers(6, 40, size).tolist()), f"p{i}", "t")) for i, size in enumerate(lengths)]


def finished(generator: VLLMGenerator, seconds: float = 60.0) -> list[Rollout]:
    found, deadline = [], time.monotonic() + seconds
    while not generator.idle:
        assert time.monotonic() < deadline, generator.state()
        generator.step()
        found += generator.poll()
    return sorted([*found, *generator.poll()], key=lambda r: r.group_id)


def met_by_updates(
    generator: VLLMGenerator, first: Any, others: list[Any], asked: list[tuple[int, Prompt]]
) -> tuple[list[Rollout], dict[int, Any]]:
    """Rollouts of which an update to one of the others has met some, and the models by version. `first` is what the
    generator has. A busy machine may let all rollouts finish before the update: then again."""
    models = {generator.version: first}
    for _ in range(20):
        generator.submit(asked)
        for other in others:
            while not generator.idle and not all(job.started for job in tuple(generator._jobs)):
                generator.step()
            models[generator.version + 1] = other
            generator.update_weights(generator.version + 1, source(other))
        rollouts = finished(generator)
        if any(len(set(r.policy_versions)) > 1 for r in rollouts):
            return rollouts, models
    raise AssertionError("no update has met a rollout that ran")


def run(
    generator: VLLMGenerator, limits: LengthLimits, asked: list[tuple[int, Prompt]], **changes: Any
) -> list[Rollout]:
    before = generator.settings
    generator.settings = replace(before, limits=limits, **changes)
    try:
        generator.submit(asked)
        return finished(generator)
    finally:
        generator.settings = before


def recomputed(model: Any, rollout: Rollout, temperature: float = 1.0) -> np.ndarray:
    """Log-probabilities of a rollout's tokens by one plain forward over its own sequence."""
    ids = torch.tensor([*rollout.prompt.token_ids, *rollout.token_ids.tolist()])
    with torch.no_grad():
        hidden = body(model)(input_ids=ids[None, :-1], use_cache=False).last_hidden_state[0]
        logprobs, _ = token_logprobs(hidden, head_weight(model), ids[1:], temperature)
    return logprobs[len(rollout.prompt.token_ids) - 1 :].numpy()


def with_kept_keys(models: dict[int, Any], rollout: Rollout) -> np.ndarray:
    """The same where the weights changed meanwhile: each position's keys are of the weights that computed them."""
    ids = [*rollout.prompt.token_ids, *rollout.token_ids.tolist()]
    start, versions = len(rollout.prompt.token_ids), rollout.policy_versions.tolist()
    cache, logprobs = None, []
    for position in range(len(ids) - 1):
        now = models[versions[max(0, position + 1 - start)]]
        with torch.no_grad():
            out = body(now)(input_ids=torch.tensor([[ids[position]]]), past_key_values=cache, use_cache=True)
            found, _ = token_logprobs(out.last_hidden_state[0], head_weight(now), torch.tensor([ids[position + 1]]))
        cache = out.past_key_values
        logprobs.append(float(found))
    return np.array(logprobs[start - 1 :])


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_logprobs_are_the_trainers_at_the_same_temperature(
    generator: VLLMGenerator, model: Any, temperature: float
) -> None:
    rollouts = run(generator, THINK, prompts(20), temperature=temperature)
    assert len(rollouts) == 20
    for rollout in rollouts:
        mask = rollout.loss_mask
        expected = recomputed(model, rollout, temperature)
        assert np.allclose(rollout.generator_logprobs[mask], expected[mask], atol=1e-4)
        assert set(rollout.policy_versions) == {generator.version}


def test_greedy_is_the_likeliest_token(generator: VLLMGenerator, model: Any) -> None:
    for rollout in run(generator, PLAIN, prompts(6), temperature=0.0):
        ids = torch.tensor([[*rollout.prompt.token_ids, *rollout.token_ids.tolist()]])
        likeliest = model(input_ids=ids).logits[0, len(rollout.prompt.token_ids) - 1 : -1].argmax(-1)
        assert rollout.token_ids.tolist() == likeliest.tolist()


def test_the_phrase_is_inserted_once_masked_and_followed_by_the_answers_own_budget(generator: VLLMGenerator) -> None:
    rollouts = run(generator, THINK, prompts(80, seed=2))
    cut = [r for r in rollouts if r.interrupted]
    assert 5 < len(cut) < 80
    for rollout in cut:
        inserted = np.flatnonzero(~rollout.loss_mask)
        assert tuple(rollout.token_ids[inserted]) == PHRASE
        assert (np.diff(inserted) == 1).all()
        assert 4 <= inserted[0] <= 9
        assert not np.isin(rollout.token_ids[: inserted[0]], (CLOSE, END, 2)).any()
        assert (rollout.generator_logprobs[inserted] == 0).all()
        assert rollout.token_ids.size - inserted[-1] - 1 <= THINK.answer
    for rollout in rollouts:
        ended = rollout.token_ids[-1] in (END, 2)
        assert ended == (rollout.finish_reason == "stop")
        assert not np.isin(rollout.token_ids[:-1][rollout.loss_mask[:-1]], (END, 2)).any()
        assert rollout.interrupted == (not rollout.loss_mask.all())


def test_running_rollouts_keep_their_keys_over_updates_in_flight(generator: VLLMGenerator, model: Any) -> None:
    others = [build_model(QWEN, seed=seed) for seed in (2, 3)]
    rollouts, models = met_by_updates(generator, model, others, prompts(8))
    for rollout in rollouts:
        assert len(rollout.token_ids) == 100  # not a token is lost
        assert (np.diff(rollout.policy_versions) >= 0).all()
        assert np.allclose(rollout.generator_logprobs, with_kept_keys(models, rollout), atol=1e-3)
    spanning = next(r for r in rollouts if len(set(r.policy_versions)) > 1)
    lone = recomputed(models[generator.version], spanning)
    assert not np.allclose(spanning.generator_logprobs, lone, atol=1e-3)  # what clearing the cache would give


def test_a_new_rollout_meets_no_keys_of_older_weights(generator: VLLMGenerator) -> None:
    asked = prompts(8, seed=5, length=2 * BLOCK + 3)
    old = generator.version
    run(generator, PLAIN, asked)  # its prompts are in the prefix cache now
    other = build_model(QWEN, seed=7)
    generator.update_weights(old + 1, source(other))
    for rollout in run(generator, PLAIN, asked):
        assert np.allclose(rollout.generator_logprobs, recomputed(other, rollout), atol=1e-4)
    request = TokenRequest(asked[0][1].token_ids, 1, (), 1.0, str(old))
    completion = generator._call(generator.engine.complete(request, lambda: None))
    stale = Rollout(
        asked[0][1], 0, np.array(completion.token_ids), np.array(completion.logprobs, np.float32), np.array([True]),
        np.array(completion.versions), "length",
    )  # fmt: skip
    assert abs(completion.logprobs[0] - recomputed(other, stale)[0]) > 1e-3  # the old salt does find the old keys


def test_what_was_submitted_but_not_begun_before_an_update_meets_none_either(generator: VLLMGenerator) -> None:
    asked = prompts(8, seed=6, length=2 * BLOCK + 3)
    run(generator, PLAIN, asked)
    other, restarted = build_model(QWEN, seed=8), generator.restarted
    new = generator.version + 1
    staged = generator.engine.stage(new, source(other))
    generator.submit(asked)
    generator._call(generator._update(new, staged))
    rollouts = finished(generator)
    assert generator.restarted > restarted
    for rollout in rollouts:
        if rollout.oldest_version == new:
            assert np.allclose(rollout.generator_logprobs, recomputed(other, rollout), atol=1e-4)
    assert sum(r.oldest_version == new for r in rollouts) >= generator.restarted - restarted


@pytest.mark.parametrize("check", ["sampled", "full"])
@pytest.mark.parametrize(
    "name",
    ["model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight",
     "model.layers.1.mlp.down_proj.weight", "model.norm.weight"],
)  # fmt: skip
def test_a_value_that_changed_on_the_way_is_found(
    generator: VLLMGenerator, model: Any, name: str, check: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, engine = VLLMEngine.stage, generator.engine
    monkeypatch.setattr(engine, "options", VLLMOptions(check=check))  # type: ignore[arg-type]

    def damaged(version: int, weights: Any) -> Any:
        staged = real(engine, version, weights)  # type: ignore[arg-type]
        tensors = load_file(staged.info["path"])
        tensors = {n: t.clone() for n, t in tensors.items()}
        tensors[name].view(-1)[-tensors[name].shape[-1] :] += 1e-3  # a row of a matrix
        staged.info["path"] = str(tmp_path / "damaged")
        save_file(tensors, staged.info["path"])
        return staged

    with monkeypatch.context() as patch:
        patch.setattr(engine, "stage", damaged)
        with pytest.raises(ScaleRLError, match=rf"{name} is not what the trainer has \({check} check"):
            generator.update_weights(generator.version + 1, source(model))
    generator.update_weights(generator.version + 1, source(model))


def test_a_tensor_that_was_never_sent_is_found_before_anything_changes(generator: VLLMGenerator, model: Any) -> None:
    lacking = source(build_model(QWEN, seed=9))
    del lacking.tensors["model.layers.1.self_attn.v_proj.weight"]
    with pytest.raises(ScaleRLError, match=r"model.layers.1.self_attn.v_proj.weight was not sent"):
        generator.update_weights(generator.version + 1, lacking)
    generator._call(generator.engine.resume())
    request = TokenRequest((7, 8), 1, (), 0.0, "probe")
    completion = generator._call(generator.engine.complete(request, lambda: None))
    generator.update_weights(generator.version + 1, source(model))
    assert completion.token_ids == [int(model(input_ids=torch.tensor([[7, 8]])).logits[0, -1].argmax())]


def test_seeds_repeat_what_is_drawn(generator: VLLMGenerator) -> None:
    drawn = []
    for _ in range(2):
        generator.reseed(3)
        drawn.append([r.token_ids.tolist() for r in run(generator, THINK, prompts(6))])
    generator._seeded = False
    assert drawn[0] == drawn[1]


def test_vllm_takes_what_its_own_transfers_between_gpus_are_told(model: Any) -> None:
    """As far as a machine without one can tell."""
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    from scalerl.engines.vllm_device_transfer import Moved, sender_info

    for kind in ("ipc", "nccl"):
        assert sender_info(kind, 2, 1).backend == kind
        assert kind in WeightTransferTrainerFactory._registry
    moved = Moved(torch.device("cpu"), torch.bfloat16)
    moved.source = source(model)
    sent = dict(moved)
    assert [(m.name, m.dtype, tuple(m.shape)) for m in moved.metadata()] == [
        (name, torch.bfloat16, tuple(tensor.shape)) for name, tensor in sent.items()
    ]
    assert moved.largest() == max(t.numel() * 2 for t in sent.values())
    assert sender_info("ipc", 1, 3 << 30).packed_buffer_size_bytes == 3 << 30  # an embedding may be larger than a GiB


def test_vllm_sends_a_handle_between_processes_where_ipc_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handle is what torch's `reduce_tensor` makes of a tensor on a GPU, classes and all."""
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from scalerl.engines.vllm_engine import _prepare_environment

    kind, storage, size = torch.Tensor, torch.storage.UntypedStorage, torch.Size([4])
    handle = (kind, size, (1,), 0, storage, torch.uint8, 0, b"handle", 4, 0, False, b"counter", 0, b"event", True)
    update = {"ipc_handles": {"GPU-1": handle}, "names": ["a"], "shapes": [[2]], "tensor_sizes": [4]}
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.delenv("VLLM_ALLOW_INSECURE_SERIALIZATION", raising=False)
    _prepare_environment(1, "shared")
    with pytest.raises(TypeError, match="not serializable"):
        MsgpackEncoder().encode(update)
    _prepare_environment(1, "ipc")
    received = MsgpackDecoder().decode(MsgpackEncoder().encode(update))
    as_lists = [list(part) if isinstance(part, tuple) else part for part in handle]
    assert received == update | {"ipc_handles": {"GPU-1": as_lists}}
