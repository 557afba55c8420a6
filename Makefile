# `make help` lists the targets. `make install` builds .venv from the lock files; `make up` and `make demo` build the part
# of it that runs the product.
# Another Python: `make check PYTHON=python3.12 VENV=.venv-3.12`.
# Debian's is built with optimisations, as the image's is (docs/hot-path.md#collector-and-interpreter): the product starts,
# and its tests run, in about half the time of one that is not.
PYTHON ?= $(shell /usr/bin/python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo /usr/bin/python3 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
# What runs the product: its packages, and setuptools.
PRODUCT_STAMP := $(VENV)/.product
PRODUCT_LOCKS := requirements.lock deploy/release/requirements.lock
# What checks it, too: the tests' own packages, and Ray, which is as large as all others together (none: RAY_LOCK=).
STAMP := $(VENV)/.installed
RAY_LOCK ?= requirements-ray.lock
TEST_LOCKS := requirements-dev.lock $(RAY_LOCK)
PIP_INSTALL := $(BIN)/pip install --disable-pip-version-check
# The clients of `make clients`: an environment per lock, none of them Tollgate's own.
CLIENT_LOCKS := $(wildcard tests/clients/python/*.lock)
CLIENT_STAMPS := $(CLIENT_LOCKS:tests/clients/python/%.lock=.clients/%/.installed) .clients/typescript/.installed .clients/agents/.installed

# What builds and runs the TypeScript client: openapi-typescript, TypeScript, openapi-fetch.
TOOLCHAIN_STAMP := .clients/tollgate-client/.installed

# Three times the cores of the smallest machine of CI: journeys wait most of the time.
TEST_PROCESSES ?= 6
# Tests of the tree itself: `make check` runs them, and `make test` too, but for CI, which runs both.
CHECKED_TESTS := $(patsubst %,tests/test_%.py,architecture console_modules source_tree docs citations reference recipes words console_words glossary)
# Set in many containers. Without bytecode each of the hundreds of processes that the tests start compiles our sources.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install check checked-tests check-python python-version test console-shots clients deploy-check up demo bench bench-quick bench-limits soak lock clients-lock toolchain release
help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## build .venv from the hash-checked lock files

$(PRODUCT_STAMP): $(PRODUCT_LOCKS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tollgate needs Python 3.11 or newer; set PYTHON=…")'
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "This Python has no venv module. Debian, Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "building $(VENV) from $(PRODUCT_LOCKS) …"
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --progress-bar on --require-hashes $(PRODUCT_LOCKS:%=-r %)
	flock requirements.lock $(PIP_INSTALL) --no-deps --no-build-isolation -e .  # one at a time: each writes tollgate.egg-info
	@touch $@

$(STAMP): $(PRODUCT_STAMP) $(TEST_LOCKS)
	@echo "adding what checks need, from $(TEST_LOCKS) …"
	$(PIP_INSTALL) --progress-bar on --require-hashes $(TEST_LOCKS:%=-r %)
	@touch $@

check: $(STAMP)  ## ruff, mypy --strict, import rules, size budgets, words, paths and citations in documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n 2 --dist loadfile $(CHECKED_TESTS)

checked-tests:
	@echo $(CHECKED_TESTS)

check-python: $(PRODUCT_STAMP)  ## on another Python: import every module of the product, warnings being errors, and run the demo
	$(BIN)/python -W error -m tests.every_module
	$(BIN)/tollgate demo

python-version:  ## print the version of the Python that `make` uses
	@$(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'

test: $(STAMP) toolchain .clients/baseten/.installed .clients/truss/.installed .clients/openapi_lint/.installed  ## unit, contract and journey tests; lists what it skips and which system package is missing
	$(BIN)/pytest -rs -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

console-shots: $(STAMP)  ## picture every page of the console with a busy workspace into build/console-shots/, and README.md's into docs/pictures/; needs chromium
	$(BIN)/python -m tests.journeys.console.shots $(PAGES)

clients: $(STAMP) $(CLIENT_STAMPS)  ## run the usual clients against every provider; writes docs/compatibility.md
	$(BIN)/python -m tests.clients.llama_cpp.build
	$(BIN)/pytest -q tests/clients/llama_cpp/cases.py
	$(BIN)/python -m tests.clients.original.run
	$(BIN)/python -m tests.clients.original.truss_client.run
	$(BIN)/python -m tests.clients.run

deploy-check: $(STAMP)  ## build the image and run compose.yaml's services without a Docker daemon; needs root and debootstrap
	@$(BIN)/python -m tests.deploy.without_docker $(DEPLOY_CHECK_FLAGS)

.clients/%/.installed: tests/clients/%/package-lock.json
	@echo "installing what $< pins …"
	@mkdir -p $(@D)
	cp tests/clients/$*/package.json tests/clients/$*/package-lock.json $(@D)
	cd $(@D) && npm ci --no-audit --no-fund
	@touch $@

$(TOOLCHAIN_STAMP): clients/typescript/package-lock.json
	@echo "installing what $< pins …"
	@mkdir -p $(@D)
	cp clients/typescript/package.json clients/typescript/package-lock.json $(@D)
	cd $(@D) && npm ci --no-audit --no-fund
	@touch $@

.clients/%/.installed: tests/clients/python/%.lock $(STAMP)
	@echo "building $(@D) from $< …"
	$(PYTHON) -m venv --clear --without-pip $(@D)
	$(BIN)/pip --python $(@D)/bin/python install --disable-pip-version-check --progress-bar on --require-hashes -r $<
	@touch $@

up: $(PRODUCT_STAMP)  ## run the whole product on this machine until Ctrl-C; more flags: UP_FLAGS="--workers 2"
	@$(BIN)/tollgate up $(UP_FLAGS)

demo: $(PRODUCT_STAMP)  ## run the whole product through its main job, step by step; needs no running service; to look around: DEMO_FLAGS=--stay
	@$(BIN)/tollgate demo $(DEMO_FLAGS)

bench: $(STAMP)  ## measure every performance goal, beside the peers, in three quarters of an hour; writes bench/RESULTS.md; one part alone: BENCH_FLAGS="--part chunks"
	$(BIN)/python -m bench.run $(BENCH_FLAGS)

bench-quick: $(STAMP)  ## measure a call of Tollgate, nginx and Envoy, in two minutes; beside other programs: BENCH_FLAGS=--shared
	$(BIN)/python -m bench.run --quick $(BENCH_FLAGS)

bench-limits: $(STAMP)  ## measure what limits cost and let through, beside the usual alternatives
	$(BIN)/python -m bench.studies.limits
	$(BIN)/python -m bench.studies.limits_overload
	$(BIN)/python -m bench.studies.redis_topologies
	$(BIN)/python -m bench.studies.regions

soak: $(STAMP)  ## run the long tests for rare faults, then ten minutes of calls: memory and CPU must stay flat
	$(BIN)/pytest -rs -m soak
	$(BIN)/python -m bench.soak

toolchain: $(TOOLCHAIN_STAMP)  ## install what builds the TypeScript client; needs npm

release: $(STAMP) toolchain  ## build wheel, sdist, bill of materials, notes and checksums of this commit into dist/; more flags: RELEASE_FLAGS="--image"
	$(BIN)/python -m deploy.release $(RELEASE_FLAGS)

COMPILE = uv pip compile --universal --generate-hashes --python-version 3.11 --custom-compile-command "make lock"
lock:  ## resolve pyproject.toml into the lock files again (needs uv)
	$(COMPILE) pyproject.toml -o requirements.lock
	$(COMPILE) --group dev -c requirements.lock -o requirements-dev.lock
	$(COMPILE) --group ray -c requirements.lock -c requirements-dev.lock -o requirements-ray.lock

clients-lock:  ## resolve the clients' versions again (needs uv and npm)
	for lock in $(CLIENT_LOCKS:.lock=); do uv pip compile --upgrade --no-strip-extras --generate-hashes --python-version 3.11 $$lock.in -o $$lock.lock --custom-compile-command "make clients-lock"; done
	for folder in tests/clients/typescript tests/clients/agents tests/clients/openapi_lint clients/typescript; do (cd $$folder && rm -f package-lock.json && npm install --package-lock-only --no-audit --no-fund); done
	cd tests/clients/llama_cpp && uv pip compile --upgrade --universal --generate-hashes --python-version 3.11 requirements.in -o requirements.lock --custom-compile-command "make clients-lock"
