"""Weights to vLLM's workers on the same machine: a file in shared memory that they map, load and check.

This side writes the file, with a digest of each tensor. `register` makes the workers' side (`vllm_worker`) known to
vLLM, which calls it in each of its processes by the entry point "vllm.general_plugins"; without vLLM nobody does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.errors import ScaleRLError

if TYPE_CHECKING:
    import torch

    from scalerl.protocols import WeightSource

BACKEND = "scalerl"
"""Name of the transfer engine in vLLM's `weight_transfer_config`."""
SAMPLED_COLUMNS = 8
"""Of each matrix; other ones for every version."""
PARENT = "SCALERL_VLLM_PARENT"
"""Environment variable: the process whose engine this is; none of vLLM's below it outlives its own parent."""
MARK = "weights do not fit:"


def register() -> None:
    """Make the workers' side known to vLLM; vLLM may call this several times."""
    if os.environ.get(PARENT, str(os.getpid())) != str(os.getpid()):
        threading.Thread(target=_end_with_parent, daemon=True).start()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    with contextlib.suppress(ValueError):  # it is registered already
        WeightTransferEngineFactory.register_engine(BACKEND, "scalerl.engines.vllm_worker", "SharedFileEngine")


def _end_with_parent() -> None:
    """A generator that is killed cannot end its engine, nor that its workers, which may be in the middle of a step."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)


class SharedFile:
    """Weights in shared memory, without a name in any folder; gone when the block ends, or this process.

    Attributes:
        info: what the workers need, in plain values: path, version, check and the digest of each tensor.
    """

    def __init__(self, handle: int, info: dict[str, Any]) -> None:
        self._handle, self.info = handle, info

    def __enter__(self) -> SharedFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def write_shared(version: int, source: WeightSource, dtype: torch.dtype, check: str) -> SharedFile:
    """Copy weights to shared memory.

    Args:
        dtype: of floating-point tensors. check: "sampled" or "full": digests of that much go along; "none": none.

    Raises:
        ScaleRLError: the memory is full.
    """
    from safetensors.torch import save_file

    tensors = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
        for name, tensor in source
    }
    with tempfile.TemporaryDirectory(prefix="scalerl-", dir=_memory()) as folder:
        try:
            save_file(tensors, Path(folder) / "weights")
        except Exception as error:
            size = sum(t.numel() * t.element_size() for t in tensors.values()) / 2**20
            raise ScaleRLError(f"{folder}: {size:.0f} MiB of weights do not go there ({error})") from error
        handle = os.open(Path(folder) / "weights", os.O_RDONLY)  # keeps what has no name any more
    path = f"/proc/{os.getpid()}/fd/{handle}"
    digests = {} if check == "none" else {n: digest(t, columns(t.shape, version, check)) for n, t in tensors.items()}
    return SharedFile(handle, {"path": path, "version": version, "check": check, "digests": digests})


def _memory() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def columns(shape: tuple[int, ...], version: int, check: str) -> list[int] | None:
    """Which columns (last dimension) of a tensor are compared; None: all. Vectors always are, whole."""
    import numpy as np

    if check == "full" or len(shape) < 2 or shape[-1] <= SAMPLED_COLUMNS:
        return None
    chosen: list[int] = np.random.default_rng([version, shape[-1]]).choice(shape[-1], SAMPLED_COLUMNS, False).tolist()
    return sorted(chosen)


def digest(tensor: torch.Tensor, which: list[int] | None) -> str:
    """Hash of a tensor's bytes, or of those in some of its columns."""
    import hashlib

    import torch

    part = tensor.detach() if which is None else tensor.detach()[..., which]
    flat = part.cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy().data, digest_size=16).hexdigest()


@contextlib.contextmanager
def transfer_failure(version: int) -> Iterator[None]:
    """Turn what comes back from a worker into one line that says what is wrong with the weights."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split())
        found = re.search(rf"{MARK} (.*?)(?:\\n|['\"]|$)", text)
        raise ScaleRLError(f"weights of version {version}: {found[1] if found else text}") from error
