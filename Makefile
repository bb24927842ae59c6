# `make` alone says what there is. Each target makes what it needs first and makes nothing twice.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# pytest keeps the test files that it has rewritten: without them each worker of each run rewrites all of them.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
CACHE := $(or $(SLUICE_CACHE_DIR),.cache)
UPSTREAM ?=
ARGS ?=
ONLY ?=
SEED ?=
# The first Python here that is new enough: `make PYTHON=...` to choose another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

.PHONY: help
help: ## this text
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
	  printf '  make %-20s %s\n' "$$name" "$$text"; done

# --- what the targets need ---------------------------------------------------------------------------------

# uv takes a third of pip's time for all of it. It does not know pip's settings: where it can't, pip does it.
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
INSTALL = $(BIN)/uv pip install -q --system-certs --python $(BIN)/python --no-build-isolation $(1) || $(PIP) $(1)

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
	$(PIP) --require-hashes -r <(sed -n '/^uv==/,/[^\\]$$/p' requirements-dev.lock); \
	$(call INSTALL,--require-hashes -r requirements-dev.lock); \
	$(PIP) --no-deps --no-build-isolation -e .; \
	touch $@

# Spark and its kind, which only the pipeline, its tests and the type checker need: half a gigabyte.
$(VENV)/.pipeline-up-to-date: requirements-pipeline.lock $(VENV)/.up-to-date
	@exec 9>$(CACHE)/venv.lock; flock 9; \
	if [ $@ -nt requirements-pipeline.lock ] && [ $@ -nt $(VENV)/.up-to-date ]; then exit 0; fi; \
	echo "installing Spark and the pipeline's other packages into $(VENV)"; \
	$(call INSTALL,--require-hashes -r requirements-pipeline.lock); \
	touch $@

.PHONY: pipeline
pipeline: $(VENV)/.pipeline-up-to-date ## install Spark and what else the pipeline needs into .venv (done for you by what needs it)

.PHONY: kafka
kafka: $(VENV)/.up-to-date ## fetch the jars of the embedded Kafka (done for you by what needs it)
	@$(BIN)/python -m embedded_kafka.jars >/dev/null

.PHONY: spark-jars
spark-jars: $(VENV)/.pipeline-up-to-date ## fetch Spark's Kafka connector (done for you by test)
	@$(BIN)/python -m pipeline.spark.jars >/dev/null

# --- working on it -----------------------------------------------------------------------------------------

.PHONY: static
static: $(VENV)/.pipeline-up-to-date
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports
	$(BIN)/python -m testkit.prose
	@$(MAKE) --no-print-directory docs

.PHONY: docs
docs: $(VENV)/.up-to-date ## the documentation site, into build/site; a dead link or a page that the navigation lacks is an error
	@# Not with --quiet: it keeps warnings from --strict.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Which characters UTF-8 has: Hypothesis finds out once, in 3 s, and workers that begin together each would.
CHARACTERS := .hypothesis/unicode_data
$(CHARACTERS): | $(VENV)/.up-to-date
	@$(BIN)/python -c "from hypothesis import strategies; strategies.text().validate()"

# Of a new environment Python has compiled nothing: workers that begin together would each compile the same for 8 s.
BYTECODE := $(VENV)/.bytecode
$(BYTECODE): $(VENV)/.pipeline-up-to-date
	@found=$$($(BIN)/python -m pytest --collect-only -q) || { echo "$$found"; exit 1; }
	@touch $@

# Whole files go to one worker, in the order of tests/conftest.py.
BY_FILE := --dist loadfile --no-loadscope-reorder
# Neither Kafka nor Spark. A third of their time is waiting, so there are twice as many files at a time as cores.
AT_A_TIME ?= $(shell echo $$((2 * $$(nproc))))
UNIT = -n $(AT_A_TIME) -q $(BY_FILE) --ignore=tests/integration
NOT_LONG := not integration and not spark and not campaign

.PHONY: quick
quick: $(VENV)/.pipeline-up-to-date | $(CHARACTERS)
	HYPOTHESIS_PROFILE=brief $(BIN)/python -m pytest $(UNIT) -m "$(NOT_LONG) and not slow"

.PHONY: check
check: ## format, ruff, mypy --strict, import contracts, unit tests with fewer examples: one to two minutes
	@$(MAKE) --no-print-directory -j2 --output-sync=target static quick

