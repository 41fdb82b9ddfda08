"""Draws docs/figures/architecture.svg: the floors of the house, and how data flows through the part that is built.

python docs/figures/architecture.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

BUILT, LINE, COMING, INK, PALE = "#dbe9f4", "#0072B2", "#ffffff", "#1a1a1a", "#8a8a8a"
# floor, [(package, what it holds, built)]
FLOORS = [
    (8, [("cli/", "a file a command", True)]),
    (7, [("study/", "sets of runs", False)]),
    (6, [("report/", "terminal, pictures", True), ("training/", "assembly", True), ("plan/", "capacity", False)]),
    (5, [("pipeline/", "controller, buffer", True)]),
    (4, [("engines/", "generate, train", True), ("tasks/", "verifiers", True)]),
    (3, [("recipe/", "the algorithm", True)]),
    (2, [("curves/", "law, fit, forecast, compare, backtest", True)]),
    (1, [("runs/", "readers: RunLog, Curve", True)]),
    (
        0,
        [
            ("errors", "one line each", True),
            ("words", "numbers in words", True),
            ("types, protocols", "between floors", True),
        ],
    ),
]
# y, box, what it is: from the log at the bottom to the answer at the top
FLOW = [
    (0.4, "a training log", "W&B, TRL, verl, TensorBoard, CSV, ..."),
    (2.0, "RunLog", "all series, with what was salvaged"),
    (3.6, "Curve", "compute, score, trials, unit"),
    (5.2, "Posterior", "laws x shapes x kinds of noise"),
    (6.8, "Forecast", "intervals, verdict, vetoes, warnings"),
    (8.4, "answer", "terminal, JSON, picture, exit code"),
]
STEPS = [
    "runs/: found by content",
    "runs/: axis, score, cleaning",
    "curves/: warm-up, noise",
    "curves/: calibration",
    "report/, cli/",
]


def box(ax: Axes, x: float, y: float, width: float, height: float, title: str, text: str, built: bool) -> None:
    ax.add_patch(
        FancyBboxPatch(
            (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12", linewidth=1.1,
            edgecolor=LINE if built else PALE, facecolor=BUILT if built else COMING,
            linestyle="-" if built else (0, (4, 3)),
        )
    )  # fmt: skip
    ink = INK if built else "#5c5c5c"
    ax.text(x + width / 2, y + 0.63 * height, title, ha="center", va="center", fontsize=9.5, weight="bold", color=ink)
    ax.text(x + width / 2, y + 0.27 * height, text, ha="center", va="center", fontsize=8, color=ink)


def draw_floors(ax: Axes) -> None:
    width, gap = 9.6, 0.2
    for floor, packages in FLOORS:
        each = (width - gap * (len(packages) - 1)) / len(packages)
        ax.text(0.35, floor + 0.41, str(floor), ha="right", va="center", fontsize=9, color=PALE)
        for i, (name, text, built) in enumerate(packages):
            box(ax, 0.6 + i * (each + gap), floor, each, 0.82, name, text, built)
    ax.text(0.6, 9.1, "Floors: imports point down only", fontsize=10, weight="bold", color=INK)


def draw_flow(ax: Axes) -> None:
    x, width = 11.9, 4.8
    stem = x + 0.3 * width
    for i, (y, title, text) in enumerate(FLOW):
        box(ax, x, y - 0.4, width, 0.82, title, text, True)
        if i + 1 < len(FLOW):
            above = FLOW[i + 1][0]
            arrow = {"arrowstyle": "-|>", "color": LINE, "lw": 1.3, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", (stem, above - 0.42), (stem, y + 0.44), arrowprops=arrow)
            ax.text(stem + 0.2, (y + above) / 2, STEPS[i], va="center", fontsize=8, color=INK)
    ax.text(x, 9.1, "Data: from a log to an answer", fontsize=10, weight="bold", color=INK)


def draw_legend(ax: Axes) -> None:
    ax.add_patch(FancyBboxPatch((0.6, -0.75), 0.45, 0.3, boxstyle="square,pad=0", facecolor=BUILT, edgecolor=LINE))
    ax.text(1.2, -0.6, "built: the forecaster (no torch)", va="center", fontsize=8.5, color=INK)
    ax.add_patch(
        FancyBboxPatch(
            (5.9, -0.75), 0.45, 0.3, boxstyle="square,pad=0", facecolor=COMING, edgecolor=PALE, linestyle=(0, (4, 3))
        )
    )
    ax.text(6.5, -0.6, "to come: training with the recipe", va="center", fontsize=8.5, color=INK)


def main() -> None:
    matplotlib.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "scalerl", "font.family": ["DejaVu Sans"]})
    fig = Figure(figsize=(9.6, 6.0))
    ax = fig.add_axes((0.01, 0.01, 0.98, 0.98))
    ax.set(xlim=(0, 17), ylim=(-1.0, 9.5))
    ax.axis("off")
    for part in (draw_floors, draw_flow, draw_legend):
        part(ax)
    # Without the date, equal pictures are equal files.
    fig.savefig(Path(__file__).with_name("architecture.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
