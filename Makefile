# Everything runs in .venv, which is made on first use and refreshed when
# pyproject.toml or constraints.txt changes.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test reliability compat lint types docs reproduce bench bench-check clean

PYTHON      ?= python3
PYTEST_ARGS ?=
BENCH_ARGS  ?= kernels
COMPAT_ARGS ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed-dev
PIP   := $(BIN)/python -m pip --disable-pip-version-check -qq

help: ## show this list
	@echo "deconditional: Gaussian-process downscaling of unmatched coarse observations"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Variables: PYTHON=$(PYTHON), PYTEST_ARGS (make test PYTEST_ARGS='-k bags'), BENCH_ARGS=$(BENCH_ARGS)"

setup: $(STAMP) ## create .venv with the pinned development set

# The name ends in the extra. Python compiles what it imports: all of it takes as long as unpacking.
$(VENV)/.installed-%: pyproject.toml constraints.txt
	@echo "Installing '.[$*]' into $(VENV) (the first time takes a minute or two) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --no-compile --constraint constraints.txt --editable '.[$*]'
	@touch $@ $(VENV)/.installed-demo

demo: $(VENV)/.installed-demo ## downscale real global fields into demo-output/
	@$(BIN)/deconditional demo --out demo-output

test: $(STAMP) ## run the tests and every docstring example
	@$(BIN)/python -m pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder --durations=20 $(PYTEST_ARGS)

reliability: $(STAMP) ## try every fault of docs/reliability.md, as often as it says
	@rm -rf reliability-output
	@JAX_DISABLE_MOST_OPTIMIZATIONS=0 DECONDITIONAL_RELIABILITY=$(CURDIR)/reliability-output $(BIN)/python -m pytest --numprocesses=auto --no-loadscope-reorder -m reliability $(PYTEST_ARGS) tests
	@$(BIN)/python tests/reliability.py reliability-output

compat: ## test the lowest and the newest allowed dependencies (COMPAT_ARGS: lowest, ...)
	@$(PYTHON) tools/compatibility.py $(COMPAT_ARGS)

lint: $(STAMP) ## check style, formatting, layers, the rules of the house and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/house.py
	@$(BIN)/mypy

types: $(STAMP) ## check types alone
	@$(BIN)/mypy

docs: $(STAMP) ## build the documentation into docs/_build/html
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

reproduce: $(STAMP) ## every study at small size, into reproduce-output/ (15 minutes)
	@$(BIN)/python -m studies all --quick --out reproduce-output

bench: $(STAMP) ## measure speed (BENCH_ARGS: kernels, fit, predict, ...)
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-check: $(STAMP) ## compare speed with benchmarks/baseline.json
	@$(BIN)/python -m benchmarks check

clean: ## remove what the commands wrote (keeps .venv)
	@rm -rf build dist demo-output reproduce-output reliability-output docs/_build docs/examples .pytest_cache .hypothesis .mypy_cache .ruff_cache
	@find src tests docs studies benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +
