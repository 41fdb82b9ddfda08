"""One thread, since the models are tiny; and one warm start for all tests, in a cache of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import WARM

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "cache"


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALERL_CACHE", str(cache))


@pytest.fixture(scope="session")
def model(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that gets some short chains right."""
    from scalerl.training.warm_start import warm_start

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALERL_CACHE", str(cache))
        return warm_start(WARM)
