"""Named recipes, and where each of their settings comes from. Data only: what a preset does not name is ScaleRL's.

The recipes of others are set up as the ScaleRL paper compared them (A.16), on its own length control and optimizer;
they are not the complete systems of their authors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

INTERRUPTION_PHRASE = (
    "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"  # PAPER section 4, item 6
)


@dataclass(frozen=True)
class Preset:
    """Settings that differ from ScaleRL's, and the source of each; "scalerl" has sources for all of its settings."""

    summary: str
    settings: dict[str, Any]
    sources: dict[str, str]


_S4, _A3, _A16 = "arXiv 2510.13786, section 4", "arXiv 2510.13786, A.3", "arXiv 2510.13786, A.16"
_BASE = "arXiv 2510.13786, the baseline of the ablations"
_OURS = "a choice of scalerl: "

_SCALERL_SOURCES = {
    "schedule": f"{_S4}: PipelineRL-8",
    "max_staleness": f"{_S4}: k = 8; 4 and 8 tie",
    "loss": f"{_S4}: CISPO",
    "clip_low": f"{_S4}: an upper bound only",
    "clip_high": f"{_S4}: 4, 5 and 8 were tried without a visible difference; 5 is the middle one",
    "kl_coefficient": f"{_S4}: no KL term",
    "router_loss": _OURS + "the policy loss alone, as for a dense model",
    "head_precision": f"{_S4}: FP32 at the head of generator and trainer",
    "master_weights": _OURS + "a step of 5e-7 rounds to nothing in bf16",
    "reward_correct": _A3,
    "reward_wrong": _A3,
    "aggregation": f"{_S4}: prompt-level loss average",
    "advantage_normalization": f"{_S4}: batch-level",
    "zero_variance": f"{_S4}: filtered without refill",
    "curriculum": f"{_S4}: No-Positive-Resampling",
    "retire_at": f"{_S4}: pass rate >= 0.9",
    "length_control": f"{_S4}: forced interruption",
    "thinking_budget_low": f"{_S4}: 10k to 12k tokens, drawn uniformly",
    "thinking_budget_high": f"{_S4}: 10k to 12k tokens; 12,000 and the phrase fit into A.3's 12,288",
    "answer_budget": f"{_A3}: 2,048",
    "interruption_phrase": _S4,
    "thinking_end": f"{_S4}: the phrase closes with it",
    "penalty_longest": 'arXiv 2510.13786, axis "length": L_max 14k, taken as 12,288 + 2,048',
    "penalty_cache": 'arXiv 2510.13786, axis "length": L_cache 2k, taken as 2,048',
    "completion_tokens": f"{_A3}: 12,288 + 2,048",
    "prompt_tokens": f"{_A3}: 2,048",
    "truncated": _OURS + "a rollout that ran out has no answer, and is scored as any other",
    "temperature": f"{_A3}: 1",
    "top_p": f"{_A3}: plain sampling at temperature 1",
    "top_k": f"{_A3}: plain sampling at temperature 1",
    "min_p": f"{_A3}: plain sampling at temperature 1",
    "prompts_per_step": f"{_A3}: 48",
    "generations": f"{_A3}: 16",
    "learning_rate": f"{_A3}: 5e-7, constant after warm-up",
    "warmup_steps": f"{_A3}: 100",
    "adam_beta1": _OURS + "AdamW's usual 0.9",
    "adam_beta2": _OURS + "AdamW's usual 0.999",
    "adam_epsilon": f"{_A3}: 1e-15",
    "weight_decay": f"{_A3}: 0.01",
    "gradient_clipping": _OURS + "norm 1, the usual guard against a single bad batch",
}

_SHARED = {  # what every compared recipe has instead of ScaleRL's choices, unless it says otherwise
    "schedule": "ppo-off-policy",
    "advantage_normalization": "prompt",
    "head_precision": "model",
    "curriculum": "uniform",
}
_SHARED_SOURCES = {
    "schedule": f"{_A16}: PPO-off-policy-8",
    "advantage_normalization": f"{_BASE}; A.16 names no other",
    "head_precision": f"{_BASE}; A.16 names no other",
    "curriculum": f"{_BASE}; A.16 names no other",
}
_BATCH = {"prompts_per_step": 80, "generations": 16}
_BATCH_SOURCES = {"prompts_per_step": f"{_A16}: 80 x 16", "generations": f"{_A16}: 80 x 16"}
_DAPO = {"loss": "dapo", "clip_low": 0.2, "clip_high": 0.26, "aggregation": "prompt", "zero_variance": "filter"}
_DAPO_SOURCES = {
    "loss": f"{_A16}: DAPO",
    "clip_low": f"{_A16}: 0.2",
    "clip_high": f"{_A16}: 0.26",
    "aggregation": f"{_A16}: prompt average",
    "zero_variance": f"{_A16}: dropped",
}

PRESETS: dict[str, Preset] = {
    "scalerl": Preset("the paper's recipe (section 4)", {}, _SCALERL_SOURCES),
    "baseline": Preset(
        "where the paper's ablations start: GRPO without KL, asymmetric clipping, PPO-off-policy-8",
        _SHARED | {"loss": "dapo", "aggregation": "sample", "zero_variance": "keep"},
        {
            "schedule": f"{_BASE}: PPO-off-policy-8",
            "advantage_normalization": f"{_BASE}: prompt-level",
            "head_precision": f"{_BASE}; FP32 is an ablation of it",
            "curriculum": f"{_BASE}; No-Positive-Resampling is an ablation of it",
            "loss": f"{_BASE}: asymmetric clipping",
            "aggregation": f"{_BASE}: sample average",
            "zero_variance": f"{_BASE}; filtering is an ablation of it",
        },
    ),
    "grpo-deepseek": Preset(
        "GRPO as DeepSeek's; the paper saw it unstable past 6k GPU-hours",
        _SHARED | {"loss": "grpo", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "sample", "zero_variance": "keep"},
        _SHARED_SOURCES
        | {
            "loss": f"{_A16}: GRPO",
            "clip_low": f"{_A16}: 0.2",
            "clip_high": f"{_A16}: 0.2",
            "aggregation": f"{_A16}: sample average",
            "zero_variance": f"{_BASE}; A.16 names no filter",
        },
    ),
    "dapo-qwen2.5": Preset(
        "DAPO on Qwen2.5", _SHARED | _DAPO | _BATCH, _SHARED_SOURCES | _DAPO_SOURCES | _BATCH_SOURCES
    ),
    "magistral": Preset(
        "as DAPO, streamed",
        _SHARED | _DAPO | _BATCH | {"schedule": "pipeline"},
        _SHARED_SOURCES | _DAPO_SOURCES | _BATCH_SOURCES | {"schedule": f"{_A16}: as DAPO, but PipelineRL"},
    ),
    "minimax-m1": Preset(
        "CISPO with an FP32 head, not streamed",
        {
            "schedule": "ppo-off-policy",
            "loss": "cispo",
            "head_precision": "fp32",
            "aggregation": "prompt",
            "advantage_normalization": "prompt",
            "zero_variance": "filter",
            "curriculum": "uniform",
        }
        | _BATCH,
        {
            "schedule": f"{_A16}: PPO-off-policy",
            "loss": f"{_A16}: CISPO",
            "head_precision": f"{_A16}: FP32",
            "aggregation": f"{_A16}: prompt average",
            "advantage_normalization": f"{_BASE}; A.16 names no other",
            "zero_variance": f"{_A16}: dropped",
            "curriculum": f"{_BASE}; A.16 names no other",
        }
        | _BATCH_SOURCES,
    ),
}
