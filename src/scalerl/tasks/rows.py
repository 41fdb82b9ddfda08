"""Rows of the user's data: JSON Lines, Parquet, or a folder of Hugging Face `datasets`. Every row knows its place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.tasks.nearest import suggestion

KINDS = "JSON Lines (.jsonl), Parquet (.parquet), or a folder of Hugging Face datasets"
Row = tuple[str, Mapping[str, Any]]  # "data.jsonl, line 3" and the row


def rows(path: str | Path, split: str = "train") -> Iterator[Row]:
    """All rows with their places.

    Args:
        path: a file, or a folder: of `Dataset.save_to_disk`, or holding `train-*.parquet` or `train.jsonl`.
        split: which part of a folder that has several.

    Raises:
        InputError: naming file, line and the mend.
    """
    path = Path(path)
    if path.is_dir():
        for file in _parts(path, split):
            yield from _file_rows(file)
    elif path.is_file():
        yield from _file_rows(path)
    else:
        near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(f"{path}: no such file or folder; {suggestion(path.name, near)}")


def value(row: Row, key: str) -> Any:
    """A row's value; `reward_model.ground_truth` reaches into nested objects."""
    place, found = row
    if key in found:
        return found[key]
    current: Any = found
    for part in key.split("."):
        if not isinstance(current, Mapping) or part not in current:
            known = [str(k) for k in current] if isinstance(current, Mapping) else []
            raise InputError(f'{place}: no key "{key}": {suggestion(part, known)}')
        current = current[part]
    return current


def _file_rows(file: Path) -> Iterator[Row]:
    kind = file.suffix.lower()
    if kind in (".jsonl", ".ndjson"):
        yield from _json_rows(file)
    elif kind in (".parquet", ".arrow"):
        yield from _table_rows(file)
    else:
        raise InputError(f"{file}: a task's data is {KINDS}")


def _json_rows(file: Path) -> Iterator[Row]:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            place = f"{file}, line {number}"
            if not line.strip():
                continue
            try:
                found = json.loads(line.decode("utf-8-sig"))
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{place}: not UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8"
                ) from error
            except (json.JSONDecodeError, RecursionError) as error:
                raise InputError(f"{place}: not JSON ({error}); mend or remove the line") from error
            if not isinstance(found, dict):
                raise InputError(
                    f"{place}: a {type(found).__name__}; every line must be an object with prompt and answer"
                )
            yield place, found


def _table_rows(file: Path) -> Iterator[Row]:
    import polars as pl

    try:
        table = pl.read_parquet(file) if file.suffix.lower() == ".parquet" else _arrow(file)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{file}: cannot be read as {file.suffix[1:]} ({reason}); write it again") from error
    for number, found in enumerate(table.iter_rows(named=True), 1):
        yield f"{file}, row {number}", found


def _arrow(file: Path) -> Any:
    import polars as pl

    # `datasets` writes the streaming format; other tools the file format, which begins with a mark.
    with file.open("rb") as stream:
        is_file = stream.read(6) == b"ARROW1"
    return pl.read_ipc(file) if is_file else pl.read_ipc_stream(file)


def _parts(folder: Path, split: str) -> list[Path]:
    """The files of one split of a folder."""
    if (folder / "dataset_dict.json").is_file():
        names = _read_json(folder / "dataset_dict.json").get("splits", [])
        if split not in names:
            raise InputError(f'{folder}: no split "{split}": {suggestion(split, names)}')
        folder = folder / split
    if (folder / "state.json").is_file():
        try:
            return [folder / part["filename"] for part in _read_json(folder / "state.json")["_data_files"]]
        except (KeyError, TypeError) as error:
            raise InputError(f"{folder / 'state.json'}: lists no _data_files; save the dataset again") from error
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".parquet", ".jsonl", ".ndjson", ".arrow"))
    if not files:
        raise InputError(f"{folder}: holds no data; a task's data is {KINDS}")
    of_split = [file for file in files if file.stem == split or file.stem.startswith(f"{split}-")]
    if not of_split and len({file.stem.split("-")[0] for file in files}) > 1:
        raise InputError(f'{folder}: no file of the split "{split}": {suggestion(split, [f.stem for f in files])}')
    return of_split or files


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not JSON ({error})") from error
