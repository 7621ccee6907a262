# Everything runs on a fresh clone: each target first makes .venv from the lock file, once per change of the lock.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PIP = $(BIN)/python -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install demo test check lint-fix test-engines tools lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## .venv with everything that running and testing need

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "warmroute needs Python 3.11 or later: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "Python's venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

demo: install  ## the whole thing without a GPU: round robin against the prefix policy (KEEP=1 leaves it running)
	$(BIN)/python -m bench demo $(if $(KEEP),--keep)

test: install  ## every test that needs no real engine
	$(BIN)/python -m pytest

check: install  ## lint, format, types, import walls: what CI runs first
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lint-fix: install  ## let ruff repair and format what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-engines: install  ## the end-to-end tests against real vLLM replicas, named in WARMROUTE_TEST_ENGINES
	@test -n "$$WARMROUTE_TEST_ENGINES" || { echo "test-engines: NOT RUN, there are no engines:" \
		"set WARMROUTE_TEST_ENGINES=http://host:port,... to running vLLM replicas"; exit 1; }
	$(BIN)/python -m pytest -m engines tests/engines

tools:  ## promtool, helm and others into .tools: the tests of deploy/ that need them are skipped without
	deploy/tools.sh

test-llama-cpp: install  ## the same against real llama.cpp servers, named in WARMROUTE_TEST_LLAMA_CPP
	@test -n "$$WARMROUTE_TEST_LLAMA_CPP" || { echo "test-llama-cpp: NOT RUN, there are no servers:" \
		"set WARMROUTE_TEST_LLAMA_CPP=http://host:port,... to running llama-server, and" \
		"WARMROUTE_TEST_TOKENIZER to the directory of their model's tokenizer"; exit 1; }
	$(BIN)/python -m pytest -m engines tests/llama_cpp

# async-timeout: redis asks for it below Python 3.11.3 (Debian 12 has 3.11.2), whatever Python makes the lock.
REQUIREMENTS = import sys, tomllib; p = tomllib.load(open('pyproject.toml', 'rb')); \
	print('async-timeout', *p['project']['dependencies'], *p['dependency-groups'].get(sys.argv[1], ()), sep='\n'); \
	print(*(r for e in p['project']['optional-dependencies'].values() for r in e if sys.argv[1] == 'image'), sep='\n')
COMPILE = $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
	--no-emit-options --no-emit-index-url --no-emit-trusted-host --no-emit-find-links $(if $(UPGRADE),--upgrade)

lock: install  ## remake the lock files from pyproject.toml (UPGRADE=1 takes newer versions)
	$(BIN)/python -c "$(REQUIREMENTS)" dev | $(COMPILE) -o requirements.lock -
	$(BIN)/python -c "$(REQUIREMENTS)" run | $(COMPILE) -c requirements.lock -o requirements-run.lock -
	$(BIN)/python -c "$(REQUIREMENTS)" image | $(COMPILE) -c requirements.lock -o deploy/image.lock -
	echo setuptools | $(COMPILE) -c requirements.lock -o deploy/build.lock -

clean:  ## remove what the other targets made
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
