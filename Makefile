# Everything a checkout needs. `make demo` and `make test` set themselves up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLIENTS ?= 3
MINUTES ?= 4
TEXT ?=
VERIFY ?= 0
JOBS ?= auto
RUNS ?= 2
PYTEST := $(BIN)/python -m pytest
PARALLEL_PYTEST = OMP_NUM_THREADS=1 $(PYTEST) --dist worksteal -n
NEWEST := .venv-newest
NEWEST_STAMP := $(NEWEST)/.installed
NEWEST_PIP := $(NEWEST)/bin/python -m pip install -qq --disable-pip-version-check
PROGRAM_TESTS = $(filter-out %_build.py,$(wildcard tests/conformance/test_programs_*.py)) \
	tests/conformance/test_rule_book_matches_program.py

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-newest check format programs docs clean

help: ## Show this
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

# torch first and by version: pip then takes a CPU build where there is one, and leaves it alone afterwards
$(STAMP): pyproject.toml
	@echo "setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check torch==2.13.0
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(STAMP) ## A chain, a run, clients that train, rewards claimed (CLIENTS=3 MINUTES=4 TEXT=path VERIFY=percent)
	@$(BIN)/run-manager demo --clients $(CLIENTS) --minutes $(MINUTES) --verify $(VERIFY) $(if $(TEXT),--text $(TEXT))

# What starts no processes of its own shares the cores, a test to a core. Whole runs come after it, two at a
# time on any machine: most of their time they wait for timers of the chain, but each of their clients takes 0.6 GB
test: $(STAMP) ## All tests (JOBS=auto RUNS=2)
	@status=0; $(PARALLEL_PYTEST) $(JOBS) tests -m "not processes" || status=1; \
		$(PARALLEL_PYTEST) $(RUNS) tests -m processes || status=1; exit $$status

test-fast: $(STAMP) ## The tests under two minutes
	@$(PARALLEL_PYTEST) $(JOBS) tests -m "not slow and not processes"

# What anchorpy keeps out of .venv: solders 0.29, whose LiteSVM has SBPF v3 and the upgradeable loader. solana-py
# would pull solders 0.26 in; nothing but the token instructions of its spl package is used, and those run with both.
$(NEWEST_STAMP): Makefile
	@test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	@$(NEWEST_PIP) 'solders>=0.29,<0.30' base58 construct construct-typing h11 hypothesis numpy pyheck pytest \
		pytest-timeout trio trio-websocket typing-extensions zstandard
	@$(NEWEST_PIP) --no-deps solana==0.36.6
	@touch $@

test-newest: $(NEWEST_STAMP) ## Programs of both formats on the newest runtime, deployed and upgraded by its loader
	@$(NEWEST)/bin/python -m pytest tests/newest
	@for version in 0 3; do echo "SBPF v$$version"; \
		PSYCHE_SBPF_VERSION=$$version $(NEWEST)/bin/python -m pytest $(PROGRAM_TESTS) || exit 1; done

check: $(STAMP) ## Format, lint, types, import rules, spelling, the generated reference
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@$(BIN)/python programs/build/reference.py --check

format: $(STAMP) ## Format and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

programs: $(STAMP) ## Build the on-chain programs and their IDL (needs Debian's rustc-web, see programs/README.md)
	@$(BIN)/python programs/build/make.py

docs: $(STAMP) ## Write docs/instructions.md, and the states in docs/protocol.md, from the sources
	@$(BIN)/python programs/build/reference.py

bench-%: $(STAMP) ## Run benchmarks/bench_%.py; its last line is JSON
	@$(BIN)/python benchmarks/bench_$*.py

clean: ## Remove what was built (not .venv, .venv-newest)
	rm -rf .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis programs/target
