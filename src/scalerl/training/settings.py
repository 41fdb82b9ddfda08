"""Every choice of a run that can be made from outside, in one validated tree; `config.yaml` holds it resolved.

    task, model, recipe (with `preset`), engines, evaluation, checkpoints, forecast, steps, seed

How they come together is in `resolve.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from scalerl.engines.commands import STEP_SECONDS
from scalerl.engines.vllm_options import VLLMOptions
from scalerl.errors import InputError
from scalerl.recipe.recipe import Recipe
from scalerl.recipe.validate import MOST, choice
from scalerl.tasks.arithmetic import LEVELS
from scalerl.training.stop_when import StopWhen
from scalerl.training.tree import Tree

CONFIG = "config.yaml"
Axis = Literal["flops", "tokens", "device_hours", "step"]
MOST_SEED = 2**63 - 1
MOST_GENERATORS = 256
"""What torch's generators take, with room for the seeds that are derived from it."""
THREADS = ("generator_threads", "trainer_threads", "evaluation_threads")
_MOST_CHAIN = 100
_MOST_SIZE = 10**6
_SIZES = ("_size", "_heads", "_layers", "_dim")


@dataclass(frozen=True)
class WarmStart:
    """The small model, and the supervised steps on worked examples that it begins with.

    Attributes:
        level, min_steps, max_steps, corruption, interrupted, seed: of the examples, see `tasks.arithmetic`.
        steps, batch, learning_rate: of the supervised training.
        hidden_size to head_dim: of the model, a Qwen3.
    """

    level: str = "medium"
    min_steps: int = 1
    max_steps: int = 6
    corruption: float = 0.28
    interrupted: float = 0.05
    seed: int = 0
    steps: int = 600
    batch: int = 128
    learning_rate: float = 1e-3
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 384

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "hidden_size", "layers", "heads", "kv_heads", "head_dim", "intermediate_size"):
            _within(name, getattr(self, name), 1, _MOST_SIZE)
        _seed(self.seed)
        _within("learning_rate", self.learning_rate, 1e-9, 1)
        for name in ("corruption", "interrupted"):
            _within(name, getattr(self, name), 0, 1)
        _within("min_steps", self.min_steps, 1, _MOST_CHAIN)
        _within("max_steps", self.max_steps, self.min_steps, _MOST_CHAIN)
        if self.level not in LEVELS:
            raise InputError(f"level = {self.level!r}: {choice(self.level, list(LEVELS))}")
        if self.heads % self.kv_heads:
            raise InputError(f"kv_heads = {self.kv_heads}: it must divide heads = {self.heads}")


@dataclass(frozen=True)
class ModelSettings:
    """Where the policy comes from: one of three.

    Attributes:
        path: a Hugging Face folder with a causal language model. config: or its config, for random weights.
        warm_start: or the small model of the arithmetic task, which is what happens if neither is given.
        tokenizer: folder of the tokenizer, where it is not the model's own.
        seed: of random weights.
    """

    path: str | None = None
    config: Mapping[str, Any] | None = None
    warm_start: WarmStart | None = None
    tokenizer: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        given = [n for n in ("path", "config", "warm_start") if getattr(self, n) is not None]
        if len(given) > 1:
            raise InputError(f"{given[1]}: a model has one origin, and {given[0]} is given too; remove one")
        for name, value in (self.config or {}).items():
            if str(name).endswith(_SIZES) and isinstance(value, int) and value < 1:
                raise InputError(f"config: {name} = {value}: it must be at least 1")
        _seed(self.seed)


@dataclass(frozen=True)
class RaySettings:
    """Where actors run, with `launch: ray`.

    Attributes:
        address: host:port, ray://host:port, or auto; null: what RAY_ADDRESS names, else a cluster on this machine.
        runtime_env: of every actor, as Ray takes it.
        generator, trainer: resources of each engine and of each rank: CPU, GPU, or the cluster's own names.
        wait_seconds: for so much room to be free.
    """

    address: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    generator: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    trainer: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    wait_seconds: float = 600.0