# `check` shuffles anew each time; a red run of the long suite must be one that can be repeated.
ORDER ?= 1
IN_ORDER = --randomly-seed=$(ORDER)

.PHONY: integration
integration: kafka | $(CHARACTERS)
	@# Tests with real brokers mostly wait: more files at a time than there are cores, each worker with brokers and addresses of its own.
	$(BIN)/python -m pytest -n 3 $(IN_ORDER) $(BY_FILE) -m "integration and not spark and not campaign"

# Tests of packages with compiled modules: `make test` runs them with the compiled core, and `make check` without it.
CORE_TESTS := tests/gateway/session tests/gateway/handlers tests/gateway/runtime tests/gateway/net tests/gateway/tls \
  tests/gateway/upstream tests/gateway/usage tests/quotas tests/protocol tests/fuzz tests/reference
BUT ?=

.PHONY: unit
unit: $(VENV)/.pipeline-up-to-date | $(CHARACTERS)
	$(BIN)/python -m pytest $(IN_ORDER) $(UNIT) $(BUT:%=--ignore=%) -m "$(NOT_LONG)"

.PHONY: spark
spark: $(VENV)/.pipeline-up-to-date spark-jars
	@# One worker: a JVM of its own for each would start and warm up twice.
	TEST_ADDRESSES=200 $(BIN)/python -m pytest -n 1 $(IN_ORDER) $(BY_FILE) -m "spark and not campaign"

.PHONY: test
test: $(VENV)/.pipeline-up-to-date ## all of check, with the compiled core; the tests with a real Kafka and Spark; in the order that ORDER=number gives
	@# One kind beside another that leaves time, each shown when it has ended.
	@$(MAKE) --no-print-directory -j2 --output-sync=target core static kafka spark-jars $(CHARACTERS) $(BYTECODE)
	@$(MAKE) --no-print-directory -j3 integration others spark-beside

.PHONY: others spark-beside
others:
	@export TEST_ADDRESSES=100; make="$(MAKE) --no-print-directory --output-sync=target AT_A_TIME=3"; \
	if [ -e $(COMPILED)/.up-to-date ]; then $$make test-core; $$make unit BUT="$(CORE_TESTS)"; else $$make unit; fi

spark-beside:
	@$(MAKE) --no-print-directory --output-sync=target spark

# --- the compiled core (docs/decisions/0024-compiled-core.md) ------------------------------------------------

# A copy of the packages beside what was made of it, so that no library ever stands before a source that is worked on.
COMPILED := build/compiled
OPT_LEVEL ?= 3

$(COMPILED)/.libraries-$(OPT_LEVEL): setup.py $(shell sed -nE 's/^    "(.*[.]py)",$$/\1/p' setup.py) | $(VENV)/.up-to-date
	@command -v gcc >/dev/null || { echo "install with: apt-get install gcc"; exit 1; }
	@rm -rf $(COMPILED)
	SLUICE_COMPILED=1 SLUICE_OPT_LEVEL=$(OPT_LEVEL) $(BIN)/python -W ignore setup.py -q build --build-lib $(COMPILED)
	@touch $@

# The modules around them: a copy, in a second.
$(COMPILED)/.up-to-date: $(COMPILED)/.libraries-$(OPT_LEVEL) $(shell find config embedded_kafka gateway pinned_jars pipeline protocol quota_client quotas sluice -name '*.py')
	@find $(COMPILED) -name '*.py' -delete
	@$(BIN)/python -W ignore setup.py -q build_py --build-lib $(COMPILED)
	@touch $@

.PHONY: compiled
compiled: $(COMPILED)/.up-to-date ## the gateway with the modules that see every frame or connection compiled, into build/compiled, 3 minutes
	@PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/sluice --version

# The tests of these modules import them from there: -P and --import-mode keep the tree from standing before it.
.PHONY: test-compiled
test-compiled: compiled | $(CHARACTERS) ## the unit tests of all packages that have compiled modules, with the compiled core
	SLUICE_COMPILED=1 PYTHONPATH=$(CURDIR)/$(COMPILED)/sluice:$(CURDIR)/$(COMPILED):$(CURDIR) $(BIN)/python -P -m pytest -n auto -q $(BY_FILE) \
	  $(IN_ORDER) --import-mode=append -m "$(NOT_LONG)" $(CORE_TESTS)
	@# Its wheel, installed elsewhere; that of the sources is among the unit tests.
	SLUICE_COMPILED=1 $(BIN)/python -m pytest -q tests/install/test_installed.py -k "wheel or starts or imported or relays"

