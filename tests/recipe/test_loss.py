"""The loss against its formula, token by token, and under every way of cutting a batch into pieces."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_loss import DEFAULTS, slow_loss

from scalerl.errors import InputError
from scalerl.recipe import LossStats, Recipe, entropy, policy_loss, reference_kl

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
KINDS = ["cispo", "grpo", "dapo", "gspo"]
NAN, INF = math.nan, math.inf


def made(seed: int, n: int = 40, spread: float = 1.0) -> dict[str, torch.Tensor]:
    """A batch of some sequences in float64; a quarter of the tokens has no weight."""
    random = np.random.default_rng(seed)
    generator = -random.exponential(size=n) - 0.01
    weights = random.exponential(size=n) * (random.random(n) > 0.25)
    sequences = np.sort(random.integers(0, max(n // 6, 1), size=n))
    return {
        "trainer_logprobs": torch.tensor(generator + spread * random.normal(size=n)),
        "generator_logprobs": torch.tensor(generator),
        "advantages": torch.tensor(random.normal(size=n)),
        "weights": torch.tensor(weights / max(weights.sum(), 1e-9)),
        "sequence_ids": torch.tensor(sequences),
    }


def run(kind: str, batch: dict[str, torch.Tensor], clip=None) -> tuple[float, torch.Tensor, LossStats]:
    """(loss, gradient, stats) of a batch."""
    logprobs = batch["trainer_logprobs"].clone().requires_grad_()
    loss, stats = policy_loss(kind, **(batch | {"trainer_logprobs": logprobs}), clip=clip or DEFAULTS[kind])
    loss.backward()
    return loss.item(), logprobs.grad, stats


def piece(batch: dict[str, torch.Tensor], chosen: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: values[chosen] for name, values in batch.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", [0.0, 0.002, 0.2, 1.5])
def test_loss_and_gradient_are_the_formulas(kind: str, spread: float) -> None:
    batch = made(seed=3, spread=spread)
    loss, gradient, _ = run(kind, batch)
    expected, slope = slow_loss(kind, *(batch[name].tolist() for name in batch), DEFAULTS[kind])
    assert loss == pytest.approx(expected, abs=1e-13)
    np.testing.assert_allclose(gradient.numpy(), slope, atol=1e-13)


@pytest.mark.parametrize("kind", ["grpo", "dapo", "gspo", "cispo"])
def test_on_fresh_weights_every_loss_is_the_plain_policy_gradient(kind: str) -> None:
    batch = made(seed=1, spread=0.0)
    _, gradient, stats = run(kind, batch)
    plain = -batch["weights"] * batch["advantages"]
    if kind == "gspo":  # the same for a whole sequence: its tokens share what they have
        for s in batch["sequence_ids"].unique():
            own = (batch["sequence_ids"] == s) & (batch["weights"] > 0)
            torch.testing.assert_close(gradient[own].sum(), plain[own].sum())
    else:
        torch.testing.assert_close(gradient, plain)
    assert stats.metrics()["ratio_mean"] == 1
    assert stats.metrics()["mismatch_kl"] == 0


@settings(max_examples=60)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 10**6), data=st.data())
def test_trap_9_any_split_and_order_of_micro_batches_gives_the_same_loss_and_gradient(kind, seed, data) -> None:
    """Also trap 10: pieces may as well be the ranks of a data-parallel run, whose losses are summed."""
    batch = made(seed, n=data.draw(st.integers(1, 48)))
    whole_loss, whole_gradient, whole_stats = run(kind, batch)
    sequences = batch["sequence_ids"]
    unit = sequences if kind == "gspo" else torch.arange(len(sequences))  # a GSPO sequence stays whole
    pieces = data.draw(st.integers(1, 5))
    random = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    home = torch.tensor(random.integers(0, pieces, size=int(unit.max()) + 1))[unit]

    loss, gradient, stats = 0.0, torch.zeros_like(whole_gradient), None
    for p in random.permutation(pieces):
        chosen = torch.tensor(random.permutation(np.flatnonzero((home == p).numpy())), dtype=torch.long)
        part_loss, part_gradient, part_stats = run(kind, piece(batch, chosen))
        loss += part_loss
        gradient[chosen] += part_gradient
        stats = part_stats if stats is None else stats + part_stats
    assert loss == pytest.approx(whole_loss, abs=1e-10)
    torch.testing.assert_close(gradient, whole_gradient, atol=1e-10, rtol=0)
    for field in fields(LossStats):
        torch.testing.assert_close(getattr(stats, field.name), getattr(whole_stats, field.name), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_trap_9_averaging_micro_batches_would_be_noticed(kind: str) -> None:
    """The check above can fail: means of pieces are another gradient as soon as the pieces differ in weight."""
    batch = made(seed=5)
    whole, _, _ = run(kind, batch)
    first = batch["sequence_ids"] < 2
    parts = [piece(batch, chosen) for chosen in (first, ~first)]
    for part in parts:
        part["weights"] = part["weights"] / part["weights"].sum()
    averaged = sum(run(kind, part)[0] for part in parts) / 2
    assert abs(averaged - whole) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [0.0, NAN, INF, -INF])
def test_trap_11_padding_and_dummy_micro_batches_change_nothing(kind: str, padding: float) -> None:
    batch = made(seed=8)
    loss, gradient, stats = run(kind, batch)
    pad = {name: torch.full((7,), padding, dtype=torch.float64) for name in batch}
    pad |= {"weights": torch.zeros(7, dtype=torch.float64), "sequence_ids": torch.zeros(7, dtype=torch.long)}
    padded = {name: torch.cat([batch[name], pad[name]]) for name in batch}
    padded_loss, padded_gradient, padded_stats = run(kind, padded)
    assert padded_loss == loss
    torch.testing.assert_close(padded_gradient, torch.cat([gradient, torch.zeros(7)]), atol=1e-15, rtol=0)
    assert padded_stats.metrics() == pytest.approx(stats.metrics(), rel=1e-12)

    dummy_loss, dummy_gradient, dummy_stats = run(kind, pad)
    assert dummy_loss == 0
    assert not dummy_gradient.any()
    assert dummy_stats.metrics() == {"tokens": 0, "dropped_tokens": 0}
    assert (stats + dummy_stats).metrics() == stats.metrics()


@pytest.mark.parametrize("kind", KINDS)
def test_no_token_at_all(kind: str) -> None:
    loss, gradient, stats = run(kind, piece(made(seed=0), torch.zeros(0, dtype=torch.long)))
    assert loss == 0
    assert gradient.shape == (0,)
    assert stats.metrics()["tokens"] == 0


def test_trap_13_the_ratio_of_cispo_is_detached_and_bounded_from_above_only() -> None:
    for logprob, factor in ((math.log(0.9), 3.0), (math.log(0.9), 90.0), (math.log(0.001), 0.1)):
        batch = one_token(trainer=logprob, generator=logprob - math.log(factor), advantage=1.0)
        _, gradient, stats = run("cispo", batch)
        assert gradient.item() == pytest.approx(-min(factor, 5.0))  # attached, it would hold log pi as well
        assert stats.at_bound.item() == (factor > 5)


def test_trap_13_bounds_of_dapo_are_refused_for_cispo() -> None:
    recipe = Recipe.preset("dapo-qwen2.5").with_(loss="cispo")
    assert recipe.clip == (None, 5.0)
    with pytest.raises(InputError, match=r"clip_high = 0\.26: cispo bounds the ratio itself"):
        Recipe(loss="cispo", clip_high=0.26)
    with pytest.raises(InputError, match="clip_high = 5: dapo needs a distance from 1"):
        Recipe(loss="dapo", clip_high=5.0)


@pytest.mark.parametrize("kind", KINDS)
def test_trap_13_the_anchor_is_what_the_generator_reported(kind: str) -> None:
    """A stale or differently rounded generator shows in ratio and gradient; recomputed values would hide it."""
    batch = one_token(trainer=-1.0, generator=-1.001, advantage=1.0)
    _, gradient, stats = run(kind, batch)
    assert gradient.item() == pytest.approx(-math.exp(0.001), rel=1e-9)
    assert stats.metrics()["ratio_mean"] == pytest.approx(math.exp(0.001), rel=1e-9)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10**6),
    bad=st.sampled_from([NAN, INF, -INF]),
    side=st.sampled_from(["trainer_logprobs", "generator_logprobs", "both"]),
    hurt=st.sets(st.integers(0, 39), min_size=1, max_size=8),
)
def test_trap_14_injected_infinities_and_nans_stay_where_they_are(kind, seed, bad, side, hurt) -> None:
    batch = made(seed)
    where = torch.tensor(sorted(hurt))
    poisoned = {name: values.clone() for name, values in batch.items()}
    for name in ("trainer_logprobs", "generator_logprobs"):
        if side in (name, "both"):
            poisoned[name][where] = bad
    loss, gradient, stats = run(kind, poisoned)
    without = {name: values.clone() for name, values in batch.items()}
    without["weights"][where] = 0.0
    expected, expected_gradient, _ = run(kind, without)
    assert loss == pytest.approx(expected, abs=1e-14)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-14, rtol=0)
    assert stats.dropped.item() == (batch["weights"][where] > 0).sum().item()
    assert all(math.isfinite(value) for value in stats.metrics().values())


def test_trap_14_a_masked_vocabulary_entry_does_not_reach_the_parameters() -> None:
    """-inf comes out of a log-softmax over masked logits; its gradient must be 0 and not NaN."""
    logits = torch.zeros(3, 4, dtype=torch.float64)
    logits[1, 2] = -INF
    logits.requires_grad_()
    logprobs = torch.log_softmax(logits, dim=-1)[:, 2]
    batch = piece(made(seed=2), torch.arange(3)) | {"weights": torch.full((3,), 1 / 3, dtype=torch.float64)}
    for kind in KINDS:
        loss, stats = policy_loss(kind, **(batch | {"trainer_logprobs": logprobs}), clip=DEFAULTS[kind])
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert torch.isfinite(gradient).all()
        assert not gradient[1].any()
        assert stats.dropped.item() == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("log_ratio", [-1e4, 1e4])
def test_trap_14_a_ratio_beyond_float_range_is_bounded(kind: str, log_ratio: float) -> None:
    for advantage in (-1.0, 1.0):
        batch = one_token(trainer=-1.0, generator=-1.0 - log_ratio, advantage=advantage)
        batch = {n: v.float() if v.is_floating_point() else v for n, v in batch.items()}
        loss, gradient, stats = run(kind, batch)
        assert math.isfinite(loss)
        assert torch.isfinite(gradient).all()
        assert all(math.isfinite(value) for value in stats.metrics().values())


def test_trap_16_the_ratio_of_gspo_is_per_sequence_and_length_normalised() -> None:
    """Two sequences, whose log-ratios have the means .001 and .0005; a weightless token counts in no mean."""
    batch = {
        "trainer_logprobs": torch.tensor([-0.999, -0.999, -1.0, -1.0, 5.0], dtype=torch.float64),
        "generator_logprobs": torch.full((5,), -1.0, dtype=torch.float64),
        "advantages": torch.ones(5, dtype=torch.float64),
        "weights": torch.tensor([0.25, 0.25, 0.25, 0.25, 0.0], dtype=torch.float64),
        "sequence_ids": torch.tensor([7, 7, 7, 3, 3]),
    }
    loss, gradient, stats = run("gspo", batch)
    ratios = [math.exp(0.002 / 3)] * 3 + [1.0]
    assert loss == pytest.approx(-sum(ratios) / 4, rel=1e-12)
    np.testing.assert_allclose(gradient, [-r / 4 for r in ratios] + [0.0], rtol=1e-12)
    assert stats.metrics()["ratio_max"] == pytest.approx(ratios[0])

    long = {n: v[:3].repeat(50) for n, v in batch.items()}
    long["weights"] = torch.full((150,), 1 / 150, dtype=torch.float64)
    assert run("gspo", long)[2].metrics()["ratio_max"] == pytest.approx(ratios[0])  # not to the power of 50


def test_trap_17_inserted_tokens_are_in_no_ratio() -> None:
    """Their filler log-probability of 0 is far from anything the trainer computes."""
    batch = made(seed=4, spread=0.0)
    inserted = torch.arange(10, 15)
    batch["weights"][inserted] = 0.0
    batch["generator_logprobs"][inserted] = 0.0
    for kind in KINDS:
        _, gradient, stats = run(kind, batch)
        assert stats.metrics()["ratio_min"] == stats.metrics()["ratio_max"] == 1.0
        assert stats.metrics()["mismatch_kl"] == 0
        assert stats.tokens.item() == (batch["weights"] > 0).sum().item()
        assert not gradient[inserted].any()


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_are_those_of_a_loop(kind: str) -> None:
    batch = made(seed=11, spread=0.8)
    _, _, stats = run(kind, batch)
    used = [i for i, w in enumerate(batch["weights"].tolist()) if w > 0]
    log = (batch["trainer_logprobs"] - batch["generator_logprobs"]).tolist()
    sequences = batch["sequence_ids"].tolist()
    mates = {i: [j for j in used if sequences[j] == sequences[i]] if kind == "gspo" else [i] for i in used}
    ratios = [math.exp(sum(log[j] for j in mates[i]) / len(mates[i])) for i in used]
    low, high = DEFAULTS[kind]
    if kind == "cispo":
        bound = [r > high for r in ratios]
    else:
        signs = [batch["advantages"][i].item() > 0 for i in used]
        bound = [r > 1 + high if up else r < 1 - low for r, up in zip(ratios, signs, strict=True)]
    assert stats.metrics() == pytest.approx(
        {
            "tokens": len(used),
            "dropped_tokens": 0,
            "ratio_mean": np.mean(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "ratio_at_bound": np.mean(bound),
            "mismatch_kl": np.mean([math.exp(log[i]) - 1 - log[i] for i in used]),
        }
    )


def test_mismatch_estimates_the_divergence_of_generator_from_trainer() -> None:
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)  # generator
    q = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)  # trainer
    counts = (1000 * p).long()
    drawn = torch.repeat_interleave(torch.arange(3), counts)
    n = len(drawn)
    even = torch.full((n,), 1 / n, dtype=torch.float64)
    _, stats = policy_loss("cispo", q.log()[drawn], p.log()[drawn], even, even, drawn, (None, 5.0))
    assert stats.metrics()["mismatch_kl"] == pytest.approx((p * (p / q).log()).sum().item(), rel=1e-9)


def test_half_precision_is_raised_before_the_arithmetic() -> None:
    batch = {n: v.bfloat16() if v.is_floating_point() else v for n, v in made(seed=6).items()}
    loss, _ = policy_loss("cispo", **batch, clip=(None, 5.0))
    exact, _ = policy_loss(
        "cispo", **{n: v.double() if v.is_floating_point() else v for n, v in batch.items()}, clip=(None, 5.0)
    )
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


def test_a_two_sided_loss_needs_both_bounds() -> None:
    with pytest.raises(ValueError, match="dapo needs a lower clip"):
        policy_loss("dapo", **made(seed=0), clip=(None, 0.2))


def test_entropy_is_that_of_a_loop_and_ignores_what_cannot_be_sampled() -> None:
    logits = torch.tensor([[0.3, -1.2, 2.0, -INF], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    found = entropy(logits, temperature=0.7)
    z = [math.exp(v / 0.7) for v in (0.3, -1.2, 2.0)]
    p = [v / sum(z) for v in z]
    np.testing.assert_allclose(found, [-sum(v * math.log(v) for v in p), math.log(4)], rtol=1e-12)
    assert entropy(logits.bfloat16()).dtype == torch.float32


def test_reference_kl_is_k3_and_pulls_towards_the_reference() -> None:
    batch = made(seed=9)
    trainer = batch["trainer_logprobs"].clone().requires_grad_()
    reference, weights = batch["generator_logprobs"].clone(), batch["weights"]
    reference[3] = -INF
    penalty = reference_kl(trainer, reference, weights)
    penalty.backward()
    expected, slope = 0.0, [0.0] * len(weights)
    for i, (t, r, w) in enumerate(zip(trainer.tolist(), reference.tolist(), weights.tolist(), strict=True)):
        if w > 0 and math.isfinite(r):
            expected += w * (math.exp(r - t) - 1 - (r - t))
            slope[i] = w * (1 - math.exp(r - t))
    assert penalty.item() == pytest.approx(expected)
    np.testing.assert_allclose(trainer.grad, slope, atol=1e-14)


def one_token(trainer: float, generator: float, advantage: float) -> dict[str, torch.Tensor]:
    values = {"trainer_logprobs": trainer, "generator_logprobs": generator, "advantages": advantage, "weights": 1.0}
    return {n: torch.tensor([v], dtype=torch.float64) for n, v in values.items()} | {"sequence_ids": torch.tensor([0])}


def test_the_mismatch_is_never_negative_by_rounding() -> None:
    generator = torch.full((8,), -0.25)
    trainer = torch.nextafter(generator, torch.zeros(8))  # so near that exp of the difference is 1 in fp32
    ones = torch.ones(8)
    _, stats = policy_loss("cispo", trainer, generator, ones, ones / 8, torch.arange(8), (None, 5.0))
    assert 0 <= stats.metrics()["mismatch_kl"] < 1e-12
