# Everything installs what it needs into .venv; only Python 3.11 or later, Rust (rustfmt, clippy), gcc and make have to be there.
#
# TEST_OPTIONS goes to scripts/run_tests.py: --frameworks adds the tests with torch, TensorFlow and JAX where these can be had.
# PROFILE is a profile of cargo for all builds: with ci, extension and tests are compiled together, in half the time.
#
# Stamps: .venv/.tools (the environment with all development packages), .venv/.built (the package, editable). A target that
# finds its stamp newer than its sources does nothing.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export CARGO_BUILD_JOBS ?= 2
ifdef PROFILE
PROFILE_OPTION := --profile $(PROFILE)
export MATURIN_PEP517_ARGS := $(PROFILE_OPTION)
endif
# The build backend calls maturin by name.
export PATH := $(abspath $(BIN)):$(PATH)
# The wheel of Open MPI refuses to run as root without these two; harmless elsewhere.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1

RUST_SOURCES := $(shell find crates lab/crates run -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
PYTHON_SOURCES := python lab tests scripts examples

.DEFAULT_GOAL := help
.PHONY: help build demo test test-all test-long coverage fuzz-run test-frameworks test-gluster lint format docs bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.tools: pyproject.toml lab/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip 'maturin>=1.10,<2'
	$(BIN)/python scripts/requirements.py dev > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --requirement $(VENV)/requirements.txt
	touch $@

$(VENV)/.built: $(VENV)/.tools $(RUST_SOURCES) scripts/build_backend.py
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable . --editable ./lab
	touch $@

build: $(VENV)/.built  ## build forebay and forebay-lab (release), and install both, editable, into .venv

demo: build  ## train a small model on 4 MPI ranks from a real LMDB file; writes demo.html
	$(BIN)/forebay demo

test: build  ## the tests to run before a commit; the last line is the count, those above it say what was left out
	$(BIN)/python scripts/run_tests.py $(PROFILE_OPTION) $(TEST_OPTIONS)

test-all: build  ## all tests, about half an hour on 2 cores; the last line is the count
	$(BIN)/python scripts/run_tests.py --all $(PROFILE_OPTION) $(TEST_OPTIONS)

test-long: build  ## longer runs of all tests
	$(BIN)/python scripts/run_tests.py --long

coverage: build  ## line coverage of Python and Rust by `make test` and by `make test-all`; builds and runs both, for an hour or two
	$(BIN)/python scripts/measure_coverage.py

fuzz-run: build  ## 10,000,000 random file operations with and without the preload library
	FOREBAY_LONG_TESTS=1 $(BIN)/python -m pytest tests/run/test_preload_random.py

test-frameworks: build  ## the tests with torch, TensorFlow, JAX and DLIO, in .venv-frameworks (4 GB, made in minutes)
	$(BIN)/python scripts/run_tests.py frameworks

test-gluster: build  ## the strategies on a real parallel file system, GlusterFS; skipped with its reason where it cannot run
	PYTHON=$(abspath $(BIN)/python) tests/gluster/run.sh

# The fuzz targets are checked without libFuzzer, which needs a C++ compiler.
lint: build  ## rustfmt, clippy, fuzz targets, ruff, mypy strict, stubtest
	cargo fmt --all --check
	cargo clippy $(PROFILE_OPTION) --workspace --all-targets -- -D warnings
	CUSTOM_LIBFUZZER_PATH=target/none RUSTFLAGS='--cfg fuzzing' cargo check --quiet --manifest-path fuzz/Cargo.toml --target-dir target/fuzz
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/mypy
	MYPYPATH=python:lab/python $(BIN)/python -m mypy.stubtest forebay._native forebay_lab._native

format:  ## rewrite the sources as lint wants them
	cargo fmt --all
	$(BIN)/ruff check --fix $(PYTHON_SOURCES)
	$(BIN)/ruff format $(PYTHON_SOURCES)

docs: build  ## write docs/api.md from the docstrings
	$(BIN)/python scripts/api_reference.py

bench: build  ## the figures of docs/results/core.md, each as a ratio measured side by side
	$(BIN)/python lab/studies core --save

clean:  ## remove what was built
	rm -rf $(VENV) .venv-frameworks .venv-compared target dist
