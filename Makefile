# Every target works alone from a fresh clone: it makes .venv first when that is missing or stale.
# Needs make and Python 3.11 or newer. `make test ARGS="-k layout"` passes arguments on.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# `check` promises an order, with -j too.
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHONS := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python
ARGS ?=
SEEDS ?= 0:2000
STEPS ?=

PROTO_SOURCES := $(sort $(shell find proto -name '*.proto' 2>/dev/null))
# protoc finds its mypy plugins on PATH.
PROTOC := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc --proto_path=proto
API_SOURCES := $(filter proto/rallypoint/v1/%,$(PROTO_SOURCES))
# $(call stubs_into,FOLDER) writes all stubs below FOLDER, and the descriptors of the API with their
# comments, which reflection serves. The journal has no services: clients need none of it.
stubs_into = mkdir -p $(1)/rallypoint/v1 && $(PROTOC) --python_out=$(1) --grpc_python_out=$(1) \
	--mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1) \
	--include_source_info --descriptor_set_out=$(1)/rallypoint/v1/descriptors.binpb $(API_SOURCES) && \
	$(PROTOC) --python_out=$(1) --mypy_out=quiet:$(1) \
	$(filter-out $(API_SOURCES),$(PROTO_SOURCES))
# $(call stub_sums,FOLDER) prints a checksum and a name for everything that stubs_into writes there.
stub_sums = cd $(1) && find . \( -name '*_pb2*.py*' -o -name descriptors.binpb \) \
	-not -path '*/__pycache__/*' -exec sha256sum {} + | sort -k2

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(STAMP) ## run the demonstration: a job that survives a worker, the coordinator and a node
	$(BIN)/python examples/demo.py $(ARGS)

# Most end-to-end tests wait for processes and for leases: more tests at once than processors. But
# each of the processes finds all tests first.
JOBS ?= 5
PYTEST = $(BIN)/python -m pytest -n $(JOBS)
# One end-to-end test that fails may run again, alone and under load; the program says which rules.
PYTEST_TWICE = $(BIN)/python tests/support/tries/second_try.py -n $(JOBS)
# What the tests check of the repository itself, its words and its layout, is a part of `check`.
HYGIENE := tests/unit/repo
# The tests start hundreds of processes. Each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test
test: $(STAMP) ## run the unit tests, some seeds, and a quarter of what starts processes
	$(PYTEST_TWICE) --budget 240 -m "not long and not nightly and not records" --ignore $(HYGIENE) $(ARGS)

# Unit tests that start processes or servers, or import torch: not for test-fast.
PARTS_THAT_WAIT := $(addprefix tests/unit/,client elastic embedded release torch wire/test_loading.py \
	$(addprefix agent/,helper hosting preload) \
	$(addprefix server/,access agents api contract etcd fleet journal/etcd journal/sqlite serving))
.PHONY: test-fast
test-fast: JOBS = 4  # these hardly wait
test-fast: $(STAMP) ## run most unit tests and a few simulation seeds
	$(PYTEST) --budget 60 -m "not long and not nightly and not records" \
		$(addprefix --ignore ,$(HYGIENE) $(PARTS_THAT_WAIT)) \
		tests/unit "tests/sim/test_simulation.py::test_every_seed_is_safe_and_comes_to_rest" $(ARGS)

.PHONY: test-long
test-long: $(STAMP) ## run another half of it, and the long tests: torchrun itself, more seeds, the soak
	$(PYTEST_TWICE) --budget 700 -m "long and not nightly" $(ARGS)

.PHONY: test-all
test-all: $(STAMP) ## run both at once, which finds the tests only once
	$(PYTEST_TWICE) --budget 940 -m "not nightly and not records" --ignore $(HYGIENE) $(ARGS)

.PHONY: nightly
nightly: $(STAMP) ## run everything: all tests, records, frameworks, versions, an hour of fresh seeds
	$(BIN)/python tests/support/tries/nightly.py $(STEPS)

# The frameworks of docs/gallery/ are large, and bring versions of other packages: they live apart.
FRAMEWORKS := $(VENV)-frameworks
.PHONY: test-frameworks
test-frameworks: $(STAMP) ## run the gallery: Lightning, Accelerate, transformers, DeepSpeed and TorchX
	@test -x $(FRAMEWORKS)/bin/python || $(BIN)/python -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(FRAMEWORKS)/bin/python -m pip install --quiet -c constraints.txt -e . \
		--group test --group examples --group frameworks
	$(FRAMEWORKS)/bin/python -m pytest tests/docs -m long -k "gallery or torchx" $(ARGS)

.PHONY: test-records
test-records: $(STAMP) ## run torchrun and torch's Python API again for every record
	$(PYTEST) -m records $(ARGS)

.PHONY: record-torchrun
record-torchrun: $(STAMP) ## run torchrun with every scenario whose record is stale
	PYTHONPATH=tests $(BIN)/python tests/e2e/launching/record_torchrun.py $(ARGS)

.PHONY: record-elastic
record-elastic: $(STAMP) ## run torch's Python API with every case whose record is stale
	PYTHONPATH=tests $(BIN)/python tests/e2e/elastic/cases/record.py $(ARGS)

WORLDS ?= cores owners shells relays
.PHONY: simulate
simulate: $(STAMP) ## simulate cores and shells under faults: make simulate SEEDS=0:20000 WORLDS=cores
	set -e; for world in $(WORLDS); do \
		$(BIN)/python tests/sim/run.py --world $$world --seeds $(SEEDS) $(ARGS); done

.PHONY: replant
replant: $(STAMP) ## find the seeds that notice each planted bug, after a change of what seeds draw
	$(BIN)/python tests/sim/replant.py $(ARGS)

.PHONY: check
check: format-check lint types imports proto-check proto-lint proto-breaking hygiene ## format, lint, types, imports, stubs, proto, words, layout

.PHONY: bench
bench: $(STAMP) ## measure every figure of the documents, for half an hour: ARGS="--list" or "--only launch"
	$(BIN)/python benchmarks/bench.py $(ARGS)

.PHONY: figures
figures: $(STAMP) ## draw the tables and the chart of the documents from what was measured
	$(BIN)/python benchmarks/page.py

.PHONY: soak
soak: $(STAMP) ## 32 agents that stand still now and then, for 30 minutes; nobody may be called dead
	$(BIN)/python benchmarks/soak.py $(ARGS)

.PHONY: fmt
fmt: $(STAMP) ## format the code, apply the safe lint fixes
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

.PHONY: format-check
format-check: $(STAMP)
	$(BIN)/ruff format --check .

.PHONY: lint
lint: $(STAMP) ## ruff
	$(BIN)/ruff check .

.PHONY: types
types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

.PHONY: imports
imports: $(STAMP) ## who may import whom
	$(BIN)/lint-imports

.PHONY: hygiene
hygiene: $(STAMP) ## words, layout and packages of the repository, and the tools of its tests
	$(BIN)/python -m pytest -q -n 0 -m "not long and not nightly" $(HYGIENE)

.PHONY: proto
proto: $(STAMP) ## regenerate the stubs and descriptors beside their .proto files
	$(call stubs_into,proto)

.PHONY: proto-check
proto-check: $(STAMP) ## fail when a committed stub is stale, missing or left over
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	$(call stubs_into,"$$fresh") && \
	diff <($(call stub_sums,"$$fresh")) <($(call stub_sums,proto)) || \
	{ echo "stubs differ (< fresh, > committed): run make proto; delete what has no .proto" >&2; exit 1; }
	@echo "stubs are fresh"

.PHONY: journal-format
journal-format: $(STAMP) ## keep what the journal's format can hold, for the tests of later versions
	$(BIN)/python tests/support/journal/write_format.py

# The generators of pages are beside the tests that compare the pages: no part of the product.
WRITE := PYTHONPATH=tests $(BIN)/python -m support.reference.
.PHONY: flags
flags: $(STAMP) ## write docs/reference/flags.md and commands.md from the parsers
	@mkdir -p docs/reference
	$(WRITE)flags > docs/reference/flags.md
	$(WRITE)commands > docs/reference/commands.md

.PHONY: limits
limits: $(STAMP) ## write docs/reference/limits.md from the .proto files
	@mkdir -p docs/reference
	$(WRITE)limits > docs/reference/limits.md

.PHONY: access
access: $(STAMP) ## write docs/reference/access.md from the table that the test of every RPC checks
	$(BIN)/python tests/support/access/table.py > docs/reference/access.md

.PHONY: client
client: $(STAMP) ## write the blocking client from the asyncio one
	$(BIN)/python tests/support/clients/write_sync.py

.PHONY: api
api: $(STAMP) ## write docs/reference/api/ from the .proto files and their comments
	@rm -f docs/reference/api/*.md && mkdir -p docs/reference/api
	$(WRITE)api docs/reference/api

.PHONY: docs
docs: $(STAMP) ## build the documentation site into site/
	$(BIN)/python -m pip install --quiet -c constraints.txt --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "to read it: $(BIN)/python -m http.server --directory site"

.PHONY: proto-lint
proto-lint: $(STAMP) ## buf lint
	$(BIN)/buf lint proto

# What both packages promise, the API and the journal: all as of the latest release, without comments.
FROZEN := proto/v1.binpb
buf_breaking = $(BIN)/buf breaking proto --against $(FROZEN)

.PHONY: proto-breaking
proto-breaking: $(STAMP) ## fail when the contract breaks what is frozen
	@$(buf_breaking) || { echo "the contract is frozen: add fields instead; docs/versions.md says what may change" >&2; exit 1; }
	@echo "the contract keeps what is frozen"

.PHONY: proto-freeze
proto-freeze: $(STAMP) ## freeze the contract as it is, if it breaks nothing; at each release
	if [ -e $(FROZEN) ]; then $(buf_breaking); fi
	$(BIN)/buf build proto --exclude-source-info -o $(FROZEN)

MAKE_RELEASE = $(BIN)/python release/make_release.py
.PHONY: release
release: $(STAMP) ## build and try a release into dist/, once make nightly is green; upload nothing
	$(BIN)/python -m pip install --quiet -c constraints.txt --group release
	$(MAKE_RELEASE) ready
	$(MAKE_RELEASE) build

.PHONY: setup
setup: $(STAMP) ## make .venv with everything in it

# The stamp is the last thing written and the first thing removed, so a failed install leaves none.
$(STAMP): $(BIN)/python pyproject.toml constraints.txt
	@rm -f $@
	@echo "installing into $(VENV); the first time takes minutes, torch is large"
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'  # the first that knows --group
	$(BIN)/python -m pip install --quiet -c constraints.txt -e . --group dev
	@touch $@

# A copied or moved checkout brings a .venv whose scripts name the old place: start over.
ifeq ($(shell grep -sF "$(CURDIR)/$(VENV)" $(BIN)/activate),)
.PHONY: $(BIN)/python
endif
$(BIN)/python:
	@rm -rf $(VENV)
	@for python in $(PYTHONS); do \
		if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then echo "$$python -m venv $(VENV)"; exec "$$python" -m venv $(VENV); fi; \
	done; \
	echo "no Python 3.11 or newer with the venv module found; name one: make PYTHON=/path/to/python" >&2; exit 1

.PHONY: clean
clean: ## remove caches and build results
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .grimp_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## remove .venv too
	rm -rf $(VENV) $(FRAMEWORKS) .nightly