# `make test` compiles without optimisation, which takes half the time, and skips it where a package is missing.
.PHONY: core test-core
core: WANTED := compiled
test-core: WANTED := test-compiled
core test-core:
	@for needed in gcc:gcc python3-dev:python3-config; do command -v $${needed#*:} >/dev/null || \
	  { echo "SKIPPED the compiled core: install with: apt-get install $${needed%:*}"; exit 0; }; done; \
	$(MAKE) --no-print-directory $(WANTED) OPT_LEVEL=0

.PHONY: format
format: $(VENV)/.up-to-date ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# --- running it --------------------------------------------------------------------------------------------

.PHONY: run
run: $(VENV)/.up-to-date ## the gateway in front of an embedded Kafka, or: make run UPSTREAM=host:port [WORKERS=2] [ARGS=...]
	@exec $(BIN)/sluice serve $(if $(UPSTREAM),--upstream $(UPSTREAM)) $(if $(WORKERS),--workers $(WORKERS)) $(ARGS)

.PHONY: demo
demo: $(VENV)/.pipeline-up-to-date kafka ## from load to quotas: two minutes of clients, then records, report, plan, apply [ARGS=...]
	$(BIN)/python -m benchmarks.demo $(ARGS)

.PHONY: bench
bench: compiled ## the gateway beside HAProxy, in the same run, then beside the last kept run: what got worse; 40 minutes
	$(BIN)/python -m benchmarks.relay $(ARGS)
	$(BIN)/python -m benchmarks.connections
	$(BIN)/python -m benchmarks.tls
	$(BIN)/python -m benchmarks.cost_formula
	$(BIN)/python -m benchmarks.summary

.PHONY: bench-relay
bench-relay: $(VENV)/.up-to-date ## what relaying costs: direct, HAProxy and the gateway side by side [ARGS=...]
	$(BIN)/python -m benchmarks.relay $(ARGS)

.PHONY: bench-status-page
bench-status-page: $(VENV)/.up-to-date ## page and top with 1,000 clients: paint, updates, the gateway's CPU, 3 minutes [ARGS=--write]
	$(BIN)/python -m benchmarks.status_page $(ARGS)

.PHONY: bench-traces
bench-traces: $(VENV)/.up-to-date ## what traces cost, on and off, 2 minutes [ARGS=--write]
	$(BIN)/python -m benchmarks.traces $(ARGS)

.PHONY: bench-usage
bench-usage: $(VENV)/.up-to-date ## what usage records cost: per frame, per row, per byte of file; the longest call
	$(BIN)/python -m benchmarks.usage $(ARGS)

.PHONY: bench-pipeline
bench-pipeline: $(VENV)/.pipeline-up-to-date ## usage files to compacted days with Spark, beside DuckDB, 5 minutes [ARGS=...]
	$(BIN)/python -m benchmarks.pipeline $(ARGS)

.PHONY: bench-report
bench-report: $(VENV)/.pipeline-up-to-date ## compacted days to the report, beside DuckDB; 500 clients of all seconds; 5 minutes [ARGS=...]
	$(BIN)/python -m benchmarks.report $(ARGS)

.PHONY: bench-replay
bench-replay: $(VENV)/.pipeline-up-to-date ## how fast quotas are replayed and needs found, with Spark and without, 10 minutes [ARGS=...]
	$(BIN)/python -m benchmarks.replay $(ARGS)

.PHONY: bench-clients
bench-clients: $(VENV)/.pipeline-up-to-date ## recommend, backtest and report over 28 days of 10,000 clients, 2 minutes [ARGS=...]
	$(BIN)/python -m benchmarks.clients $(ARGS)

.PHONY: bench-gateway-day
bench-gateway-day: $(VENV)/.pipeline-up-to-date ## a gateway's day of 86 M rows from files to a plan, 8 minutes [ARGS="--part 0.1"]
	$(BIN)/python -m benchmarks.gateway_day $(ARGS)

.PHONY: bench-cluster
bench-cluster: $(VENV)/.pipeline-up-to-date ## the jobs on a standalone cluster of two workers, by its event log, 6 minutes [ARGS=...]
	$(BIN)/python -m benchmarks.spark_cluster $(ARGS)

.PHONY: bench-scale
bench-scale: $(VENV)/.pipeline-up-to-date ## a month of 10,000 clients and 100 gateways from files to bills, and half of it [ARGS=...]
	$(BIN)/python -m benchmarks.pipeline_scale $(ARGS)

.PHONY: bench-connections
bench-connections: $(VENV)/.up-to-date ## what a connection costs that is let in, refused or held, beside HAProxy [ARGS=...]
	$(BIN)/python -m benchmarks.connections $(ARGS)

.PHONY: bench-tls
bench-tls: $(VENV)/.up-to-date ## what TLS costs per GB and per handshake, beside HAProxy [ARGS=...]
	$(BIN)/python -m benchmarks.tls $(ARGS)

.PHONY: bench-store
bench-store: $(VENV)/.up-to-date kafka ## a hundred thousand quotas: start, alterations, look-ups; in a file and in a topic [ARGS=...]
	$(BIN)/python -m benchmarks.store --topic $(ARGS)

# In a folder of its own: nothing else needs a mutation tester.
MUTATION := $(CACHE)/mutation

$(MUTATION)/.up-to-date: benchmarks/mutation/requirements.txt $(VENV)/.up-to-date
	@rm -rf $(MUTATION)
	@$(PIP) --require-hashes --no-deps --target $(MUTATION) -r $<
	@touch $@

.PHONY: campaigns
campaigns: compiled kafka spark-jars $(MUTATION)/.up-to-date ## what takes minutes, real rates or many seeds, 5 hours, as root; one line of results each [ONLY="chaos order" SEED=7]
	$(BIN)/python -m campaigns $(ONLY) $(if $(SEED),--seed $(SEED))

.PHONY: scoreboard
scoreboard: compiled kafka ## measure the goals of docs/reference/reliability.md and write that page, 6 hours, as root [ONLY=order]
	$(BIN)/python -m campaigns --scoreboard $(ONLY) $(if $(SEED),--seed $(SEED))

.PHONY: scoreboard-quick
scoreboard-quick: kafka ## the short part of scoreboard, 20 minutes
	$(BIN)/python -m campaigns --scoreboard --quick $(ONLY) $(if $(SEED),--seed $(SEED))

# --- deploying it ------------------------------------------------------------------------------------------

.PHONY: image
image: $(VENV)/.up-to-date ## the image with its bill of materials, into build/image; docker, or as root buildah and mmdebstrap; 10 minutes
	@deploy/image/build.sh
	@$(BIN)/python -m campaigns.deploy.sbom build/image/root build/image/sluice.cdx.json

.PHONY: deployment
deployment: kafka ## build, start and check image, chart, unit and compose file, as root, 10 minutes [ONLY=chart]
	$(BIN)/python -m campaigns $(or $(ONLY),chart image unit compose)

.PHONY: chart
chart: $(VENV)/.up-to-date ## check the Helm chart and write deploy/kubernetes/sluice.yaml; needs Go, and minutes to build Helm
	@$(BIN)/python -m campaigns.deploy.chart --write

# --- keeping it --------------------------------------------------------------------------------------------

LOCK := $(CACHE)/pip-tools/bin/pip-compile -q --generate-hashes --allow-unsafe --strip-extras --no-annotate \
	--no-header --no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(ARGS)

$(CACHE)/pip-tools/bin/pip-compile:
	@$(PYTHON) -m venv $(CACHE)/pip-tools
	@$(CACHE)/pip-tools/bin/pip install -q --disable-pip-version-check pip-tools==7.6.2

.PHONY: lock
lock: $(CACHE)/pip-tools/bin/pip-compile ## renew the lock files after a change of pyproject.toml; ARGS=--upgrade for newer versions
	$(LOCK) --all-build-deps -o requirements.lock pyproject.toml
	$(LOCK) -c requirements.lock --extra dev --all-build-deps -o requirements-dev.lock pyproject.toml
	@# The compiler alone: what the gateway needs is in requirements.lock.
	$(PYTHON) -c 'import tomllib; found = tomllib.load(open("pyproject.toml", "rb")); print( \
	  *found["project"]["optional-dependencies"]["compile"], *found["build-system"]["requires"], sep="\n")' | \
	  $(LOCK) -c requirements-dev.lock -o requirements-compile.lock -
	$(LOCK) -c requirements-dev.lock --extra pipeline --extra kernels --all-build-deps -o requirements-pipeline.lock pyproject.toml

.PHONY: clean
clean: ## remove everything that can be made again
	rm -rf $(VENV) .cache build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
