"""Time and memory of reading a JSONL of a million rows in a fresh process; prints one JSON line a variant.

    python bench/read_jsonl.py [--rows 1000000]

Variants: `clean` (8 keys a row), `mixed` (train and eval rows, NaN literals). `peak_rss_mb` and
`cpu_seconds` are of the whole process.
Left out on purpose: the time to make the file, and a cold disk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

READ = """
import json, resource, sys, time
start = time.perf_counter()
from scalerl.runs import read_run
log = read_run(sys.argv[1])
curve = log.curve()
seconds = time.perf_counter() - start
cpu = time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
result = {"rows": log.table.rows, "points": len(curve), "seconds": round(seconds, 2)}
result |= {"cpu_seconds": round(cpu, 2), "peak_rss_mb": round(peak)}
print(json.dumps(result))
"""


def write(path: Path, rows: int, variant: str) -> None:
    """A file of `rows` rows; a template with numbers keeps its making fast."""
    with path.open("w") as out:
        for i in range(rows):
            reward = 0.3 + 0.4 * i / rows + 0.001 * (i % 97)
            if variant == "mixed" and i % 10 == 9:
                out.write(
                    f'{{"step": {i}, "kind": "eval", "eval/pass_rate": {reward:.6f}, "eval/length": {i % 1024}}}\n'
                )
                continue
            loss = "NaN" if variant == "mixed" and i % 7 == 0 else f"{1 / (1 + i):.8f}"
            kind = '"kind": "train", ' if variant == "mixed" else ""
            out.write(
                f'{{"step": {i}, {kind}"loss": {loss}, "reward": {reward:.6f}, '
                f'"reward_std": {0.1 + 1e-4 * (i % 13):.6f}, '
                f'"entropy": {0.5 - 1e-7 * i:.6f}, "grad_norm": {1 + 0.01 * (i % 31):.4f}, '
                f'"lr": 1e-06, "num_tokens": {i * 4096}}}\n'
            )


def main() -> None:
    """Make, read and report each variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        for variant in ("clean", "mixed"):
            path = Path(folder) / f"{variant}.jsonl"
            write(path, rows, variant)
            size = path.stat().st_size / 1e6
            done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
            print(json.dumps({"variant": variant, "file_mb": round(size), **json.loads(done.stdout)}), flush=True)
            path.unlink()


if __name__ == "__main__":
    main()
