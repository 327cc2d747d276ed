# Everything runs from .venv, made once with the first suitable Python found, or with PYTHON=...
# An installation is repeated when pyproject.toml is newer than its stamp: one stamp an extra.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?=
WORKERS ?= auto
BIN := .venv/bin

# loadfile: a file's costly fixtures (a fine-tuned model, a million-row log) are made once, in one worker.
# At most 8 workers: each may hold a torch of its own, half a gigabyte.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadfile

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: .venv/.installed-demo ## Fine-tune a small model on a CPU, see its loss spike, and the dataset rows behind it
	@$(BIN)/trimtab demo --out trimtab-demo

.PHONY: test
test: check ## Run the checks, then the tests, all but the long ones; the same every time
	@$(PYTEST)

.PHONY: test-long
test-long: check ## Run all tests, the long ones too, with more and random examples
	@$(PYTEST) -m "not gpu" --hypothesis-profile=long

.PHONY: test-gpu
test-gpu: .venv/.installed-dev ## Run the tests that need a CUDA device
	@$(BIN)/python -m pytest -m gpu

.PHONY: check
check: .venv/.installed-dev ## Check format, lint, types and the doors between rooms
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy

.PHONY: bench
bench: .venv/.installed-dev ## Run the benchmarks behind the numbers in benchmarks/RESULTS.md
	@for script in $(sort $(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python "$$script"; done

.venv/.installed-demo: pyproject.toml | .venv/.made
	@echo "Installing Trimtab with what the demo needs (once; PyTorch is the big one, a few minutes on a slow line)"
	@$(BIN)/python -m pip install --editable '.[demo]'
	@touch $@

# All of the demo's packages are among the developer's.
.venv/.installed-dev: pyproject.toml | .venv/.made
	@echo "Installing Trimtab with what tests and checks need (once; a few minutes on a slow line)"
	@$(BIN)/python -m pip install --editable '.[dev]'
	@touch .venv/.installed-demo $@

# `pip --version` tells a complete environment from one whose making was interrupted.
.venv/.made:
	@if $(BIN)/python -m pip --version >/dev/null 2>&1; then touch $@; exit; fi; \
	lacking=""; \
	for python in $(or $(PYTHON),python3.11 python3.12 python3.13 python3.14 python3 python); do \
	  "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' >/dev/null 2>&1 || continue; \
	  if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then lacking="$$lacking $$python"; continue; fi; \
	  echo "Making .venv with $$("$$python" --version)"; \
	  "$$python" -m venv .venv; \
	  touch $@; \
	  exit; \
	done; \
	if [ -n "$$lacking" ]; then \
	  echo "Found$$lacking, but without the venv module; on Debian and Ubuntu: apt install python3-venv" >&2; \
	else \
	  echo "Found no Python 3.11 to 3.14$(if $(PYTHON), under PYTHON=$(PYTHON)); name one with: make PYTHON=/path/to/python3.12 ..." >&2; \
	fi; \
	exit 1
