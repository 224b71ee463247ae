"""R5: observing a run changes no bit of it; another seed shares nothing with it."""

import os
import subprocess
import sys

import numpy as np
import pytest

from data import windows
from model.seeds import seed_for
from rundir import checkpoint_file
from tests.conftest import LETTERS, TRAIN, daily
from tests.helpers import programs
from tests.helpers.killed import end_of
from tests.helpers.runs import same_tensors

BASE = ("norm=batchnorm", "model.dropout=0.1", "train.steps=40", "train.eval_every=8", "stats.every=10")
WATCHED = {
    "the same command": (),
    "no evaluation": ("train.eval_every=0",),
    "an evaluation each step": ("train.eval_every=1",),
    "on other windows": ("train.eval_windows=3",),
    "no statistics": ("stats.every=0",),
    "all statistics each step": ("stats.every=1", 'stats.metrics=["*"]', "stats.histograms_every=5"),
    "logged each 10 steps": ("train.log_every=10",),
    "a checkpoint each step": ("train.checkpoint_every=1",),
    "one each 7 steps": ("train.checkpoint_every=7",),
    "no checkpoint but the last": ("train.checkpoint_every=0",),
    "wandb offline": ("wandb.mode=offline",),
    "wandb, broken": ("wandb.mode=offline", "wandb.dir=/proc/nope"),
}


def ended(folder, *more: str):
    folder.mkdir()
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    programs.succeed("train.py", *TRAIN, *BASE, *more, cwd=folder)
    return checkpoint_file.load(end_of(folder)).tensors


@pytest.mark.faults
def test_observing_changes_no_bit(tmp_path, record_property):
    expected = ended(tmp_path / "plain")
    others = [
        name
        for number, (name, more) in enumerate(WATCHED.items())
        if not same_tensors(ended(tmp_path / str(number), *more), expected)
    ]
    record_property("R5 ways to watch a run, same bits", f"{len(WATCHED) - len(others)} of {len(WATCHED)}")
    assert others == []
    assert not same_tensors(ended(tmp_path / "seed", "seed=1"), expected)


def test_neighbouring_seeds_share_no_batch_in_1000_steps():
    tokens = np.arange(1_000_000, dtype=np.uint32)

    def drawn(seed: int) -> set[bytes]:
        seeds = (seed_for(seed, "data", step) for step in range(1000))
        return {windows.training_batch(tokens, 8, 4, batch_seed)[0].tobytes() for batch_seed in seeds}

    assert not drawn(0) & drawn(1)
    assert len(drawn(0)) == 1000


@pytest.mark.slow
@pytest.mark.parametrize("mode", daily(["disabled", "offline"]))
def test_a_reader_that_closes_its_pipe_ends_no_run(tmp_path, text_file, mode):
    more = ("train.steps=200", f"wandb.mode={mode}")
    command = [sys.executable, str(programs.ROOT / "train.py"), *TRAIN, *more]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, env=os.environ) as process:
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(60) == 0
    assert err == b""
    assert end_of(tmp_path).name == "step-00000200.safetensors"
