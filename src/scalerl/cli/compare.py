"""`scalerl compare`: which recipe has the higher ceiling, which is only faster, and where that cannot be said."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click

from scalerl.cli import options
from scalerl.cli.options import Number, Reading
from scalerl.cli.output import print_json, print_view, say, view_width
from scalerl.cli.progress import Progress
from scalerl.errors import ForecastRefused, InputError
from scalerl.words import stem

if TYPE_CHECKING:
    from scalerl.curves.compare import Comparison
    from scalerl.runs import Curve


Read = tuple[str, str | None, "Curve"]
"""File, recipe's name if given, curve."""


@click.command("compare")
@click.argument("recipes", nargs=-1, required=True, metavar="[NAME=]FILE...")
@click.option(
    "--at", type=Number(above=0), help="Compare scores at this compute.  [default: the end of the shorter run]"
)
@click.option("--straightened", type=options.Picture(), help="Draw the straightened plot of figure 7.")
@click.option(
    "--baseline",
    metavar="NAME",
    help="Show the others against this recipe.  [default: first of two, best of more]",
)
@options.level_option
@options.since_option
@options.reading_many_options
@options.plot_option
@options.json_option
def command(
    recipes: tuple[str, ...],
    reading: Reading,
    at: float | None,
    baseline: str | None,
    level: float,
    since: float | str,
    straightened: str | None,
    plot: str | None,
    as_json: bool,
) -> int:
    """Compare recipes by ceiling and efficiency.

    Each FILE is a recipe; NAME=FILE names it, and files under one name are its seeds. A file with several runs gives a
    recipe a run, or the seeds of NAME.
    """
    from scalerl.curves.compare import compare

    progress = Progress("comparing")
    named = [split_name(recipe) for recipe in recipes]
    options.stdin_is_free(tuple(file for _, file in named))
    named = each_once(named)
    read = [(file, name, curve) for name, file in named for curve in reading.curves(reading.log(file))]
    curves = [(file, curve) for file, _, curve in read]
    kept, left_out = fittable(read)
    try:
        found = compare(by_recipe(kept), level=level, at=at, since=since, baseline=baseline, progress=progress)
    except ForecastRefused as error:
        return _refused(error, curves, as_json)
    wrote = _draw(found, plot, straightened)
    if as_json:
        for file, curve in curves:
            for note in curve.notes:
                say(f"note: {file}, {curve.name}: {note}")
        for warning in found.warnings:
            say(f"warning: {warning}")
        for line in wrote:
            say(f"note: {line}")
        print_json({**found.to_dict(), "left_out": left_out})
        return 0
    from scalerl.report.bench import curves_view
    from scalerl.report.compared import comparison_view
    from scalerl.report.terminal import lines

    view = comparison_view(found, left_out, view_width())
    print_view(curves_view(curves), *view, *([lines(wrote)] if wrote else []))
    return 0


def fittable(read: Sequence[Read]) -> tuple[Sequence[Read], list[str]]:
    """The runs that a law can be fitted to, and why others are not; all of them where too few would be left."""
    from scalerl.curves.fit import check_fittable

    kept, reasons = [], []
    for file, name, curve in read:
        try:
            check_fittable(curve)
        except ForecastRefused as refusal:
            reasons.append(str(refusal))
        else:
            kept.append((file, name, curve))
    return (kept, reasons) if len(by_recipe(kept)) >= 2 else (read, [])


def split_name(recipe: str) -> tuple[str | None, str]:
    """`NAME=FILE` -> its parts; a path that holds "=" and exists is a path."""
    name, equals, file = recipe.partition("=")
    if not (equals and name and file) or "/" in name or Path(recipe).exists():
        return None, recipe
    return name, file


def each_once(named: Sequence[tuple[str | None, str]]) -> list[tuple[str | None, str]]:
    """Names and files without a file that stands twice in one recipe: one run is not two seeds.

    Raises:
        InputError: nothing but one file is given, again and again.
    """
    places = [os.path.realpath(file) for _, file in named]
    if len(named) > 1 and len(set(places)) == 1 and len({name for name, _ in named}) == 1:
        raise InputError(f"{named[0][1]}: the same file is given {len(named)} times; compare needs two recipes")
    kept: dict[tuple[str | None, str], tuple[str | None, str]] = {}
    for (name, file), place in zip(named, places, strict=True):
        title = "" if name is None else f" for {name!r}"
        if (name, place) in kept:
            say(f"note: {file}: the same file is given twice{title}; it counts once, as one seed")
            continue
        if any(place == other for _, other in kept):
            say(f"warning: {file}: the same file stands for two recipes; they can only come out equal")
        kept[name, place] = (name, file)
    return list(kept.values())


def by_recipe(read: Sequence[Read]) -> dict[str, list[Curve]]:
    """Curves by recipe. Files of one name are told apart by as much of their path as that takes."""
    files: dict[str, set[str]] = {}
    for file, name, curve in read:
        if name is None:
            files.setdefault(stem(curve.name), set()).add(file)
    grouped: dict[str, list[Curve]] = {}
    for file, name, curve in read:
        title = stem(curve.name) if name is None else name
        if name is None and len(files[title]) > 1:
            title = _distinct(file, title, files[title])
        grouped.setdefault(title, []).append(curve)
    return grouped


def _distinct(file: str, title: str, files: set[str]) -> str:
    """The title after the fewest folders that tell its file from the others; the whole path if no folders do."""
    folders = {each: PurePath(each).parts[:-1] for each in files}
    own = folders.pop(file)
    for depth in range(1, max(map(len, (own, *folders.values()))) + 1):
        if all(own[-depth:] != other[-depth:] for other in folders.values()):
            return "/".join((*own[-depth:], title))
    return file


def _draw(found: Comparison, plot: str | None, straightened: str | None) -> list[str]:
    from scalerl.report.comparison import plot_compare, plot_straightened

    wrote = []
    if plot:
        options.draw(lambda path: plot_compare(found, path), plot)
        wrote.append(f"picture written to {plot}")
    if straightened:
        source = found.shown()[0] if len(found.pairs) == 1 else list(found.recipes.values())
        options.draw(lambda path: plot_straightened(source, path), straightened)
        wrote.append(f"straightened plot written to {straightened}")
    return wrote


def _refused(error: ForecastRefused, curves: Sequence[tuple[str, Curve]], as_json: bool) -> int:
    if as_json:
        print_json({"schema": 1, "recipes": [], "pairs": [], "ranking": [], "reasons": [str(error)]})
        return error.exit_code
    from scalerl.report.bench import curves_view
    from scalerl.report.terminal import verdict_view

    print_view(curves_view(curves), verdict_view("NO-FORECAST", [str(error)], []))
    return error.exit_code
