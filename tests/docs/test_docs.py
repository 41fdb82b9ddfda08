"""The documents are true: options, links, JSON keys, Python blocks, measured tables and shown outputs."""

import json
import re
import runpy
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from scalerl.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
RERUN = runpy.run_path(str(ROOT / "docs" / "rerun.py"))
PAGES = [*RERUN["pages"](), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = list(RERUN["shown"]())
JSON_COMMANDS = {
    "forecast": "forecast examples/logs/run.jsonl --upto 20000 --target 0.6",
    "fit": "fit examples/logs/run.jsonl",
    "compare": "compare examples/logs/recipe_a.csv examples/logs/recipe_b.csv",
    "transfer": "transfer examples/logs/downstream.jsonl --downstream val/aime24/mean@64",
    "backtest": "backtest examples/logs/recipe_a.csv --method scalerl",
    "formats": "formats",
}
BY_NAME = {"sources", "without", "measured_by_reach"}
"""Keys of the JSON whose own keys are names or numbers of the user's."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_on_its_page_and_no_other(command: str) -> None:
    page = (ROOT / "docs" / "commands" / f"{command}.md").read_text()
    options = import_module(f"scalerl.cli.{command}").command.params
    real = {o for p in options if isinstance(p, click.Option) for o in p.opts} | {"-h", "--help"}
    tables = "\n".join(line for line in page.splitlines() if line.startswith("| `-"))
    told = set(re.findall(r"`(-{1,2}[a-z0-9-]+)", "\n".join(line.split(" | ")[0] for line in tables.splitlines())))
    assert told == real


def anchors(page: Path) -> set[str]:
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name(page)} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{name(page)} links to {target}, which has no such heading"


def test_every_page_can_be_found_from_the_index() -> None:
    found, open_pages = set(), [ROOT / "docs" / "index.md"]
    while open_pages:
        page = open_pages.pop()
        if page in found or page.suffix != ".md":
            continue
        found.add(page)
        targets = (t.partition("#")[0] for t in LINK.findall(page.read_text()) if "://" not in t)
        open_pages += [(page.parent / t).resolve() for t in targets if t]
    assert set(RERUN["pages"]()) <= found


@pytest.mark.parametrize(
    ("page", "block"),
    [(page, block) for page in PAGES for block in PYTHON.findall(page.read_text())],
    ids=lambda value: name(value) if isinstance(value, Path) else "",
)
def test_python_blocks_run(
    page: Path, block: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(block, name(page), "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_readme_shows_python_in_three_lines() -> None:
    blocks = PYTHON.findall((ROOT / "README.md").read_text())
    lines = [line for line in blocks[0].splitlines() if line and not line.startswith("import")]
    assert len(lines) <= 3


def keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(keys, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    return set(value) | set().union(*(keys(v) for k, v in value.items() if k not in BY_NAME))


@pytest.mark.parametrize("command", JSON_COMMANDS)
def test_every_json_key_is_explained(command: str) -> None:
    page = (ROOT / "docs" / "json.md").read_text()
    told = set(re.findall(r"`([A-Za-z_0-9]+)`", page))
    output = RERUN["output_of"](f"scalerl {JSON_COMMANDS[command]} --json 2> /dev/null")
    answer = json.loads(output)
    assert answer["schema"] == 1
    assert keys(answer) - told == set()


def test_the_file_of_a_calibration_is_explained() -> None:
    table = json.loads(RERUN["CALIBRATION"].read_text())
    told = set(re.findall(r"`([A-Za-z_0-9]+)`", (ROOT / "docs" / "json.md").read_text()))
    assert set(table) | set(table["provenance"]) | keys(list(table["measured"].values())) <= told


@pytest.mark.parametrize("page", ["README.md", "docs/method.md"])
def test_measured_tables_are_those_of_the_shipped_calibration(page: str) -> None:
    tables = RERUN["MEASURED"].findall((ROOT / page).read_text())
    assert tables == [RERUN["measured_table"]()], "run `make docs`"


def without_numbers(text: str) -> str:
    """Words only: other machines round the last digit otherwise, and a longer number wraps a line elsewhere."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", re.sub(r"[-+]?\d[\d,.]*(?:e[-+]\d+)?[%x]?", "#", text)).strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command", "before"), SHOWN, ids=[f"{name(p)}-{i}" for i, (p, *_) in enumerate(SHOWN)]
)
def test_shown_outputs_are_what_the_commands_print(page: Path, command: str, before: str) -> None:
    if " --plot " in command:
        command = re.sub(r" --plot \S+", "", command)
    now = RERUN["output_of"](command)
    if before.endswith("...\n"):
        before, now = before[:-4], "\n".join(now.splitlines()[: before.count("\n") - 1])
    assert without_numbers(now) == without_numbers(before), f"{name(page)}: run `make docs`"
