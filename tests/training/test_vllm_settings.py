"""The settings of vLLM are refused where they cannot work, before anything is started."""

import pytest
from small_runs import settings

from scalerl.errors import InputError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["engines.generator=vlm"], r"--set engines.generator=vlm.*nearest valid one is 'vllm'"),
        (["engines.vllm.tensor_parallel=0"], r"engines.vllm.tensor_parallel = 0: it must be 1 to 64"),
        (["engines.vllm.gpu_memory=1.5"], r"engines.vllm.gpu_memory = 1.5: it is a share"),
        (["engines.vllm.kv_cache_gib=0"], r"engines.vllm.kv_cache_gib = 0.0: it must be above 0"),
        (["engines.vllm.url=localhost:8000"], r"engines.vllm.url = 'localhost:8000': it must begin with http"),
        (["engines.vllm.url=http://x"], r"engines.generator = 'torch': vllm.url names a server; set it to 'vllm'"),
        (["engines.generator=vllm", "engines.vllm.url=http://x", "engines.generators=2"],
         r"engines.generators = 2: a server at vllm.url is one"),
        (["engines.vllm.transfer=nccl"], r"engines.vllm.check = 'sampled': what transfer = nccl brings"),
        (["engines.vllm.transfer=ipc", "engines.vllm.check=none", "engines.vllm.tensor_parallel=2"],
         r"engines.vllm.transfer = 'ipc': it reaches one GPU"),
        (["engines.vllm.transfer=ipc", "engines.vllm.check=none", "engines.generator=vllm", "engines.vllm.url=http://x"],
         r"engines.vllm.transfer = 'ipc': a server takes weights by shared memory"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_its_place(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings(*words)


def test_config_yaml_holds_them() -> None:
    own = settings("engines.generator=vllm", "engines.vllm.check=full")
    assert own.to_dict()["engines"]["vllm"] == {
        "url": None, "tensor_parallel": 1, "gpu_memory": 0.9, "kv_cache_gib": None, "check": "full",
        "transfer": "shared",
    }  # fmt: skip
