# `make help` lists what there is. `make install` builds .venv from requirements.lock; the other targets call it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The bench measures the product as it is deployed: on an interpreter built with its optimisations, as the image's is
# (decision 0010). Debian's own is; where there is none, on the one that .venv has.
BENCH_PYTHON ?= $(shell /usr/bin/python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo /usr/bin/python3 || echo $(BIN)/python)
BENCH_VENV := .bench/tollgate
BENCH := $(BENCH_VENV)/bin/python
BENCH_STAMP := $(BENCH_VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install check test demo bench bench-quick bench-limits soak lock
help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## build .venv from the hash-checked lock file

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tollgate needs Python 3.11 or newer; set PYTHON=…")'
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "this Python has no venv module (Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }
	@echo "building $(VENV) from requirements.lock …"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --progress-bar on --require-hashes -r requirements.lock
	$(BIN)/pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(BENCH_STAMP): $(STAMP)
	@echo "building $(BENCH_VENV) on $(BENCH_PYTHON) …"
	$(BENCH_PYTHON) -m venv --clear --without-pip $(BENCH_VENV)
	$(BIN)/pip --python $(BENCH) install --disable-pip-version-check --progress-bar on --require-hashes -r requirements.lock
	$(BIN)/pip --python $(BENCH) install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

check: $(STAMP)  ## ruff, mypy --strict, import arrows and size budgets
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_architecture.py

test: $(STAMP)  ## unit, contract and journey tests; says what it skips for want of a system package
	$(BIN)/pytest -rs -n 2 --dist loadfile --no-loadscope-reorder

demo: $(STAMP)  ## the main job, step by step, on real parts; no service needed beforehand
	@$(BIN)/tollgate demo

bench: $(BENCH_STAMP)  ## every goal of speed, beside the peers, in one run of a quarter of an hour; writes bench/RESULTS.md
	$(BENCH) -m bench.run

bench-quick: $(BENCH_STAMP)  ## Tollgate, nginx and Envoy, in under two minutes
	$(BENCH) -m bench.run --quick

bench-limits: $(BENCH_STAMP)  ## what limits cost in Redis and Python, and let through, beside what else one would do
	$(BENCH) -m bench.limits
	$(BENCH) -m bench.limits_overload

soak: $(STAMP) $(BENCH_STAMP)  ## the long forms of the tests that look for rare faults, and ten minutes of calls: flat memory, flat CPU
	$(BIN)/pytest -rs -m soak
	$(BENCH) -m bench.soak

lock:  ## resolve pyproject.toml anew into requirements.lock (needs uv)
	uv pip compile --universal --generate-hashes --python-version 3.11 --group dev pyproject.toml -o requirements.lock
