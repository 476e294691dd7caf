# Everything happens in .venv, made from $(PYTHON) with the versions in constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/quickstart

.PHONY: help bench reference train test lint test-slow test-gpu mutations promises clean

help:
	@echo "make train      install into .venv, train configs/quickstart.yaml (about a minute), print a sample"
	@echo "make test       lint and run the tests"
	@echo "make lint       ruff, mypy --strict, import-linter"
	@echo "make test-slow  the tests that take minutes"
	@echo "make test-gpu   the tests that need a CUDA device"
	@echo "make mutations  plant faults in a copy of the package; each must turn its test red"
	@echo "make promises   run the tests of every promise and write their figures into docs/reliability.md"
	@echo "make reference  write docs/reference from the schema and the verbs"
	@echo "make bench      training beside a yardstick: make bench AGAINST=yardstick.py TEXT=file.txt"
	@echo "make clean      remove .venv and caches, never runs/"
	@echo "PYTHON=python3.13 chooses another interpreter (now: $(PYTHON))"

train: $(VENV)/.installed
	$(BIN)/gpt train --config configs/quickstart.yaml
	$(BIN)/gpt sample --run $(RUN) --prompt "The "

test: lint
	$(BIN)/pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test-slow: $(VENV)/.installed-dev
	$(BIN)/pytest -m "slow and not gpu"

test-gpu: $(VENV)/.installed-dev
	$(BIN)/pytest -m gpu -n 0 -rs

mutations: $(VENV)/.installed-dev
	$(BIN)/python tests/mutations.py

promises: $(VENV)/.installed-dev
	$(BIN)/python tests/promises.py

reference: $(VENV)/.installed
	$(BIN)/python -m gpt_cli.cli.reference docs/reference

bench: $(VENV)/.installed-dev
	@test -n "$(AGAINST)" -a -n "$(TEXT)" || { echo "make bench AGAINST=yardstick.py TEXT=file.txt (see bench/training.py)"; exit 2; }
	$(BIN)/python -m bench.training --against $(AGAINST) --text $(TEXT)

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find gpt_cli tests bench -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(BIN)/pip install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(BIN)/pip install --constraint constraints.txt --editable '.[dev]'
	@touch $(VENV)/.installed $@

$(VENV)/bin/pip:
	@command -v $(PYTHON) >/dev/null || { echo "error: there is no $(PYTHON) here" >&2; \
		echo "hint: install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: gpt needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; \
		echo "hint: name a newer one: make PYTHON=python3.13" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
