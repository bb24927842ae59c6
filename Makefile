# `make` alone says what there is. Each target makes what it needs first and makes nothing twice.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
CACHE := $(or $(SLUICE_CACHE_DIR),.cache)
UPSTREAM ?=
ARGS ?=
# The first Python here that is new enough: `make PYTHON=...` to choose another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

.PHONY: help
help: ## this text
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
	  printf '  make %-20s %s\n' "$$name" "$$text"; done

# --- what the targets need ---------------------------------------------------------------------------------

# The locked set and the project itself. An existing environment is brought up to date, never wiped; the lock file
# is for two makes at the same time.
$(VENV)/.up-to-date: requirements-dev.lock pyproject.toml
	@mkdir -p $(CACHE)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed"; exit 1; }
	@exec 9>$(CACHE)/venv.lock; flock 9; \
	if [ $@ -nt requirements-dev.lock ] && [ $@ -nt pyproject.toml ]; then exit 0; fi; \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "install with: apt-get install python3-venv"; exit 1; }; \
	echo "installing the locked packages into $(VENV)"; \
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock; \
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	touch $@

.PHONY: kafka
kafka: $(VENV)/.up-to-date ## fetch the jars of the embedded Kafka (done for you by run, test and bench)
	@$(BIN)/python -m gateway.embedded.jars >/dev/null

# --- working on it -----------------------------------------------------------------------------------------

.PHONY: static
static: $(VENV)/.up-to-date
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

.PHONY: check
check: static ## format, ruff, mypy --strict, import contracts, unit tests: under a minute
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m "not integration"

.PHONY: test
test: static kafka ## all of check, and the integration tests with a real Kafka
	PYTHONASYNCIODEBUG=1 $(BIN)/python -X dev -m pytest -q -n auto --dist loadfile -m "not integration"
	PYTHONASYNCIODEBUG=1 $(BIN)/python -X dev -m pytest -m integration

.PHONY: fuzz
fuzz: $(VENV)/.up-to-date ## the fuzz and property tests with twenty times as many examples
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -m "not integration" tests/fuzz tests/reference

.PHONY: format
format: $(VENV)/.up-to-date ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# --- running it --------------------------------------------------------------------------------------------

.PHONY: run
run: $(if $(UPSTREAM),$(VENV)/.up-to-date,kafka) ## the gateway in front of an embedded Kafka, or: make run UPSTREAM=host:port [ARGS=...]
	@exec $(BIN)/sluice serve $(if $(UPSTREAM),--upstream $(UPSTREAM)) $(ARGS)

.PHONY: bench
bench: bench-relay bench-connections ## all benchmarks: the gateway beside HAProxy, in the same run

.PHONY: bench-relay
bench-relay: $(VENV)/.up-to-date ## what relaying costs: direct, HAProxy and the gateway side by side [ARGS=...]
	$(BIN)/python -m benchmarks.relay $(ARGS)

.PHONY: bench-connections
bench-connections: $(VENV)/.up-to-date ## what a connection costs that is let in, refused or held, beside HAProxy [ARGS=...]
	$(BIN)/python -m benchmarks.connections $(ARGS)

.PHONY: campaign-connections
campaign-connections: $(VENV)/.up-to-date kafka ## connection limits: accuracy beside Kafka's, slow clients, churn, 20 minutes
	$(BIN)/python -m benchmarks.connections.accuracy
	$(BIN)/python -m benchmarks.connections.slowloris
	$(BIN)/python -m benchmarks.connections.churn

.PHONY: campaign-accuracy
campaign-accuracy: $(VENV)/.up-to-date kafka ## how exactly byte rates hold: four client families and a cheater, 4 minutes [ARGS=...]
	$(BIN)/python -m benchmarks.accuracy $(ARGS)

.PHONY: campaign-order
campaign-order: $(VENV)/.up-to-date ## two million small frames through all quotas with chaos in the timing, 3 minutes [ARGS=...]
	$(BIN)/python -m benchmarks.order $(ARGS)

# --- keeping it --------------------------------------------------------------------------------------------

LOCK := $(CACHE)/pip-tools/bin/pip-compile -q --generate-hashes --allow-unsafe --strip-extras --no-annotate \
	--no-header --no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(ARGS)

$(CACHE)/pip-tools/bin/pip-compile:
	@$(PYTHON) -m venv $(CACHE)/pip-tools
	@$(CACHE)/pip-tools/bin/pip install -q --disable-pip-version-check pip-tools==7.6.2

.PHONY: lock
lock: $(CACHE)/pip-tools/bin/pip-compile ## renew both lock files after a change of pyproject.toml; ARGS=--upgrade for newer versions
	$(LOCK) --all-build-deps -o requirements.lock pyproject.toml
	$(LOCK) -c requirements.lock --extra dev --all-build-deps -o requirements-dev.lock pyproject.toml

.PHONY: clean
clean: ## remove everything that can be made again
	rm -rf $(VENV) .cache build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
