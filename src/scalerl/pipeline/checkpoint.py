"""Checkpoints that exist whole or not at all: written beside, forced to disk, then renamed. The last N are kept.

checkpoints/step-00000120/{state.json, buffer.safetensors, config.yaml, trainer/..., manifest.json}
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from scalerl.errors import CheckpointError, EngineDied

_log = logging.getLogger(__name__)
FOLDER = "checkpoints"
_NAME = re.compile(r"step-\d{8,}$")
_MANIFEST = "manifest.json"
_STATE, _ARRAYS = "state.json", "buffer.safetensors"
FORMAT = 2
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Draft:
    """A checkpoint that is being written in `scratch`, and that nobody sees before it is renamed to `final`."""

    step: int
    final: Path
    scratch: Path

    @contextmanager
    def whole(self) -> Iterator[None]:
        """What is written within is there, or the error says why not, and the draft is removed."""
        try:
            yield
        except EngineDied:  # its ranks may still write there; the next draft clears it away
            raise
        except Exception as error:
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise CheckpointError(f"{self.final}: could not be written ({error}){_mend(error)}") from error


class Checkpoints:
    """The folder `checkpoints/` of a run.

    Args:
        directory: of the run.
        keep: how many of the newest to keep.
        also: texts that each one holds beside, by name of the file.
    """

    def __init__(self, directory: Path, keep: int = 2, also: Mapping[str, str] | None = None) -> None:
        if keep < 1:
            raise ValueError("keep at least one checkpoint")
        self.folder, self.keep, self.also = directory / FOLDER, keep, dict(also or {})
        self._whole: dict[Path, bool] = {}  # of those that this one has written, or looked at

    def begin(
        self, step: int, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], write: Callable[[Path], None]
    ) -> Draft:
        """Write all but what `write`, given a folder for the trainer's files, may still be writing when it returns.

        Raises:
            CheckpointError: it could not be written, for example to a full disk. Older ones are untouched.
            EngineDied: the trainer did, while it wrote.
        """
        scratch = self.folder / f".writing-{step:08d}-{os.getpid()}"
        draft = Draft(step, self.folder / f"step-{step:08d}", scratch)
        with draft.whole():
            self._clear()
            (scratch / "trainer").mkdir(parents=True)
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, scratch / _ARRAYS)
            (scratch / _STATE).write_bytes(orjson.dumps(state, option=orjson.OPT_INDENT_2))
            for name, text in self.also.items():
                (scratch / name).write_text(text, "utf-8")
            write(scratch / "trainer")
        return draft

    def finish(self, draft: Draft) -> Path:
        """Make it one of the run's, once all its files are there.

        Raises:
            CheckpointError: as `begin`.
        """
        scratch, final = draft.scratch, draft.final
        with draft.whole():
            files = {str(p.relative_to(scratch)): _facts(p) for p in sorted(scratch.rglob("*")) if p.is_file()}
            (scratch / _MANIFEST).write_bytes(orjson.dumps({"format": FORMAT, "step": draft.step, "files": files}))
            _sync(scratch)
            if final.exists():  # a repeated step: the new one is as good, and rename needs the place
                shutil.rmtree(final)
            scratch.rename(final)
            _sync_folder(self.folder)
        self._whole[final] = True
        self._prune(draft.step)
        return final

    def latest(self) -> Path | None:
        """The newest whole checkpoint; one with a file missing, cut short or altered is passed over with a warning."""
        for _, path in reversed(self._all()):
            damage = _damage(path)
            if damage is None:
                return path
            _log.warning("%s; an older checkpoint is taken", damage)
        return None

    def load(self, path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]], Path]:
        """State, arrays, and the folder with the trainer's files.

        Raises:
            CheckpointError: it is damaged or of another format.
        """
        damage = _damage(path)
        if damage is not None:
            raise CheckpointError(f"{damage}; resume from another checkpoint of the run")
        self._whole[path] = True
        written = orjson.loads((path / _MANIFEST).read_bytes())["format"]
        if written != FORMAT:
            raise CheckpointError(
                f"{path}: has format {written}, this version reads {FORMAT}; resume with the one that wrote it"
            )
        return orjson.loads((path / _STATE).read_bytes()), load_file(path / _ARRAYS), path / "trainer"

    @property
    def highest(self) -> int:
        """Step of the last one, whole or not; 0 where there is none."""
        return max((step for step, _ in self._all()), default=0)

    @property
    def unfinished(self) -> bool:
        """Whether whoever wrote last was ended in the middle of one; the next one removes it."""
        return any(self.folder.glob(".writing-*"))

    def _all(self) -> list[tuple[int, Path]]:
        paths = self.folder.iterdir() if self.folder.is_dir() else iter(())
        return sorted((step_of(path), path) for path in paths if _NAME.fullmatch(path.name) and path.is_dir())

    def _prune(self, newest: int) -> None:
        """Keep the last ones up to this step that are whole. What is damaged counts for nothing, and what bears a later
        step was passed over when the run went on from here."""
        paths = [path for step, path in self._all() if step <= newest]
        for path in paths:
            if path not in self._whole:  # the run's before it was resumed
                self._whole[path] = _damage(path) is None
        oldest = [path for path in paths if self._whole[path]][-self.keep :][0]
        for path in paths[: paths.index(oldest)]:
            shutil.rmtree(path, ignore_errors=True)
            del self._whole[path]

    def _clear(self) -> None:
        """Remove what a killed process had begun; its trainer may outlive it for a moment and still write there."""
        for path in self.folder.glob(".writing-*"):
            maker = path.name.rpartition("-")[2]
            if not maker.isdigit() or int(maker) == os.getpid() or not alive(int(maker)):
                shutil.rmtree(path, ignore_errors=True)


def step_of(checkpoint: Path) -> int:
    """Which step a checkpoint's folder holds."""
    return int(checkpoint.name.removeprefix("step-"))


def alive(process: int) -> bool:
    """Whether a process of this id runs on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _facts(path: Path) -> dict[str, int]:
    """What a file must still be when it is read: a checksum against bytes that a disk lost, at gigabytes a second."""
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return {"bytes": path.stat().st_size, "crc32": crc}


def _damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, naming the file; of one in another format nothing is known."""
    try:
        manifest = orjson.loads((path / _MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            return None
        files = {str(name): (facts["bytes"], facts["crc32"]) for name, facts in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # bytes, or JSON of another kind
        return f"{path / _MANIFEST}: missing or cut short"
    for name, (size, crc) in files.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            return f"{file}: missing or cut short"
        try:
            same = _facts(file)["crc32"] == crc
        except OSError as error:
            return f"{file}: cannot be read ({error.strerror})"
        if not same:
            return f"{file}: its bytes are not those that were written"
    return None


def _mend(error: Exception) -> str:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    # Writers in native code report a full disk as an error of their own, with the system's words in it.
    if full or "No space left" in str(error):
        return "; the disk is full: free space, or keep fewer checkpoints"
    return ""


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        else:
            _sync_folder(path)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
