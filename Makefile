# Everything a checkout needs. `make demo` and `make test` set themselves up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLIENTS ?= 3
MINUTES ?= 4
TEXT ?=
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast check format programs docs clean

help: ## Show this
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

# torch first and by version: pip then takes a CPU build where there is one, and leaves it alone afterwards
$(STAMP): pyproject.toml
	@echo "setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check torch==2.13.0
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(STAMP) ## A chain, a run, clients that train, rewards claimed (CLIENTS=3 MINUTES=4 TEXT=path)
	@$(BIN)/run-manager demo --clients $(CLIENTS) --minutes $(MINUTES) $(if $(TEXT),--text $(TEXT))

test: $(STAMP) ## All tests
	@$(PYTEST) tests

test-fast: $(STAMP) ## The tests under two minutes
	@$(PYTEST) tests -m "not slow and not processes"

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

clean: ## Remove what was built (not .venv)
	rm -rf .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis programs/target
