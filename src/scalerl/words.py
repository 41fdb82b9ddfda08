"""Numbers as people read them: sensible digits, thousands separators, units in the plural."""

from __future__ import annotations

import math
import re

NEVER = "-"
_ENDING = re.compile(r"\.(csv|tsv|jsonl?|log|txt|parquet|wandb|gz|out)$", re.IGNORECASE)


def amount(value: float | None, digits: int = 3) -> str:
    """A compute or a cost: 26,542, 1,240, 0.532, 1.24e+21; "-" where there is none."""
    if value is None or math.isnan(value):
        return NEVER
    if math.isinf(value):
        return "never"
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-3:
        return f"{value:.{digits - 1}e}"
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"


def score(value: float) -> str:
    """A score or pass rate, three decimals."""
    return f"{value:.3f}"


def signed(value: float) -> str:
    """A gain, three decimals and its sign; what rounds to zero has none that means anything."""
    return f"{value + 0.0:+.3f}" if abs(value) >= 0.0005 else "+0.000"


def between(low: float, high: float, form: str = "score") -> str:
    """An interval: [0.586, 0.625]."""
    write = {"score": score, "signed": signed, "amount": amount}[form]
    return f"[{write(low)}, {write(high)}]"


def multiple(value: float) -> str:
    """A multiple of the compute spent: 2x, 1.5x, 12x."""
    return f"{value:.0f}x" if value >= 10 or abs(value - round(value)) < 0.005 else f"{value:.3g}x"


def percent(share: float) -> str:
    """A share as a percentage: 91 %."""
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.01 else f"{100 * share:.1f} %"


def nominal(level: float) -> str:
    """A level as it was asked for: 90 %, 97.5 %."""
    return f"{100 * level:.6g} %"


def brief(value: float) -> str:
    """A round amount in few characters: 10k, 1M, 100."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= value < 1e15:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def plural(unit: str) -> str:
    """The unit of compute for many: steps, gpu-hours; names that are no word in the singular stay."""
    is_word = unit.isascii() and unit.replace("-", "").isalpha()
    return unit + "s" if is_word and not unit.endswith("s") and unit != "compute" else unit


def in_words(value: float, unit: str) -> str:
    """A compute with its unit: 26,542 gpu-hours, 250 steps."""
    return f"{amount(value)} {plural(unit)}"


def stem(name: str) -> str:
    """A run's name without the ending of its file."""
    return _ENDING.sub("", name)


def short(name: str, most: int = 26) -> str:
    """A run's name for a table: without the ending of its file, its middle left out where it is long."""
    name = stem(name)
    keep = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - keep]}…{name[-keep:]}"


def count(n: int, noun: str) -> str:
    """`1 point`, `1,240 points`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def handy_unit(compute: float) -> float:
    """The power of ten next below a compute: gains per so much of it read well."""
    return float(10.0 ** math.floor(math.log10(compute))) if compute > 0 else 1.0
