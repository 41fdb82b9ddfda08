"""Finds the format of a log by its content and reads it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from scalerl.errors import InputError
from scalerl.runs.source import is_text, read_head
from scalerl.runs.table import Table

# In this order: what has a signature first, free text last. Names of modules in `formats`, imported when tried.
FORMATS = (
    "wandb_offline",
    "mlflow",
    "run_directory",
    "tensorboard",
    "parquet",
    "json_rows",
    "delimited",
    "console",
)
_FOLDERS = 4  # the first ones also take folders
KNOWN = (
    "CSV, TSV, Parquet, JSON, JSON lines, HF trainer_state.json, HF or verl console log, free text, "
    "Tinker metrics.jsonl, TensorBoard events, W&B (.wandb or export), MLflow, a scalerl run directory"
)
_SIGNATURES = (
    (b"PK\x03\x04", "a zip archive or Excel file; unpack it, or save the sheet as CSV"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd; unpack it with `zstd -d`"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a PNG picture; export the numbers as CSV"),
    (b"\xff\xd8\xff", "a JPEG picture; export the numbers as CSV"),
    (b"\x7fELF", "a program"),
    (b"\x89HDF", "an HDF5 file; save the table as CSV or Parquet"),
    (b"\x93NUMPY", "a NumPy array; save it as CSV with a header line"),
    (b"ARROW1", "an Arrow/Feather file; save the table as Parquet"),
    (b"SQLite format 3", "an SQLite database without MLflow's tables"),
    (b"\x80\x04", "a Python pickle, which is never loaded; save the numbers as CSV"),
    (b"\x80\x02", "a Python pickle, which is never loaded; save the numbers as CSV"),
    (b"<!DOCTYPE html", "a web page"),
    (b"<html", "a web page"),
)


def read_table(path: str | Path) -> Table:
    """Read a log of any known format.

    Raises:
        InputError: there is no such file, it is empty, or no format fits; one line that says what was seen.
    """
    address = str(path)
    if "wandb" in address and (online := _module("wandb_online")).matches(address, b""):
        return online.read(address)  # type: ignore[no-any-return]
    if "://" in address:
        raise InputError(
            f"{address}: only W&B runs are read over the network (wandb://entity/project/run); give a file"
        )
    file = Path(path)
    head = _head(file)
    for name in FORMATS[:_FOLDERS] if file.is_dir() else FORMATS:
        if name == "console" and (what := _signature(head)):
            raise InputError(f"{file}: this is {what}; known formats: {KNOWN}")
        module = _module(name)
        if module.matches(file, head):
            return _finish(file, module.read(file))
    raise InputError(f"{file}: {_seen(file, head)}; known formats: {KNOWN}")


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"scalerl.runs.formats.{name}")


def _head(file: Path) -> bytes:
    try:
        if not file.exists():
            near = _nearest_file(file)
            shown = "".join(c if c.isprintable() else "?" for c in str(file))
            raise InputError(f"{shown}: no such file{f'; did you mean {near}?' if near else '; check the path'}")
        if not (file.is_file() or file.is_dir()):
            raise InputError(f"{file}: is neither a file nor a folder; save the log to a file first")
        head = read_head(file)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(file)!r}: cannot be opened ({reason}); check the path and its rights") from error
    if file.is_file() and not head.strip():
        raise InputError(f"{file}: the file is empty; has the run written anything yet?")
    return head


def _nearest_file(file: Path) -> str | None:
    import difflib

    if not file.parent.is_dir():
        return None
    names = [f.name for f in file.parent.iterdir()]
    near = difflib.get_close_matches(file.name, names, 1)
    return str(file.parent / near[0]) if near else None


def _finish(file: Path, table: Table) -> Table:
    if table.rows == 0 or not table.columns:
        raise InputError(
            f"{file}: read as {table.format}, but it holds no rows of numbers; has the run logged anything?"
        )
    return table


def _signature(head: bytes) -> str | None:
    if head[257:262] == b"ustar":
        return "a tar archive; unpack it and name the log in it"
    start = head.lstrip()[:32].lower()
    return next((what for signature, what in _SIGNATURES if start.startswith(signature.lower())), None)


def _seen(file: Path, head: bytes) -> str:
    if file.is_dir():
        names = sorted(f.name for f in file.iterdir())
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        return f"a folder with {shown or 'nothing in it'} is no known log; name the log file itself"
    if what := _signature(head):
        return f"this is {what}"
    if not is_text(head):
        return f"unknown binary data (starts with {head[:8].hex(' ')})"
    line = head.decode("utf-8", errors="replace").strip().splitlines()[0][:60]
    return f"text without rows of numbers (starts with {line!r})"
