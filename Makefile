# Two commands for a fresh machine: `make demo` and `make test`. Both may be stopped and started
# again at any point; tools/venv.py says how.
.DEFAULT_GOAL := help
.PHONY: help demo test test-full lint format env clean

CONFIG ?= configs/local-2stage.toml
MODEL ?= smollm2-135m-instruct
PROMPT ?= Explain in three sentences why the sky is blue.
# Raw, through the environment, so that no character of the prompt means anything to make or shell.
export ZPD_PROMPT := $(value PROMPT)
unexport PROMPT

# The first Python that runs and is new enough.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
BIN := .venv/bin

help:
	@echo 'make demo       asks a real model one question (PROMPT="..." to choose it)'
	@echo 'make test       lint, types and the tests; a few minutes'
	@echo 'make test-full  every test; up to an hour'
	@echo 'make clean      removes .venv and what the tools left; pulled models stay'

env:
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo \
	"make: zpd needs Python 3.11 or newer, and neither python3.11 nor python3 is (PYTHON=$(PYTHON)); install it or give PYTHON=/path/to/python" >&2; exit 2; }
	@'$(PYTHON)' tools/venv.py

demo: env
	@$(BIN)/zpd models pull $(MODEL)
	@$(BIN)/zpd ask --config $(CONFIG) --up -- "$$ZPD_PROMPT"

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy zpd nodes tools

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

QUICK := -m "not full"
RUN := $(BIN)/python -m pytest -n 2

# A file of tests that start nodes runs in one process: its tests share a topology.
test: lint
	$(RUN) --dist worksteal $(QUICK) tests/unit tests/sim
	$(RUN) --dist loadfile $(QUICK) tests/process tests/exact

test-full: QUICK :=
test-full: test

clean:
	rm -rf .venv .venv.lock build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
