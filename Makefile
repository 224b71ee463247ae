# make train [ARGS="norm=batchnorm placement=post"]   train one GPT
# make test                                           the tests that prove the product: two minutes on two cores
# make test-all                                       and the slower ones: six minutes
# make test-long                                      those that take too long for every day
# make test-slurm                                     sweeps on Slurm, where it is installed (three minutes)
# make test-cuda                                      what must be true on an NVIDIA GPU, on a machine that has one
# make check                                          format, lint, types, and which folder imports which
# Each makes .venv first, where there is none, and installs what it needs into it.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test test-all test-long test-slurm test-cuda check clean
train: .venv/train.stamp
	$(BIN)/python train.py $(ARGS)

test: .venv/dev.stamp
	$(BIN)/python -m pytest -n 3 --dist worksteal $(ARGS)

test-all: .venv/dev.stamp
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not long" $(ARGS)

test-long: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 -m long $(ARGS)

test-slurm: .venv/dev.stamp
	$(BIN)/python -m pytest -m "" -rs tests/study/test_slurm.py $(ARGS)

test-cuda: .venv/dev.stamp
	$(BIN)/python -m pytest -rs tests/cuda $(ARGS)

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

clean:
	rm -rf .venv

.venv/train.stamp: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "normgpt needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(BIN)/python -m ensurepip  # uv makes it without pip
	@echo "pip downloads torch, then unpacks it, for which it says nothing for half a minute"
	$(BIN)/python -m pip install $(PIPFLAGS) -r requirements.txt
	touch $@

.venv/dev.stamp: .venv/train.stamp requirements-dev.txt
	$(BIN)/python -m pip install $(PIPFLAGS) -r requirements-dev.txt
	touch $@
