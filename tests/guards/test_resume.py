"""A run that was stopped, however and however often, ends with the bits of an uninterrupted run."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from data.errors import CheckpointError, ConfigError
from tests.conftest import OPTIMIZERS, TRAIN, configured, daily
from tests.helpers.programs import Program, succeed
from tests.helpers.runs import (
    final_tensors,
    rows_without_clocks,
    same_tensors,
    stop_at,
    train_anew,
    train_or_resume,
    with_runs_dir,
)
from tests.helpers.waiting import until
from training import checkpoint
from training.log import RunLog
from training.run_folder import Run, read_json, read_status
from training.signals import Interrupted

HARD = ("model.dropout=0.2", "train.grad_accum=2", "train.eval_every=4", "train.checkpoint_every=3")
CASES = [(norm, optim) for norm in ("batchnorm", "layernorm", "powernorm") for optim in OPTIMIZERS]


def assert_same_run(folder: Path, other: Path) -> None:
    assert same_tensors(final_tensors(folder), final_tensors(other))
    assert rows_without_clocks(folder) == rows_without_clocks(other)


def interrupt(config, steps: set[int], number: int = signal.SIGTERM) -> Path:
    """Train, and send this process a signal at each of the steps: one start each. Return the folder."""
    with pytest.MonkeyPatch.context() as patch:
        stop_at(steps, number, patch)
        for _ in steps:
            with pytest.raises(Interrupted) as raised:
                train_or_resume(config)
            assert raised.value.code == 128 + number
    [folder] = Path(config.runs_dir).iterdir()
    status = read_status(folder)
    assert (status["state"], status["reason"]) == ("interrupted", signal.Signals(number).name)
    assert status["saved"] == max(steps) + 1
    return folder


@pytest.mark.parametrize(("norm", "optim"), daily(CASES))
def test_stopped_at_every_step_a_run_ends_with_the_same_bits_and_rows(tiny, tmp_path, norm, optim):
    config = tiny(f"norm={norm}", f"optim={optim}", *HARD, "train.steps=9")
    uninterrupted = train_or_resume(with_runs_dir(config, tmp_path / "whole"))
    folder = interrupt(config, {*range(8)})
    train_or_resume(config)
    assert_same_run(folder, uninterrupted)
    changing = {"peak_memory": None, "process": None}
    assert read_status(folder) | changing == read_status(uninterrupted) | changing


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_each_signal_saves_the_step_and_restores_the_handlers(tiny, number):
    before = signal.getsignal(number)
    interrupt(tiny(), {2}, number)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments_a_run_loses_nothing_that_was_saved(tmp_path, text_file, kills):
    """Each life but the last is killed after a random number of further steps, at most 40 of its 60; every
    second one at a random moment of its start, when it may not have resumed yet."""
    long = (f"train.steps={60 * (kills + 1)}", "train.checkpoint_every=10", "train.eval_every=30")
    command = ("train.py", *TRAIN, *long, "norm=batchnorm")
    draw, reached = random.Random(0), 0
    for life in range(kills):
        with Program(*command, cwd=tmp_path) as process:
            if life % 2:
                time.sleep(2 * draw.random())
            else:
                reached += draw.randrange(15, 40)
                process.until(lambda: step_of(tmp_path) >= reached)  # noqa: B023
                time.sleep(0.03 * draw.random())
        assert process.returncode == -signal.SIGKILL, process.args
        for file in tmp_path.glob("runs/*/checkpoints/step-*"):
            checkpoint.load(file)  # each is whole
    succeed(*command, cwd=tmp_path)
    [folder] = tmp_path.glob("runs/*")
    words = (*command[1:], f"data.path={text_file}", f"data.cache={tmp_path}/cache")
    assert_same_run(folder, train_anew(configured(*words, f"runs_dir={tmp_path}/whole")))


def step_of(folder: Path) -> int:
    """Return the step of the newest row of the run in ``folder``; -1 if it has none."""
    rows = [row for file in folder.glob("runs/*/metrics.jsonl") for row in file.read_text().split("\n")[:-1]]
    return json.loads(rows[-1])["step"] if rows else -1


@pytest.fixture
def config(tiny):
    return tiny("train.steps=9", "train.checkpoint_every=3", "train.eval_every=2")


@pytest.fixture
def folder(config) -> Path:
    """A run with checkpoints of steps 3 and 5, and the rest to do."""
    return interrupt(config, {4})


@pytest.mark.parametrize("damage", ["cut", "flipped", "another run's"])
def test_a_damaged_newest_checkpoint_is_skipped_with_one_line(config, folder, tmp_path, capsys, damage):
    uninterrupted = train_or_resume(with_runs_dir(config, tmp_path / "whole"))
    newest = checkpoint.path_of(folder / "checkpoints", checkpoint.saved_steps(folder / "checkpoints")[-1])
    content = newest.read_bytes()
    if damage == "another run's":
        other = with_runs_dir(config.model_copy(update={"seed": 1}), tmp_path / "other")
        damaged = checkpoint.path_of(train_or_resume(other) / "checkpoints", 9).read_bytes()
    elif damage == "cut":
        damaged = content[: len(content) // 2]
    else:
        damaged = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
    newest.write_bytes(damaged)
    train_or_resume(config)
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert newest.name in line
    assert_same_run(folder, uninterrupted)


def test_without_a_usable_checkpoint_the_run_is_refused_and_nothing_is_removed(config, folder):
    files = [*(folder / "checkpoints").glob("step-*")]
    for file in files:
        file.write_bytes(b"no")
    with pytest.raises(CheckpointError, match="no older file is usable; fresh=true starts the run over"):
        train_or_resume(config)
    assert all(file.exists() for file in files)


def test_the_best_checkpoint_stays_when_a_run_is_stopped_twice(config, folder):
    best = read_status(folder)["best"]
    interrupt(config, {5})
    assert read_status(folder)["best"]["val/loss"] <= best["val/loss"]
    assert read_status(folder)["best"]["step"] in checkpoint.saved_steps(folder / "checkpoints")


def test_two_processes_never_train_one_run(config, folder):
    with Run(folder, config), pytest.raises(ConfigError, match="trains this run; wait for it or end it"):
        train_or_resume(config)
    train_or_resume(config)


@pytest.mark.slow
def test_two_starts_at_once_give_one_run_and_one_refusal(tmp_path, text_file):
    both = [Program("train.py", *TRAIN, "train.steps=1000000", cwd=tmp_path) for _ in range(2)]
    until(lambda: any(process.returncode is not None for process in both))
    other, refused = sorted(both, key=lambda process: process.returncode is not None)
    assert refused.returncode == 1
    assert "trains this run; wait for it or end it" in refused.printed("err").splitlines()[-1]
    other.send_signal(signal.SIGINT)
    assert other.wait() == 130


def test_a_full_disk_ends_with_one_line_and_loses_nothing_written(config, folder, monkeypatch):
    steps = checkpoint.saved_steps(folder / "checkpoints")
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if "safetensors" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"No space left .*; make room or choose another runs_dir"):
            train_or_resume(config)
    assert {*steps} <= {*checkpoint.saved_steps(folder / "checkpoints")}
    assert not [*(folder / "checkpoints").glob(".*.tmp")]
    assert read_status(folder)["state"] == "failed"
    train_or_resume(config)
    assert read_status(folder)["state"] == "finished"


def test_a_folder_that_is_removed_ends_the_run_with_one_line(config, folder, monkeypatch):
    write = RunLog.write

    def write_and_remove(self, step, row):
        if step == 7:
            shutil.rmtree(folder)
        return write(self, step, row)

    monkeypatch.setattr(RunLog, "write", write_and_remove)
    with pytest.raises((OSError, CheckpointError)) as raised:
        train_or_resume(config)
    assert str(folder) in str(raised.value) + str(getattr(raised.value, "filename", ""))


def test_a_run_says_in_which_other_environment_it_resumes_and_keeps_the_earlier_ones(config, folder, capsys):
    environment = folder / "environment.json"
    environment.write_text(json.dumps(read_json(environment) | {"earlier": [{"threads": 7}]}))
    (folder / "checkpoints" / ".tmpAbC123").write_bytes(b"half of a checkpoint, left by a killed process")
    train_or_resume(config.model_copy(update={"train": config.train.model_copy(update={"threads": 2})}))
    assert "resumes in another environment: threads 1 → 2" in capsys.readouterr().out
    assert [each["threads"] for each in read_json(environment)["earlier"]] == [7, 1]
    assert not [*(folder / "checkpoints").glob(".*")]


def test_fresh_starts_over_to_the_same_bits(tiny):
    config = tiny("model.dropout=0.2", "norm=batchnorm", "train.grad_accum=2")
    first = final_tensors(train_anew(config))
    assert same_tensors(first, final_tensors(train_anew(config)))
