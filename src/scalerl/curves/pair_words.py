"""What to say of two recipes: the words and the reasons for them, from the differences and their intervals."""

from __future__ import annotations

from scalerl.curves.differences import Difference
from scalerl.curves.fit import IDENTIFIED
from scalerl.curves.paper import A_MARGIN
from scalerl.curves.recipe_fit import RecipeFit
from scalerl.words import in_words

CEILING, EFFICIENCY, NONE = "moves the ceiling", "changes efficiency", "no difference detectable"
UNKNOWN, TOO_SHORT, CANNOT = "cannot say about the ceiling", "too short to say", "cannot say"
WORDS = (CEILING, EFFICIENCY, NONE, UNKNOWN, TOO_SHORT, CANNOT)
TELLING = 0.1
"""Width of the interval of a difference in A from which on it tells nothing: five times the paper's margin of .02.
Efficiency is compared given equal ceilings, so a wider one leaves nothing to say of efficiency either."""


def judge(
    first: RecipeFit,
    second: RecipeFit,
    A: Difference,
    B: Difference | None,
    C_mid: Difference | None,
    score: Difference | None,
    at: float,
    level: float,
) -> tuple[str, list[str]]:
    """One of `WORDS` and the reasons for it; B and C_mid are those with shared A."""
    reasons = [f"{r.name}: {veto}" for r in (first, second) for veto in r.vetoes]
    lead = _lead(first, second, score, at)
    if reasons:
        return CANNOT, reasons + lead
    short = [r for r in (first, second) if r.too_short]
    if short:
        reasons = [
            f"{r.name} has reached {r.reach:.2f} C_mid: below {IDENTIFIED} neither its ceiling nor, with it, its "
            "efficiency is known; train it further"
            for r in short
        ]
        return TOO_SHORT, reasons + lead
    unknown = [f"the ceiling of {r.name} is not identified: {r.ceiling_reason}" for r in (first, second) if not r.known]
    if unknown:
        return UNKNOWN, unknown + lead
    words, reasons = _weigh(second.name, A, B, C_mid, score, level)
    reasons += lead if words != CEILING or score is None or score.estimate * A.estimate < 0 else []
    reasons += [f"provisional, {r.name}: {r.ceiling_reason}" for r in (first, second) if r.provisional]
    return words, reasons


def _weigh(
    name: str, A: Difference, B: Difference | None, C_mid: Difference | None, score: Difference | None, level: float
) -> tuple[str, list[str]]:
    """Words for two runs whose ceilings are known."""
    percent = f"{100 * level:g} %"
    if A.clear:
        side = "higher" if A.estimate > 0 else "lower"
        reasons = [
            f"the ceiling of {name} is {side} by {abs(A.estimate):.3f} ({A.low:+.3f} to {A.high:+.3f}, {percent})"
        ]
        if abs(A.estimate) <= A_MARGIN:
            reasons.append(
                f"by the paper's rule ceilings within {A_MARGIN} are the same: a small difference, if a sure one"
            )
        return CEILING, reasons
    if A.high - A.low > TELLING:
        return UNKNOWN, [
            f"A differs by {A}, {percent}: wider than {TELLING:g}, it tells neither that the ceilings differ nor that "
            "they are alike, and efficiency is only compared if they are; longer runs or more seeds narrow it"
        ]
    clear = [d for d in (B, C_mid) if d is not None and d.clear]
    if clear:
        reasons = [f"{name}: {d.name} is {d} of the other's ({percent})" for d in clear]
        return EFFICIENCY, [*reasons, _faster(name, B, C_mid), f"the ceilings are not told apart: {A}"]
    if score is not None and score.clear:
        return UNKNOWN, [f"the scores differ, but neither A nor B and C_mid tell why: A differs by {A}, {percent}"]
    reasons = [f"A differs by {A}, {percent}"]
    reasons += [f"{d.name} is {d} of the other's" for d in (B, C_mid) if d is not None]
    reasons += [
        f"a hint only, in {d.name}: its interval leaves out equality, but of two looked at (B and C_mid) one does so "
        "by chance too often; another seed would tell"
        for d in (B, C_mid)
        if d is not None and d.hinted
    ]
    return NONE, reasons


def _faster(name: str, B: Difference | None, C_mid: Difference | None) -> str:
    """What the clear differences in efficiency mean for one who waits."""
    said = []
    if C_mid is not None and C_mid.clear:
        said.append("half-way sooner" if C_mid.estimate < 1 else "half-way later")
    if B is not None and B.clear:
        said.append("steeper" if B.estimate > 1 else "flatter")
    better = {"half-way sooner", "steeper"}.intersection(said)
    kind = "more efficient" if len(better) == len(said) else "less efficient" if not better else "not faster throughout"
    return f"{name} is {kind}: {' and '.join(said)}"


def ahead(first: RecipeFit, second: RecipeFit, score: Difference | None) -> str | None:
    """Name of the recipe whose score is higher, None where that is not sure."""
    if score is None or not score.clear:
        return None
    return second.name if score.estimate > 0 else first.name


def _lead(first: RecipeFit, second: RecipeFit, score: Difference | None, at: float) -> list[str]:
    where = f"at {in_words(at, first.unit)}"
    if score is None:
        return [f"too few points before {in_words(at, first.unit)} to compare scores there"]
    leader = ahead(first, second, score)
    if leader is None:
        return [f"{where} the scores are not told apart: {score}"]
    other = first.name if leader == second.name else second.name
    by = score if leader == second.name else score.reversed()
    return [f"{where} {leader} scores higher than {other}: {by}; an early lead can be misleading"]
