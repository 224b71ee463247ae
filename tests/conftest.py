"""Fixtures that all tests share: a small text, a small model, and the programs in this process or another."""

import functools
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # tests run side by side
os.environ["WANDB_MODE"] = "disabled"  # unless a test sets it

import hypothesis
import pytest
import torch

from cli.compose import choices
from cli.errors import CONF
from cli.schema import RunConfig
from tests.helpers import programs

torch.set_num_threads(1)
hypothesis.settings.register_profile("without deadlines", deadline=None)  # no test depends on time
hypothesis.settings.load_profile("without deadlines")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a shell; programs inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = programs.ROOT
NORMS = sorted(file.stem for file in (CONF / "norm").glob("*.yaml"))
OPTIMIZERS = sorted(file.stem for file in (CONF / "optim").glob("*.yaml"))
PLACEMENTS = sorted(file.stem for file in (CONF / "placement").glob("*.yaml"))
# For tests in which all pairs would take too long: every norm in pre, and layernorm in every placement.
AROUND = sorted({*((norm, "pre") for norm in NORMS), *(("layernorm", p) for p in PLACEMENTS)})
WORDS = "Now is the winter of our discontent\nmade glorious summer by this sun of York;\n".split(" ")
LETTERS = " ".join(random.Random(0).choices(WORDS, k=900))  # not periodic, so that splits and windows differ
TINY = tuple(  # a run that takes a second
    """model.n_layer=2 model.n_head=2 model.n_embd=16 model.block_size=8 train.batch_size=4 train.steps=6
    train.eval_windows=8 train.log_every=1 train.threads=1 precision=fp32 device=cpu""".split()
)
# defaults before 27 November 2026, at which golden numbers and old runs were made
EARLIER_DEFAULTS = ("model.init_scale=1.0", "optim.learning_rate=2e-3", "schedule.warmup_fraction=0.1")
TRAIN = ("data=text", "data.path=text.txt", "data.cache=cache", *TINY)  # needs text.txt in the current folder


def daily(
    cases: Iterable[Any],
    is_daily: Callable[[int], bool] = lambda number: number == 0,
    others: str | Callable[[int], str] = "slow",
) -> list[Any]:
    """Return cases for pytest.mark.parametrize: make test runs those whose number ``is_daily``, by default
    the first. The others get a mark, by which another target runs them: slow or long."""
    params = []
    for number, case in enumerate(cases):
        mark = others(number) if callable(others) else others
        marks = [] if is_daily(number) else [getattr(pytest.mark, mark)]
        params.append(pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks))
    return params


@functools.cache  # composing is slow, and a config is frozen
def configured(*overrides: str) -> RunConfig:
    """Return the validated config of a command line."""
    return choices(list(overrides))[""]


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(LETTERS, encoding="utf-8")
    return file


@pytest.fixture
def tiny(tmp_path: Path, text_file: Path) -> Callable[..., RunConfig]:
    """Return a function from overrides to the config of a run that takes a second, in an empty folder."""
    places = (f"data.path={text_file}", f"data.cache={tmp_path}/cache", f"runs_dir={tmp_path}/runs")
    return functools.partial(configured, "data=text", *places, *TINY)


@pytest.fixture(autouse=True)
def no_program_outlives_its_test() -> Iterator[None]:
    yield
    while programs.started:
        programs.started.pop().__exit__()


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a program of the project as a user does, in an empty folder."""
    return functools.partial(programs.run, cwd=tmp_path)


@pytest.fixture
def succeed(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a program of the project, which must exit with 0, in an empty folder."""
    return functools.partial(programs.succeed, cwd=tmp_path)
