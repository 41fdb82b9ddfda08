"""Decoding speed against `transformers` generate when completion lengths vary 1:8; prints one JSON line.

    python bench/decode.py [--threads 1] [--slots 256] [--requests 1536] [--group 16] [--repeats 3] [--dtype fp32]

Same model (0.8 M parameters, Qwen3), same prompts in the same order, sampling at temperature 1 from all tokens. Every
request has a length of its own, uniform in 6 to 48: the end token is forced there and kept out before, on the side of
generate by a LogitsProcessor, on ours by the same rule applied to what was sampled. So both sides make as many tokens
for every request; generate computes a batch until its longest row ends, ours refills the slot at once.
`useful` tokens are those up to each row's end, per CPU second. Generate gets batches as large as our slots, half and
twice that, and its best counts; both sides take turns and the best repeat counts. Prompts come in groups, as in
training: `--group 1` gives every request its own. Ours also reports log-probabilities; generate is spared that.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from scalerl.engines.generator import GeneratorSettings, TorchGenerator
from scalerl.engines.length_control import LengthLimits
from scalerl.engines.memory import keep_freed_memory
from scalerl.engines.model import build_model
from scalerl.types import IntArray, Prompt

PAD, END, OTHER = 0, 2, 3
SHORTEST, LONGEST, PROMPT_TOKENS = 6, 48, 20
CONFIG: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 24, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 384, "max_position_embeddings": 512,
    "tie_word_embeddings": True, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": END,
}  # fmt: skip


class EndAt(LogitsProcessor):  # type: ignore[misc]
    """The end token at each row's own length, and never before."""

    def __init__(self, lengths: torch.Tensor, prompt: int) -> None:
        self.lengths, self.prompt = lengths, prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ends = self.lengths == input_ids.shape[1] - self.prompt + 1
        scores[:, END] = -torch.inf
        scores[ends] = -torch.inf
        scores[ends, END] = 0.0
        return scores


class EndingGenerator(TorchGenerator):
    """Ours, with the same rule; a request's group_id is its index."""

    lengths: IntArray

    def _sample(self, rows: IntArray, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, logprobs = super()._sample(rows, hidden)
        wanted = self.lengths[[self._slots.running[slot][0] for slot in rows.tolist()]]  # type: ignore[index]
        sampled = tokens.numpy()
        sampled[sampled == END] = OTHER
        sampled[self._slots.count[rows] + 1 == wanted] = END
        return tokens, logprobs


def ours(model: Any, prompts: list[Prompt], lengths: IntArray, slots: int) -> float:
    """Useful tokens per CPU second."""
    limits = LengthLimits((0, 0), LONGEST, None, (), (END,))
    generator = EndingGenerator(model, GeneratorSettings(slots, PROMPT_TOKENS, limits))
    generator.lengths = lengths
    started = time.process_time()
    generator.submit(list(enumerate(prompts)))
    while not generator.idle:
        generator.step()
    seconds = time.process_time() - started
    found = {r.group_id: r.token_ids.size for r in generator.poll()}
    assert [found[i] for i in range(len(prompts))] == lengths.tolist()
    return float(lengths.sum()) / seconds


def theirs(model: Any, prompts: list[Prompt], lengths: IntArray, batch: int) -> float:
    """Useful tokens per CPU second."""
    seconds = 0.0
    for begin in range(0, len(prompts), batch):
        part, wanted = prompts[begin : begin + batch], lengths[begin : begin + batch]
        width = max(len(p.token_ids) for p in part)
        ids = torch.tensor([[PAD] * (width - len(p.token_ids)) + list(p.token_ids) for p in part])
        started = time.process_time()
        out = model.generate(
            ids, attention_mask=(ids != PAD).long(), max_new_tokens=LONGEST, do_sample=True, temperature=1.0, top_k=0,
            top_p=1.0, logits_processor=LogitsProcessorList([EndAt(torch.from_numpy(wanted), width)]),
        )  # fmt: skip
        seconds += time.process_time() - started
        assert ((out[:, width:] == END).int().argmax(1) + 1).tolist() == wanted.tolist()
    return float(lengths.sum()) / seconds


def requests(n: int, group: int, seed: int = 0) -> tuple[list[Prompt], IntArray]:
    """Prompts of 8 to 20 tokens, each for a whole group, and every request's length."""
    rng = np.random.default_rng(seed)
    prompts: list[Prompt] = []
    while len(prompts) < n:
        tokens = tuple(rng.integers(OTHER, CONFIG["vocab_size"], rng.integers(8, PROMPT_TOKENS + 1)).tolist())
        prompts += [Prompt(tokens, f"p{len(prompts)}", "bench")] * group
    return prompts[:n], rng.integers(SHORTEST, LONGEST + 1, n)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--requests", type=int, default=1536)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    model: Any = build_model(CONFIG).to(torch.bfloat16 if options.dtype == "bf16" else torch.float32)
    prompts, lengths = requests(options.requests, options.group)
    best, batches = 0.0, dict.fromkeys((options.slots // 2, options.slots, options.slots * 2), 0.0)
    for _ in range(options.repeats):
        best = max(best, ours(model, prompts, lengths, options.slots))
        for batch in batches:
            batches[batch] = max(batches[batch], theirs(model, prompts, lengths, batch))
    print(
        json.dumps(
            {
                "bench": "decode",
                "ratio": round(best / max(batches.values()), 2),
                "scalerl_useful_tokens_per_second": round(best),
                "generate_useful_tokens_per_second": round(max(batches.values())),
                "generate_by_batch": {str(size): round(rate) for size, rate in batches.items()},
                "lengths": {"shortest": int(lengths.min()), "longest": int(lengths.max()), "mean": lengths.mean()},
                "slots": options.slots,
                "requests": options.requests,
                "group": options.group,
                "dtype": options.dtype,
                "threads": options.threads,
            }
        )
    )


if __name__ == "__main__":
    main()