@dataclass(frozen=True)
class EngineSettings:
    """How the work is spread over this machine; nothing here changes what is learnt, but for rounding.

    Attributes:
        launch: process: generator, trainer and evaluation in processes of their own. ray: in actors of a Ray cluster.
            inline: all in one, for tests and for lockstep. auto: inline for lockstep, else process.
        ray: of the cluster.
        generator: torch: exact, small, runs anywhere. vllm: for models that need it. vllm: its choices.
        trainers: ranks of the trainer; more than one share the model's weights and work (FSDP2).
        generators: how many; `echo N > RUN/generators` changes it while the run goes on.
        generator_threads, trainer_threads, evaluation_threads: of torch; null: half of the cores each, which several
            trainers share.
        slots: rollouts that are generated at once. evaluation_slots: null: as many.
        generator_dtype: of the weights that generate.
        compute: of the trainer's matmuls; auto measures which is faster.
        micro_batch_tokens: of one forward pass of the trainer, padding included.
        activation_checkpointing, compiled: of the trainer.
        reshard_after_forward: of several trainers: a layer's weights are gathered again for its backward pass; false
            keeps them from the forward pass on, which is faster and takes memory.
        verify_threads: answers judged at once beside the loop; null: none for arithmetic and in lockstep, else 4.
        capacity: most prompts under way in the pipeline; null: as many as keep both busy.
        weight_buffers: copies of the weights in shared memory; each generator beyond the first adds one.
        silent_seconds: a generator that is not heard of for so long is taken for dead and replaced. start_seconds: the
            same before its first word, while it loads its model.
        step_seconds: a trainer that has not answered a command (a step, a save, a load) for so long is taken for dead,
            with all its ranks, and replaced. Well above the longest step, the first one with all it compiles included.
        rollout_seconds: a rollout may take so long in its generator; then it is left out of its group, as
            one whose verification failed is, and counted. Long rollouts are not redrawn: that would favour short ones.
            null: it is waited for.
    """

    launch: Literal["auto", "process", "inline", "ray"] = "auto"
    ray: RaySettings = field(default_factory=RaySettings)
    generator: Literal["torch", "vllm"] = "torch"
    vllm: VLLMOptions = field(default_factory=VLLMOptions)
    generators: int = 1
    trainers: int = 1
    generator_threads: int | None = None
    trainer_threads: int | None = None
    evaluation_threads: int | None = None
    slots: int = 64
    evaluation_slots: int | None = None
    generator_dtype: Literal["fp32", "bf16"] = "fp32"
    compute: Literal["auto", "fp32", "bf16"] = "auto"
    micro_batch_tokens: int = 4096
    activation_checkpointing: bool = False
    compiled: bool = False
    reshard_after_forward: bool = True
    verify_threads: int | None = None
    capacity: int | None = None
    weight_buffers: int = 6
    silent_seconds: float = 120.0
    start_seconds: float = 900.0
    step_seconds: float = STEP_SECONDS
    rollout_seconds: float | None = None

    def __post_init__(self) -> None:
        ranges: dict[str, tuple[float, float]] = {
            "slots": (1, MOST), "evaluation_slots": (1, MOST), "micro_batch_tokens": (1, MOST),
            "generators": (1, MOST_GENERATORS), "trainers": (1, 4096),
            "weight_buffers": (5, 512), "verify_threads": (0, 256), "rollout_seconds": (0.001, 1e6),
            **dict.fromkeys(("silent_seconds", "start_seconds", "step_seconds"), (1, 1e6)),
            **dict.fromkeys(THREADS, (1, 4096)),
        }  # fmt: skip
        for name, (least, most) in ranges.items():
            if getattr(self, name) is not None:
                _within(name, getattr(self, name), least, most)
        if self.vllm.url is not None and self.generator != "vllm":
            raise InputError(f"generator = {self.generator!r}: vllm.url names a server; set it to 'vllm'")
        if self.vllm.url is not None and self.generators > 1:
            raise InputError(f"generators = {self.generators}: a server at vllm.url is one; set it to 1")


@dataclass(frozen=True)
class EvaluationSettings:
    """Held-out mean@k. `every`: steps between two; 0 for none. `prompts`: most of each task; null: all."""

    every: int = 5
    samples: int = 4
    prompts: int | None = None

    def __post_init__(self) -> None:
        _at_least("every", self.every, 0)
        _within("samples", self.samples, 1, MOST)
        if self.prompts is not None:
            _at_least("prompts", self.prompts, 1)


@dataclass(frozen=True)
class CheckpointSettings:
    """`every`: steps between two; a stop and the end write one too. `keep`: how many of the newest stay."""

    every: int = 10
    keep: int = 2

    def __post_init__(self) -> None:
        _at_least("every", self.every, 1)
        _at_least("keep", self.keep, 1)


@dataclass(frozen=True)
class ForecastSettings:
    """The forecast beside the run.

    Attributes:
        renew: whether it is made anew at each evaluation. axis: compute that it is made in.
        threshold: gain that is worth the budget, for the verdict.
        stop_when: condition that ends the run, such as "gain_high < 0.01 at 2x"; null: none.
    """

    renew: bool = True
    axis: Axis = "flops"
    threshold: float = 0.01
    stop_when: str | None = None

    def __post_init__(self) -> None:
        _within("threshold", self.threshold, 0, 1)
        if self.stop_when is not None:
            StopWhen.parse(self.stop_when)
            if not self.renew:
                raise InputError("stop_when: it needs forecasts; set renew to true")


@dataclass(frozen=True)
class Settings:
    """One run. `task`: a name, a mapping, or a list of mappings for a mixture, as `tasks.build_task` takes it.

    `folder`: what relative paths are relative to.
    """

    steps: int = 100
    seed: int = 0
    task: Any = "arithmetic"
    folder: str = "."
    model: ModelSettings = field(default_factory=ModelSettings)
    engines: EngineSettings = field(default_factory=EngineSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    forecast: ForecastSettings = field(default_factory=ForecastSettings)
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        _at_least("steps", self.steps, 0)
        _seed(self.seed)

    @property
    def inline(self) -> bool:
        """Whether everything runs in this process."""
        return self.engines.launch == "inline"

    def to_dict(self) -> Tree:
        """Plain values, all resolved."""
        return asdict(self)

    def to_yaml(self) -> str:
        """As `config.yaml` holds it."""
        return yaml.safe_dump(_plain(self.to_dict()), sort_keys=False, allow_unicode=True, width=110)

    def write(self, directory: Path) -> None:
        """Write `config.yaml`."""
        (directory / CONFIG).write_text(self.to_yaml(), "utf-8")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{name} = {value}: it must be at least {least}")


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        wanted = f"at least {least:g}" if value < least else f"at most {most:,}"
        raise InputError(f"{name} = {value}: it must be {wanted}")


def _seed(value: int) -> None:
    _at_least("seed", value, 0)
    if value > MOST_SEED:
        raise InputError(f"seed = {value}: it must be at most 2^63 - 1 = {MOST_SEED}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
