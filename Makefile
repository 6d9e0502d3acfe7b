# make run    environment, build, and the main job: a hybrid model generates text, with each layer routed to a kernel
# make test   all tests: Rust, Python, documents
# make test-families  every model family with long prompts, all chunk sizes and backends; not part of `make test`
# make test-engines  the bridges in the real engines, in environments in ENGINES (8 GB); not part of `make test`
# make lint   formatting, clippy, rustdoc, licences and cycles of the crates, ruff, layers, mypy, stubs; CI runs it too
# make toy-op adds an op to a copy of the repository, as CONTRIBUTING.md describes, and runs it; a separate job in CI
# make mutants  changes the code in a hundred places, one at a time, and lists the changes that no test notices
# make soak   the tests repeatedly, in random order, while other processes keep the processors busy
#
# VENV=DIR         the environment to use (default .venv); if it exists, its torch is kept
# TORCH=SPEC       what pip installs if torch is missing, such as TORCH=torch==2.11.0
# VENV_FLAGS=...   for `python -m venv`, such as --system-site-packages
# PYTHON=python3   the interpreter (3.10 or later) that makes the environment
# ENGINES=DIR      folder in which `make test-engines` keeps its environments (default .engines)
# ENGINE_TORCH=SPEC  the torch in them (default torch==2.13.0)
# WORKERS=2        how many processes run the Python tests
# ORDER=...        the order of the Python tests: ORDER=--random-order prints a seed for --random-order-seed=SEED

PYTHON ?= python3
VENV ?= .venv
VENV_FLAGS ?=
TORCH ?= torch
WORKERS ?= 2
ENGINES ?= .engines
CHECKPOINT ?= tests/checkpoints/kjv-qwen3-next

PY := $(abspath $(VENV))/bin/python
BIN := $(abspath $(VENV))/bin
# Compiling all modules to bytecode takes a minute, and few of them are ever imported.
PIP := $(PY) -m pip install --no-compile
# Modules that many of the tests' processes import. Without bytecode files, each process would compile them again.
SLOW := import pytest, setuptools, torch._dynamo, torch.distributed.tensor, transformers; transformers.Qwen3NextForCausalLM
STAMPS := $(VENV)/.switchrail
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml)
# maturin and cargo build PyO3 with different settings. In one target directory, each would rebuild after the other.
MATURIN := VIRTUAL_ENV=$(abspath $(VENV)) CARGO_TARGET_DIR=$(abspath target/maturin) $(BIN)/maturin

# Optimises only `switchrail` and `arc-swap`, whose lookup cost is measured. With `--release`, or with only one of
# the two options `-p`, cargo would build most of the dependencies again.
OPTIMISED := \
  --config profile.dev.package.switchrail.opt-level=3 --config profile.dev.package.arc-swap.opt-level=3 \
  --config profile.dev.package.switchrail.debug-assertions=false \
  --config profile.dev.package.switchrail.overflow-checks=false

.PHONY: run test test-families test-engines lint toy-op mutants soak build wheel test-rust lint-rust test-python lint-python bench clean

run: build
	$(BIN)/switchrail run $(CHECKPOINT) --max-new-tokens 48 \
	  --prompt "In the beginning" --prompt "And the LORD" --prompt "The wicked"

# In a new environment pip mostly waits, so the Rust tests are built beside it.
test:
	$(MAKE) -j2 build test-rust
	$(MAKE) test-python

lint: lint-rust lint-python

toy-op: build
	$(PY) tests/add_an_op.py

# Runs all tests once to find out which of them reach a change, then tries each change with only these tests.
mutants: build
	$(PY) -m tests.mutants cover --workers $(WORKERS)
	$(PY) -m tests.mutants run --workers $(WORKERS)
	$(PY) -m tests.mutants check

# All tests three times, and the tests of threads, processes, signals and ordering fifty times.
soak: build
	$(PY) tests/soak.py --rounds 3
	$(PY) tests/soak.py --rounds 50 --racing

build: $(STAMPS)/package $(STAMPS)/kernels $(STAMPS)/compiled

$(STAMPS)/requirements: pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	mkdir -p $(STAMPS)
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	$(PY) -c 'import torch' 2>/dev/null || $(PIP) $(TORCH)
	$(PIP) --group dev
	touch $@

$(STAMPS)/package: $(STAMPS)/requirements $(RUST_SOURCES)
	$(MATURIN) develop --release --extras engine
	touch $@

$(STAMPS)/compiled: $(STAMPS)/requirements | $(STAMPS)/package
	env -u PYTHONDONTWRITEBYTECODE $(PY) -c '$(SLOW)'
	touch $@

$(STAMPS)/kernels: $(STAMPS)/package kernels/pyproject.toml
	$(PY) -m pip install --quiet --no-deps --editable kernels
	touch $@

wheel: $(STAMPS)/requirements
	$(MATURIN) build --release --out target/wheels

# Below `make -j`, rustdoc would warn that it can't reach make's job server.
test-rust:
	env -u MAKEFLAGS -u MFLAGS cargo test --quiet -p switchrail -p switchrail-py
	cargo test --quiet -p switchrail -p switchrail-py --test lookup_cost $(OPTIMISED)
	CARGO_PROFILE_DEV_DEBUG=0 RUSTFLAGS="--cfg loom" cargo test --quiet -p switchrail --test loom --target-dir target/loom
	$(or $(CARGO_TARGET_DIR),target)/debug/examples/embed

lint-rust:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet

# Without bytecode files, each of the tests' processes would compile our modules and rewrite assertions again.
test-python: build
	env -u PYTHONDONTWRITEBYTECODE $(PY) -m pytest -n $(WORKERS) $(ORDER)

test-families: build
	$(PY) -m pytest -n $(WORKERS) -m families tests/families tests/bridges

# Builds the wheels of this repository and of the packages that its tests install beside them.
ENGINE_WHEELS := target/engine-wheels
ENGINE_SOURCES := target/engine-sources

test-engines: $(STAMPS)/requirements
	rm -rf $(ENGINE_WHEELS) $(ENGINE_SOURCES)
	$(MATURIN) build --release --out $(ENGINE_WHEELS)
	mkdir -p $(ENGINE_SOURCES) # copied, because building leaves files behind
	cp -r kernels tests/plugins/acme-gdn tests/plugins/acme-platform tests/engines/sglang_cpu/on-cpu tests/engines/sglang_cpu/watch $(ENGINE_SOURCES)
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(ENGINE_WHEELS) $(ENGINE_SOURCES)/*
	bash tests/engines/environment.sh $(ENGINES)/sglang $(ENGINE_WHEELS)
	env -u PYTHONDONTWRITEBYTECODE $(ENGINES)/sglang/bin/python -m pytest -c tests/engines/pytest.ini tests/engines/sglang_cpu

lint-python: build
	$(PY) rust/dependencies.py
	$(PY) rust/circles.py
	$(BIN)/ruff check
	$(BIN)/lint-imports --no-cache
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PY) -m mypy.stubtest --mypy-config-file rust/switchrail-py/stubtest.ini switchrail._core

bench: build
	$(PY) -m pip install --quiet --group bench
	$(PY) benchmarks/discovery.py
	$(PY) benchmarks/dispatch.py
	$(PY) benchmarks/hooks.py
	$(PY) benchmarks/engine.py
	cargo bench --workspace

clean:
	rm -rf $(VENV) target
