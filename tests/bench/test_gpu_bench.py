"""What bench/gpu.py says is right where it can be known, and it says what failed and why."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu import Part, ask, last_error, parts, table, with_shares
from gpu_arithmetic import MODELS, Shape, causal_keys, choose_model, choose_sizes, known_peak, mismatch

BENCH = Path(__file__).resolve().parents[2] / "bench"
GB = 1e9
SHAPE = Shape(
    layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, vocabulary=96, body=0, head=96 * 64, stored=0
)  # fmt: skip


def shape_of(config: dict[str, Any], stored: float) -> Shape:
    head = config["vocab_size"] * config["hidden_size"]
    return Shape(
        config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"],
        config["num_key_value_heads"], config["head_dim"], config["vocab_size"], round(stored) - head, head,
        round(stored),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("card", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H100 NVL", 835), ("NVIDIA H200", 989),
        ("NVIDIA GH200 480GB", 989), ("NVIDIA B200", 2250), ("NVIDIA GB200", 2500), ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312), ("NVIDIA L40S", 362), ("NVIDIA L40", 181), ("NVIDIA L4", 121),
        ("NVIDIA A10G", 70), ("NVIDIA A10", 125), ("NVIDIA GeForce RTX 4090", 165), ("NVIDIA H20", 148),
    ],
)  # fmt: skip
def test_a_card_is_known_by_its_drivers_name(card: str, tflops: float) -> None:
    peak = known_peak(card)
    assert peak is not None
    assert peak.flops == tflops * 1e12


def test_a_card_that_is_not_known_is_measured() -> None:
    assert known_peak("NVIDIA T1000") is None


def test_flops_are_those_that_torch_counts() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from scalerl.engines.model import build_model, count_parameters

    n, config = 24, {
        "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 96, "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }  # fmt: skip
    model = build_model(config)
    model.set_attn_implementation("eager")  # which computes what causality then masks: n keys for each token
    body = count_parameters(model) - SHAPE.head
    norms = sum(p.numel() for p in model.parameters() if p.dim() == 1)  # no matmuls
    shape = Shape(**vars(SHAPE) | {"body": body - norms})
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(n)[None], use_cache=False)
    assert counter.get_total_flops() == shape.forward_flops(n, n, n * n)


def test_training_takes_three_forward_passes_of_causal_sequences() -> None:
    shape = Shape(**vars(SHAPE) | {"body": 1000})
    assert causal_keys([1, 3]) == 1 + (1 + 2 + 3)
    assert shape.training_flops([1, 3], 2) == 3 * shape.forward_flops(4, 2, 7)
    plain = Shape(**vars(shape) | {"layers": 0})
    assert plain.training_flops([4], 4) == 6 * (1000 + shape.head) * 4  # 6 N D


def test_decoding_reads_the_weights_every_step_and_each_cache_as_far_as_it_has_come() -> None:
    shape = Shape(**vars(SHAPE) | {"body": 1000})
    sequences, prompt, completion = 3, 5, 7
    a_key = 2 * shape.layers * shape.kv_heads * shape.head_dim * 2
    read = sum(2 * (1000 + shape.head) + sequences * a_key * (prompt + done) for done in range(completion))
    assert shape.decode_bytes(sequences, prompt, completion) == read


def test_mismatch_of_equal_logprobs_is_nothing_and_of_others_what_it_is() -> None:
    assert mismatch(np.zeros(5))["mismatch_kl"] == 0
    found = mismatch(np.array([0.0, 0.0, 0.0, math.log(1.3)]))
    assert found["mismatch_kl"] == pytest.approx((0.3 - math.log(1.3)) / 4, rel=1e-2)
    assert found["share_outside_.8_to_1.25"] == 0.25
    assert found["ratio_max"] == 1.3


@pytest.mark.parametrize("bad", [[0.0, np.nan], [np.inf], []])
def test_logprobs_that_are_none_are_told(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="not finite"):
        mismatch(np.array(bad))


@pytest.mark.parametrize("name", MODELS)
def test_models_have_as_many_parameters_as_their_memory_is_counted_by(name: str) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    parameters, config = MODELS[name]
    kind = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **kind))
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(parameters, rel=0.05)


@pytest.mark.parametrize(
    ("memory", "name"),
    [(12, "qwen3-0.1b"), (25.8, "qwen3-0.6b"), (48, "qwen3-0.6b"), (80, "qwen3-1.7b"), (141, "qwen3-4b")],
)
def test_generator_and_trainer_fit_the_card_together(memory: float, name: str) -> None:
    assert choose_model(memory * GB) == name
    parameters, config = MODELS[name]
    shape = shape_of(config, parameters)
    sizes = choose_sizes(shape, memory * GB)
    cache = sizes.kv_cache_gib * 2**30
    for number, length in ((sizes.slots, sizes.completion), (sizes.running, sizes.longest)):
        assert number * (sizes.prompt + length) * shape.cache_bytes <= cache * 1.01
    assert cache + 2 * parameters <= sizes.gpu_memory * memory * GB
    assert cache + (2 + 16) * parameters + 4 * GB <= 0.95 * memory * GB
    activations = 80 * shape.layers * shape.hidden * sizes.micro_batch
    assert sizes.micro_batch == sizes.sequence or 18 * parameters + activations + 4 * GB <= memory * GB
    assert sizes.step >= 2 * sizes.micro_batch


def lines_of(code: str, questions: tuple[str, ...], seconds: float, folder: Path) -> list[dict[str, Any]]:
    """What is told of a part that runs `code`."""
    told: list[dict[str, Any]] = []
    with open(folder / "log.txt", "a") as log:
        ask([sys.executable, "-c", code], questions, seconds, log, told.append)
    return told


def test_a_part_that_dies_loses_only_what_it_had_not_answered(tmp_path: Path) -> None:
    code = "import json; print(json.dumps({'question': 'a', 'x': 1}), flush=True); raise MemoryError('CUDA out of it')"
    told = lines_of(code, ("a", "b", "c"), 30, tmp_path)
    assert told[0] == {"question": "a", "x": 1}
    assert [line["question"] for line in told[1:]] == ["b", "c"]
    for line in told[1:]:
        assert line["failed"] == "its process ended with 1"
        assert line["log_says"] == "MemoryError: CUDA out of it"


def test_a_part_ends_with_its_time_and_so_does_what_it_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = (
        "import subprocess, sys, time, pathlib; "
        "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        f"pathlib.Path({str(child)!r}).write_text(str(c.pid)); time.sleep(60)"
    )
    started = time.monotonic()
    told = lines_of(code, ("a",), 6, tmp_path)
    assert time.monotonic() - started < 40  # of 60
    assert told == [{"question": "a", "failed": "not done within 6 s"}]
    deadline = time.monotonic() + 20
    while running(int(child.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_cause_is_the_last_error_of_the_parts_own_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ValueError: of an earlier part\n")
    start = log.stat().st_size
    assert last_error(log, start) is None
    with open(log, "a") as file:
        file.write("(EngineCore pid=1) RuntimeError: first\n(Core pid=1) torch.OutOfMemoryError: CUDA, 2 GiB\nx\n")
    assert last_error(log, start) == "torch.OutOfMemoryError: CUDA, 2 GiB"


def test_shares_are_of_the_named_peak_and_the_table_shows_failures() -> None:
    machine = {
        "peak_tflops": 100, "peak_gb_per_second": 1000, "device": "NVIDIA X", "model": "m", "peak_from": "measured",
    }  # fmt: skip
    run = {"at_once": 8, "tokens_per_second": 1234.0, "flops_per_second": 4e13, "bytes_per_second": 5e11}
    line = with_shares({"question": "generator_head_fp32", "runs": [run]}, machine)
    assert (line["runs"][0]["mfu"], line["runs"][0]["bandwidth_share"]) == (0.4, 0.5)
    assert "flops_per_second" in run  # what was given is left as it was
    shown = table(machine, [line, {"question": "trainer", "failed": "OutOfMemoryError: 2 GiB", "log_says": "more"}])
    assert "1,234 tokens/s, MFU 40.0%, bandwidth 50.0%" in shown
    assert "FAILED: OutOfMemoryError: 2 GiB; the log says more" in shown
    assert "says nothing of a GPU" not in shown
    assert "says nothing of a GPU" in table(machine | {"device": "cpu"}, [])


@pytest.mark.parametrize("cpu", [False, True])
def test_no_question_is_asked_twice_and_all_time_is_given_out(cpu: bool) -> None:
    all_parts: list[Part] = parts(cpu)
    questions = [q for part in all_parts for q in part.questions]
    assert len(set(questions)) == len(questions)
    assert [part.until for part in all_parts] == sorted(part.until for part in all_parts)
    assert all_parts[-1].until == 1.0


def test_a_run_without_a_gpu_tells_it_and_fails(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(BENCH / "gpu.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=hidden, timeout=120)
    assert done.returncode == 1
    assert "torch sees no GPU" in json.loads(done.stdout)["failed"]
    assert (tmp_path / "results.jsonl").read_text() == done.stdout


def test_a_folder_without_a_model_is_refused_at_once(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "gpu.py"), "--model", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "no Hugging Face model there" in done.stderr


def test_the_script_shows_how_it_is_called() -> None:
    done = subprocess.run(["bash", str(BENCH / "gpu.sh"), "--help"], capture_output=True, text=True, check=True)
    assert "bash bench/gpu.sh [--cpu] [--model FOLDER] [--minutes 10] [--out FOLDER]" in done.stdout
