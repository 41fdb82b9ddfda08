"""Compiled passes over memory (`kernels.cpp`) for what surrounds the matmuls of a small model on CPUs.

The file is compiled once for a machine, in some five seconds, and kept below the user's cache; processes that start
later load it. Where there is no C++ compiler, or with SCALERL_KERNELS=0, `kernels` gives None and its callers use
torch's operations; so they do where the compiled result, compared with the model's own, disagrees.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalerl.cache import cache_folder

HEAD_MULTIPLE = 32
"""The kernels take heads whose dimension is a multiple of this."""
SIGNATURES = {  # i: int, f: float, p: tensor or None; in the order of the file's table
    "add_norm": "iipppppf",
    "add_norm_backward": "iipppppp",
    "swiglu": "iipp",
    "swiglu_backward": "iippp",
    "rotate": "iiiipppppfp",
    "rotate_backward": "iiiipppppfpppp",
    "attend": "iiiiippppfp",
    "attend_backward": "iiiiippppfppp",
    "attend_step": "iiiiippppppffppp",
}
_TYPES: dict[str, Any] = {"i": ctypes.c_int64, "f": ctypes.c_float, "p": ctypes.c_void_p}
_SOURCE = Path(__file__).with_name("kernels.cpp")
_FLAGS = (
    "-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast", "-Wno-psabi",
)  # fmt: skip
_WIDE = "-mprefer-vector-width=512"
_log = logging.getLogger(__name__)


class Kernels:
    """The functions of `kernels.cpp` for one dtype of the matmuls: kernels.swiglu(n, f, gate_up, product), and so on.

    They take contiguous tensors, write into those that the file does not call const, and allocate none.
    """

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        name = f"kernels_{str(dtype).removeprefix('torch.')}"
        table = (ctypes.c_void_p * len(SIGNATURES)).in_dll(library, name)
        for address, (kernel, signature) in zip(table, SIGNATURES.items(), strict=True):
            function = ctypes.CFUNCTYPE(None, *(_TYPES[kind] for kind in signature))(address)
            setattr(self, kernel, _taking_tensors(function))

    def __getattr__(self, name: str) -> Callable[..., None]:
        raise AttributeError(name)  # here for type checkers: what exists is found before


def kernels(dtype: torch.dtype, head_dim: int) -> Kernels | None:
    """The kernels, or None where they do not cover the case or cannot be compiled here."""
    if dtype not in (torch.float32, torch.bfloat16) or head_dim % HEAD_MULTIPLE:
        return None
    library = _library()
    return None if library is None else Kernels(library, dtype)


def _taking_tensors(function: Callable[..., Any]) -> Callable[..., None]:
    def call(*arguments: Tensor | float | None) -> None:
        function(*[_address(a) if isinstance(a, Tensor) else a for a in arguments])

    return call


def _address(tensor: Tensor) -> int:
    assert tensor.is_contiguous()
    return tensor.data_ptr()


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")
    if compiler is None or os.environ.get("SCALERL_KERNELS") == "0":
        return None
    try:
        return ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        _log.warning("kernels.cpp is not used, torch's slower operations are: %s", " ".join(detail))
        return None


def _compiled(compiler: str) -> Path:
    """The library for this source, compiler and processor; made unless the cache has it."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    key = [_SOURCE.read_text(), version, *_FLAGS, _processor()]
    library = cache_folder() / "kernels" / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        parts, made = Path(scratch) / "kernels.o", Path(scratch) / "kernels.so"
        wide = [_WIDE] if platform.machine() in ("x86_64", "AMD64") else []
        _run(compiler, *_FLAGS, *wide, "-c", str(_SOURCE), "-o", str(parts))
        # Linked without OpenMP: its symbols are then found in the runtime that torch has loaded, whose number of
        # threads `torch.set_num_threads` sets. A second runtime would bring threads of its own.
        _run(compiler, "-shared", str(parts), "-o", str(made))
        made.replace(library)  # at once: another process may be loading it
    return library


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)


def _processor() -> str:
    """What -march=native depends on: a home directory may be shared by unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
