"""Runs that tests train in this process or start as programs, and what they leave."""

import json
from contextlib import suppress
from pathlib import Path

import torch

from data.token_cache import prepare
from rundir import checkpoint_file, identity
from rundir.folder import AlreadyEndedError, Run
from system import signals
from train import train
from training.device import choose
from training.parallel.ranks import Ranks

STEPS = ("train.steps=60", "train.checkpoint_every=3", "train.eval_every=6", "model.dropout=0.1")


def run(config) -> Path:
    """Train from step 0, whatever is there."""
    return go(config.model_copy(update={"fresh": True}))


def final(folder: Path) -> dict[str, torch.Tensor]:
    steps = checkpoint_file.saved_steps(folder / "checkpoints")
    return checkpoint_file.load(checkpoint_file.path_of(folder / "checkpoints", steps[-1])).tensors


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(folder: Path) -> list[float]:
    return [row["train/loss"] for row in rows(folder) if "train/loss" in row]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


QUICK = (
    *("data=text", "data.path=text.txt", "train.steps=3", "model.n_layer=1", "train.threads=1"),
    *("model.n_embd=16", "model.n_head=2", "model.block_size=8"),
)


FAILS = """
from torch import nn


class Fails(nn.Module):
    calls = 0

    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x):
        Fails.calls += 1
        if Fails.calls > 60:  # some steps after the start
            raise ZeroDivisionError("on purpose")
        return x
"""


CLOCKS = ("seconds", "train/tokens_per_s", "stats/overhead")


def go(config) -> Path:
    """What the command does: begin, or go on; also with a run that has ended."""
    with signals.ending():
        data, compute = prepare(**config.data.model_dump()), choose(config.device, config.precision)
        folder = identity.run_folder(config, compute.precision, data.fingerprint)
        with Run(folder, config) as run, suppress(AlreadyEndedError):
            train(run, data, Ranks())
    return folder


def elsewhere(config, path):
    """The same run, of which nothing is there."""
    return config.model_copy(update={"runs_dir": str(path)})


def measured(folder: Path) -> list[dict]:
    """The rows, without the clock's."""
    return [{k: v for k, v in row.items() if k not in CLOCKS} for row in rows(folder)]
