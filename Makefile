# `make demo` and `make test` do everything on a machine that has Python 3.11 to 3.13 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: setup demo run test check lint types imports bench torture clean

setup: $(VENV)/.ready

# torch is installed by itself and pinned: a looser requirement would fetch the CUDA build
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"Springtide needs Python 3.11 to 3.13, this is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,local]' -c constraints.txt
	$(BIN)/python -m kernels.compile
	$(BIN)/python -m stream.compile
	$(BIN)/python -m app.serving.warm
	touch $@

demo: setup
	@$(BIN)/springtide demo $(ARGS)

test: setup
	$(BIN)/python -m pytest $(ARGS)

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

check: lint types imports test

bench: setup
	$(BIN)/springtide bench $(ARGS)

# 200 kills, then crashes between any two moves of the disk, then the OpenAPI page at length; ARGS="--seed 7" plays a torture again
torture: setup
	PYTHONPATH=.:deploy/client OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture --kills 200 $(ARGS)
	TORTURE_EXAMPLES=500 $(BIN)/python -m pytest tests/torture tests/e2e/test_orders_through_kills.py tests/e2e/test_forget_everywhere.py -q
	SCHEMA_EXAMPLES=300 $(BIN)/python -m pytest tests/app/serving/test_contract.py -q

clean:
	rm -rf $(VENV) var dist build
