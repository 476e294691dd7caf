# Everything happens in .venv, made from $(PYTHON) with the versions in constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/quickstart
RUNS ?= 5
FAST := not slow and not gpu
INVARIANTS := $(FAST) and not robust and not docs and not system
TESTS ?= -m "$(INVARIANTS)"

.PHONY: help bench dist reference train test pytest lint test-system test-robust test-docs test-all test-slow test-gpu flaky mutations
.PHONY: promises attack portable sanitize clean

help:
	@echo "make train      install into .venv, train configs/quickstart.yaml (about a minute), print a sample"
	@echo "make test       lint and run the tests of invariants and of README, at once"
	@echo "make lint       ruff, mypy --strict, import-linter"
	@echo "make test-system  whole trainings, searches and servers, several processes, other programs, browsers, torch.compile"
	@echo "make test-robust  hostile input, damage, kills"
	@echo "make test-docs  the commands and figures of docs/"
	@echo "make test-all   these four, one after the other"
	@echo "make test-slow  the tests that take minutes"
	@echo "make test-gpu   the tests that need a CUDA device"
	@echo "make portable   the C engines for other processors, by gcc, clang and qemu, as far as they are here"
	@echo "make sanitize   the C engines under gcc's sanitizers"
	@echo "make flaky      those of make test again and again, in any order, on a busy machine: [RUNS=5] [TESTS=tests/cli/test_chat.py]"
	@echo "make mutations  plant faults in a copy of the package; each must turn its test red"
	@echo "make promises   run the tests of every promise and write their figures into docs/reliability.md"
	@echo "make attack     all that an attacker tried, by count; writes its figures into docs/reliability.md"
	@echo "make reference  write docs/reference from the schema and the verbs"
	@echo "make bench      training beside a yardstick: make bench AGAINST=yardstick.py TEXT=file.txt"
	@echo "make dist       a wheel and a source distribution in dist/"
	@echo "make clean      remove .venv and caches, never runs/"
	@echo "PYTHON=python3.13 chooses another interpreter (now: $(PYTHON))"

train: $(VENV)/.installed
	$(BIN)/gpt train --config configs/quickstart.yaml
	$(BIN)/gpt sample --run $(RUN) --prompt "The "

test: $(VENV)/.installed-dev
	$(MAKE) --no-print-directory -j 2 lint pytest

pytest: $(VENV)/.installed-dev
	$(BIN)/pytest -m "$(INVARIANTS)"

test-robust: $(VENV)/.installed-dev
	$(BIN)/pytest -m "$(FAST) and robust"

test-system: $(VENV)/.installed-dev
	$(BIN)/pytest -m "$(FAST) and system and not robust"

test-docs: $(VENV)/.installed-dev
	$(BIN)/pytest -m "$(FAST) and docs"

test-all: test test-system test-robust test-docs

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test-slow: $(VENV)/.installed-dev
	$(BIN)/pytest -m "slow and not gpu"

test-gpu: $(VENV)/.installed-dev
	$(BIN)/pytest -m gpu -n 0 -rs

portable: $(VENV)/.installed-dev
	$(BIN)/pytest -m portable -rs tests/cpu/test_portable.py tests/cpu/test_cpu_level.py

sanitize: $(VENV)/.installed-dev
	$(BIN)/pytest -m sanitize -rs tests/cpu/test_sanitizers.py

flaky: $(VENV)/.installed-dev
	$(BIN)/python -m tests.flaky --runs $(RUNS) -- $(TESTS)

mutations: $(VENV)/.installed-dev
	$(BIN)/python tests/mutations.py

promises: $(VENV)/.installed-dev
	$(BIN)/python -m tests.promises

attack: $(VENV)/.installed-dev
	$(BIN)/python -m tests.promises --attack

reference: $(VENV)/.installed
	$(BIN)/python -m docs.make_reference docs/reference

bench: $(VENV)/.installed-dev
	@test -n "$(AGAINST)" -a -n "$(TEXT)" || { echo "make bench AGAINST=yardstick.py TEXT=file.txt (see bench/training.py)"; exit 2; }
	$(BIN)/python -m bench.training --against $(AGAINST) --text $(TEXT)

dist: $(VENV)/.installed
	rm -rf build dist
	$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
	@ls dist

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
