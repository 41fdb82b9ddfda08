# Every target sets itself up on a fresh machine: Python >= 3.11 and this file are all it takes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Small matrices on shared cores: one BLAS thread is fastest, and many are far slower.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test test-all lint format types bench docs clean

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Forecasting alone: seconds to install. Development: torch and the writers of other tools' logs too.
setup: $(VENV)/.ready

$(VENV)/.light: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.ready: $(VENV)/.light
	$(PIP) -e '.[dev,train]'
	touch $@

demo: $(VENV)/.light
	$(BIN)/python examples/demo.py

test: setup
	$(BIN)/python -m pytest -n 2 -m 'not slow'

test-all: setup
	$(BIN)/python -m pytest -n 2

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

docs: setup
	$(BIN)/python docs/figures/architecture.py
	$(BIN)/python docs/rerun.py

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
