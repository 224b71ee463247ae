"""What tests share: a small text, a small model, the command line in this process or in one of its own."""

import functools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # tests run side by side
os.environ["WANDB_MODE"] = "disabled"  # but where a test says otherwise

import pytest
import torch

from training.cli import CONF, choices
from training.config import RunConfig

torch.set_num_threads(1)

ROOT = Path(__file__).parents[1]
NORMS = sorted(file.stem for file in (CONF / "norm").glob("*.yaml"))
PLACEMENTS = sorted(file.stem for file in (CONF / "placement").glob("*.yaml"))
# Where all pairs would take too long: every norm before a branch, and layernorm in every placement.
AROUND = sorted({*((norm, "pre") for norm in NORMS), *(("layernorm", p) for p in PLACEMENTS)})
WORDS = "Now is the winter of our discontent\nmade glorious summer by this sun of York;\n".split(" ")
LETTERS = " ".join(random.Random(0).choices(WORDS, k=900))  # no period: splits and windows differ
TINY = (  # a run of a second
    "model.n_layer=2",
    "model.n_head=2",
    "model.n_embd=16",
    "model.block_size=8",
    "train.batch_size=4",
    "train.steps=6",
    "train.eval_windows=8",
    "train.log_every=1",
    "train.threads=1",
    "train.hopeless_after=0",  # in so few steps nothing is learned
    "precision=fp32",
    "device=cpu",
)


@functools.cache  # a config is frozen, and Hydra takes its time
def configured(*overrides: str) -> RunConfig:
    """The checked config of a command line."""
    return choices("config", RunConfig, list(overrides))[""]


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(LETTERS, encoding="utf-8")
    return file


@pytest.fixture
def tiny(tmp_path: Path, text_file: Path) -> Callable[..., RunConfig]:
    """The config of a run of a second, in an empty folder."""

    def make(*overrides: str) -> RunConfig:
        return configured(
            "data=text",
            f"data.path={text_file}",
            f"data.cache={tmp_path}/cache",
            f"runs_dir={tmp_path}/runs",
            *TINY,
            *overrides,
        )

    return make


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A program of ours as its user runs it, in an empty folder, which then holds its runs and cache."""

    def run(program: str, *arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / program), *arguments],
            cwd=tmp_path,
            env=os.environ | options,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run
