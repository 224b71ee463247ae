"""Train runs in the process of the test, and read the files of their folders."""

import json
import os
from pathlib import Path

import torch

from train import main
from training import checkpoint as checkpoint_file
from training import identity
from training.device import choose
from training.log import RunLog
from training.open_run import tokens_of

CLOCKS = ("seconds", "train/tokens_per_s", "stats/overhead")


def train_anew(config) -> Path:
    """Train from step 0, even if the folder holds a run already. Return the run's folder."""
    return train_or_resume(config.model_copy(update={"fresh": True}))


def final_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of the newest checkpoint: weights, buffers and optimizer state."""
    steps = checkpoint_file.saved_steps(folder / "checkpoints")
    return checkpoint_file.load(checkpoint_file.path_of(folder / "checkpoints", steps[-1])).tensors


def stop_at(steps: set[int], number: int, monkeypatch) -> None:
    """Send this process a signal when the row of each of these steps is first written."""
    write, left = RunLog.write, set(steps)

    def write_and_stop(self, step, row):
        written = write(self, step, row)
        if step in left:
            left.remove(step)
            os.kill(os.getpid(), number)
        return written

    monkeypatch.setattr(RunLog, "write", write_and_stop)


def metric_rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def train_losses(folder: Path) -> list[float]:
    return [row["train/loss"] for row in metric_rows(folder) if "train/loss" in row]


def same_tensors(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def train_or_resume(config) -> Path:
    """Start or resume a run, as ``python train.py`` does. Return the run's folder."""
    tokens = tokens_of(config)
    folder = identity.folder_of(config, choose(config.device, config.precision).precision, tokens.fingerprint)
    main(config)
    return folder


def with_runs_dir(config, path):
    """Return the config of the same run with ``runs_dir`` = ``path``, an empty folder."""
    return config.model_copy(update={"runs_dir": str(path)})


def rows_without_clocks(folder: Path) -> list[dict]:
    """Return the rows of metrics.jsonl without the columns that depend on the clock."""
    return [{k: v for k, v in row.items() if k not in CLOCKS} for row in metric_rows(folder)]
