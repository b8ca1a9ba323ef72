# make help lists the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Also of an environment that was made by hand, or VENV=FOLDER: pip writes it at each installation.
READY  := $(BIN)/txl-lightning
THEIRS := .venv-reference
HUB    := .venv-hub
PEERS  := .venv-peers

EXPERIMENTS := fragmentation stop_gradient test_time recurrence state_bytes how_far_back copying longer_memory words novels original

.PHONY: help setup quickstart reproduce reproduce-fast test test-all test-slow gpu bench lint docs format clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

setup: $(READY)  ## make .venv with the pinned packages and this one

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11, 4) else "Python 3.11.4 or later is needed; say which with: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

quickstart: $(READY)  ## train on this Python's own source for five minutes, then measure and sample
	$(BIN)/txl-lightning quickstart

reproduce: $(READY)  ## measure the questions again in runs/reproduced, or those of ONLY="words novels"; resumable
	for name in $(or $(ONLY),$(EXPERIMENTS)); do out=runs/reproduced/$$name; \
	  $(BIN)/python -m experiments.$$name.run --runs $$out --out $$out/results.json $(REPRODUCE) || \
	  failed="$$failed $$name"; done; \
	$(BIN)/python -m experiments.pages --results runs/reproduced || failed="$$failed pages"; \
	test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

reproduce-fast: $(READY)  ## show in minutes, at tiny sizes, that a part of each question runs (runs/fast)
	for name in $(EXPERIMENTS); do $(BIN)/python -m experiments.$$name.run --fast || exit 1; done
	$(BIN)/python -m experiments.pages --results runs/fast

test: $(READY)  ## run the fast tests on both cores (six minutes)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --timeout 300 $(PYTEST)

test-all: test test-slow  ## run every test

test-slow: $(READY) $(THEIRS)/ready $(HUB)/ready  ## run the slow tests: processes, faults, browser, W&B, other codes
	@# Of pytest's exit codes, 5 means that PYTEST selected no test there.
	export TXL_REFERENCE_PYTHON=$(CURDIR)/$(THEIRS)/bin/python; \
	{ $(HUB)/bin/python -m pytest -q -n 2 --dist loadfile -m slow --timeout 900 $(PYTEST) tests/hub || \
	  test $$? = 5; } && $(BIN)/python -m pytest -q -n 2 --dist loadfile \
	  -m '(slow or faults or reference) and not gpu' --timeout 900 $(PYTEST)

$(THEIRS)/ready: tests/reference/requirements.txt
	$(PYTHON) -m venv $(THEIRS)
	$(THEIRS)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/reference/requirements.txt
	@touch $@

# Not in $(VENV): where transformers is installed, torchmetrics imports it, at every start.
$(HUB)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(HUB)
	$(HUB)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,lm-eval]'
	@touch $@

gpu:  ## check a GPU in ten minutes with the PyTorch that PYTHON has: correctness, speed, one JSON
	$(PYTHON) -m experiments.gpu.check

bench: $(READY) $(PEERS)/ready  ## measure speed beside other implementations (hours, quiet; BENCH=options)
	$(PEERS)/bin/python -W ignore -m experiments.speed.bench $(BENCH)
	$(BIN)/python -m experiments.speed.table_9 --rounds 3

$(PEERS)/ready: experiments/speed/requirements.txt experiments/speed/requirements-no-deps.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r experiments/speed/requirements.txt
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r experiments/speed/requirements-no-deps.txt
	@touch $@

lint: $(READY)  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

docs: $(READY)  ## write the parts of docs/ that come from the package
	$(BIN)/python docs/make_walkthrough.py
	$(BIN)/python docs/make_api.py

format: $(READY)  ## put style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what was made here, except data and runs
	rm -rf .venv $(THEIRS) $(HUB) $(PEERS) build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
