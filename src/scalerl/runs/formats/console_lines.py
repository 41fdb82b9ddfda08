"""Single lines of console logs: what numbers they hold. Pure functions of one line, for `console`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

Fields = dict[str, Any]

ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|\x08")
_NUMBER = r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|nan|inf|NaN|Infinity|-?inf)"
# np.float64(0.3), tensor(0.3, device='cuda:0'), '0.3' and 0.3
_WRAPPED = rf"(?:(?:np\.|numpy\.)?[A-Za-z_]\w*\(\s*)?['\"]?({_NUMBER})['\"]?(?![\w.])"
_PAIR = re.compile(
    rf"""(['"])([^'"\n{{}}]{{1,200}}?)\1\s*:\s*"""
    rf"""(?:{_WRAPPED}|(['"])([^'"]{{0,300}})\4|(None|null|True|False|true|false)\b|(\{{))"""
)
_VERL = re.compile(r"(?:^|[\s)\]'\"])step:\s*(\d+)\s+-\s+(.*)")
_VERL_VALUE = re.compile(
    rf"(?:(?:np\.|numpy\.)?[A-Za-z_]\w*\(\s*)?['\"]?({_NUMBER})['\"]?\)?\s*(?:\[repeated.*|\x00.*)?$"
)
_BAR = re.compile(r"\d+%\s*\|[^|]*\|\s*(\d+)/(\d+)\s*\[")
_STAMP = re.compile(r"\b(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d+))?")
_CLOCK = re.compile(r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b")
_STEP = re.compile(
    r"(?:^|[\s\[(|,:])(?:(?:global|train(?:ing)?|optim(?:izer)?)[ _-]?)?"
    r"(step|iteration|iter|update|round|batch)s?\b\s*[:=#]?\s*\[?\s*(\d+)(?:\s*/\s*\d+)?(?![\d.])",
    re.IGNORECASE,
)
_FRACTION = re.compile(r"(?:^|[\s\[(|])(\d+)\s*/\s*(\d+)(?=$|[\s\]|):,])")
_EPOCH = re.compile(r"(?:^|[\s\[(|,])epoch\s*[:=#]?\s*\[?\s*(\d+(?:\.\d+)?)", re.IGNORECASE)
_FIELD = re.compile(
    rf"(?<![\w.])([A-Za-z_][\w/@.\-]*(?:[ ](?:[A-Za-z][\w@.\-]*))?)\s*[:=]\s*[\"']?({_NUMBER})(\s?%)?(?![\w/:]|\.\d)"
    rf"(?:[a-zA-Z]{{0,2}}(?!\w))?|(?<![\w.])([A-Za-z_][\w/@.\-]*)\s*[:=]\s*({_NUMBER})(?:s|ms|it)\b"
)
_SPACED = re.compile(
    rf"\b((?:\w+/)*\w*(?:reward|acc|accuracy|score|pass_rate|pass@1|loss|solve_rate))\s+({_NUMBER})(\s?%)?(?![\w:/])",
    re.I,
)
_LONGEST = 20_000  # characters of a line that are looked at to tell what it is
_DEEPEST = 8  # levels of nesting that are still told apart
_TAG = re.compile(r"^\s*\[([A-Za-z][\w.\-]*)\]\s")
_STEP_NAMES = frozenset(
    {"step", "iteration", "iter", "update", "round", "batch", "epoch", "global_step", "seed", "rank"}
)


def verl_fields(line: str) -> tuple[Fields, bool] | None:
    """`step:101 - actor/entropy:0.2 - ...` as fields, and whether its last field is cut off."""
    match = _VERL.search(line)
    if match is None:
        return None
    row: Fields = {"step": float(match[1])}
    broken = False
    for part in re.split(r"\s+-\s+", match[2].strip()):
        key, colon, value = part.rpartition(":")
        number = _VERL_VALUE.match(value.strip()) if colon and key else None
        if number is not None:
            row[key.strip()] = _float(number[1])
        elif not colon or not value.strip():
            broken = True
    return (row, broken) if len(row) > 1 else None


def dict_fields(line: str) -> bool:
    """Whether the line holds a printed dict with numbers."""
    return any(True for _ in dict_rows(line))


def dict_rows(line: str) -> Iterator[tuple[Fields, bool]]:
    """Each `{'loss': '0.1', ...}` of a line, and whether it is cut off; nested ones are flattened with `/`."""
    at = _dict_start(line)
    while at >= 0:
        row, end, closed = _parse_dict(line, at)
        if sum(isinstance(v, float) for v in row.values()) >= 2 or (row and _is_metric(row)):
            yield row, not closed
        at = _dict_start(line, max(end, at + 1))


def _dict_start(line: str, start: int = 0) -> int:
    found = [i for i in (line.find("{'", start), line.find('{"', start)) if i >= 0]
    return min(found, default=-1)


def _is_metric(row: Fields) -> bool:
    return any(re.search("reward|loss|acc|score|pass|eval", k) and isinstance(v, float) for k, v in row.items())


def _parse_dict(line: str, at: int) -> tuple[Fields, int, bool]:
    row: Fields = {}
    prefix: list[str] = []
    end = at + 1
    for match in _PAIR.finditer(line, at):
        between = line[end : match.start()]
        closing = between.count("}")
        if closing > len(prefix):
            return row, end + between.index("}") + 1, True
        del prefix[len(prefix) - closing :]
        key = "/".join([*prefix, match[2]])
        if match[3] is not None:
            after = line[match.end() : match.end() + 1]
            if after == "" and match.end() == len(line):
                return row, match.end(), False  # the line ends within or right behind a number: it may be cut
            row[key] = _float(match[3])
        elif match[5] is not None:
            row[key] = match[5]
        elif match[7] is not None and len(prefix) < _DEEPEST:
            prefix.append(match[2])
        end = match.end()
    rest = line[end:]
    return row, len(line), "}" in rest


def is_console(line: str) -> bool:
    """Whether a line is surely of a console log: a progress bar, a printed dict or verl's metrics."""
    line = line[:_LONGEST]
    return (
        bool(_BAR.search(line))
        or verl_fields(line) is not None
        or (line.lstrip()[:2] in ("{'", '{"') and dict_fields(line))
    )


def progress(line: str) -> list[tuple[int, int]]:
    """(done, total) of each progress bar in the line."""
    return [(int(m[1]), int(m[2])) for m in _BAR.finditer(line) if len(m[1]) < 12 and len(m[2]) < 12]


def time_stamp(line: str) -> str | None:
    """A date and time at the start of a line, as ISO text."""
    match = _STAMP.search(line[:80])
    if match is None:
        return None
    text = f"{match[1]}T{match[2]}.{(match[3] or '0')[:6]:0<6}"
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return None
    return text


def text_step(line: str) -> Fields | None:
    """The step of a free-text line: `step 7`, `iter=7`, `[7/100]`, `7/100 |`, or a progress bar with `reward=0.3`
    behind it; None if it has none."""
    if "%|" in line and (bar := _BAR.search(line)):
        return {"step": _float(bar[1])} if "=" in line[bar.end() :] else None
    found: Fields = {}
    if match := _EPOCH.search(line):
        found["epoch"] = float(match[1])
    if match := _STEP.search(line):
        found["step"] = _float(match[2])
    else:
        without = _EPOCH_OF.sub(" ", line)
        if match := _FRACTION.search(without):
            found["step"] = _float(match[1])
    if "step" in found or "epoch" in found:
        return found
    return None


_EPOCH_OF = re.compile(r"epoch\s*[:=#]?\s*\[?\s*\d+(?:\.\d+)?\s*/\s*\d+", re.IGNORECASE)


def text_fields(line: str) -> tuple[Fields, set[str]]:
    """`key=value` and `key: value` of a line, and the keys whose value had a percent sign (made a fraction)."""
    body = _CLOCK.sub(" ", _STAMP.sub(" ", line))
    if "%|" in body and (bar := _BAR.search(body)):
        body = body[bar.end() :]
    row: Fields = {}
    percent: set[str] = set()
    for match in _FIELD.finditer(body):
        if match[1] is None:
            _put(row, percent, match[4], match[5], None)
        else:
            _put(row, percent, match[1], match[2], match[3])
    for match in _SPACED.finditer(body):
        if match[1] not in row:
            _put(row, percent, match[1], match[2], match[3])
    if (
        row
        and (tag := _TAG.match(line))
        and tag[1].upper() not in ("INFO", "DEBUG", "WARNING", "ERROR", "TRAIN", "EVAL")
    ):
        row["tag"] = tag[1]
    return row, percent


def _put(row: Fields, percent: set[str], key: str, value: str, sign: str | None) -> None:
    name = _name(key)
    if name is None:
        return
    number = _float(value)
    if sign:
        percent.add(name)
        number /= 100
    row.setdefault(name, number)


@lru_cache(maxsize=4096)
def _name(key: str) -> str | None:
    """A key as the name of a column; None for what `text_step` reads."""
    key = re.sub(r"\.?\s+", "_", key.strip().rstrip(".-"))
    low = key.lower()
    if low in _STEP_NAMES or re.fullmatch(r"(?:global_|train_|training_)?(?:step|iter|epoch)s?", low):
        return None
    return key


def _float(text: str) -> float:
    try:
        return float(text)
    except (ValueError, OverflowError):
        return float("nan")
