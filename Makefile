# make help lists the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
THEIRS := .venv-reference

.PHONY: help setup quickstart test test-faults test-reference lint format clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

setup: $(READY)  ## make .venv with the pinned packages and this one

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed; say which with: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

quickstart: $(READY)  ## train on this Python's own source for five minutes, then measure and sample
	$(BIN)/python experiments/quickstart/run.py

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --timeout 600

test-faults: $(READY)  ## kill, starve and damage runs, and see what is left (seven minutes)
	$(BIN)/python -m pytest -q -m faults --timeout 900 $(if $(TIME_LIMIT),--time-limit $(TIME_LIMIT))

test-reference: $(READY) $(THEIRS)/ready  ## compare with Hugging Face's TransfoXL, in a virtual environment of its own
	TXL_REFERENCE_PYTHON=$(CURDIR)/$(THEIRS)/bin/python $(BIN)/python -m pytest -q -m reference

$(THEIRS)/ready: tests/reference/requirements.txt
	$(PYTHON) -m venv $(THEIRS)
	$(THEIRS)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/reference/requirements.txt
	@touch $@

lint: $(READY)  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)  ## put style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what was made here, except data and runs
	rm -rf $(VENV) $(THEIRS) build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
