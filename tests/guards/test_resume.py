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
from tests.conftest import LETTERS, OPTIMIZERS, TRAIN, daily
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


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to / folder.name)
    return to / folder.name


@pytest.mark.parametrize(("norm", "optim"), daily(CASES))
def test_stopped_at_every_step_a_run_ends_with_the_same_bits_and_rows(
    tiny, tmp_path, monkeypatch, norm, optim
):
    config = tiny(f"norm={norm}", f"optim={optim}", *HARD, "train.steps=9")
    uninterrupted = train_or_resume(config)
    again = with_runs_dir(config, tmp_path / "stopped")
    stops = range(8)
    stop_at({*stops}, signal.SIGTERM, monkeypatch)
    for step in stops:
        with pytest.raises(Interrupted) as raised:
            train_or_resume(again)
        assert raised.value.code == 128 + signal.SIGTERM
        [folder] = Path(again.runs_dir).iterdir()
        status = read_status(folder)
        assert (status["state"], status["reason"], status["saved"]) == ("interrupted", "SIGTERM", step + 1)
    train_or_resume(again)
    assert same_tensors(final_tensors(folder), final_tensors(uninterrupted))
    assert rows_without_clocks(folder) == rows_without_clocks(uninterrupted)
    changing = {"peak_memory": None, "process": None}
    assert read_status(folder) | changing == read_status(uninterrupted) | changing


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_each_signal_saves_the_step_and_restores_the_handlers(tiny, monkeypatch, number):
    before = signal.getsignal(number)
    stop_at({2}, number, monkeypatch)
    with pytest.raises(Interrupted) as raised:
        train_or_resume(tiny())
    assert raised.value.code == 128 + number
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments_a_run_loses_nothing_that_was_saved(tmp_path, kills):
    """Each life but the last is killed after a random number of further steps, at most 100 of its 150; one in
    four at a random moment of its start, when it may not have resumed yet."""
    long = (f"train.steps={150 * (kills + 1)}", "train.checkpoint_every=20", "train.eval_every=30")
    command = ("train.py", *TRAIN, *long, "norm=batchnorm")
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(LETTERS, encoding="utf-8")
    draw, reached = random.Random(0), 0
    for life in range(kills):
        with Program(*command, cwd=tmp_path / "killed") as process:
            if life % 4 == 3:
                time.sleep(2 * draw.random())
            else:
                reached += draw.randrange(100)
                process.until(lambda: step_of(tmp_path / "killed") >= reached)  # noqa: B023
                time.sleep(0.03 * draw.random())
            process.kill()
            assert process.wait() == -signal.SIGKILL, process.communicate()
        for file in (tmp_path / "killed").glob("runs/*/checkpoints/step-*"):
            checkpoint.load(file)  # each is whole
    for name in ("killed", "whole"):
        succeed(*command, cwd=tmp_path / name)
    [folder], [whole] = ([*(tmp_path / name).glob("runs/*")] for name in ("killed", "whole"))
    assert same_tensors(final_tensors(folder), final_tensors(whole))
    assert rows_without_clocks(folder) == rows_without_clocks(whole)


def step_of(folder: Path) -> int:
    """Return the step of the newest row of the run in ``folder``; -1 if it has none."""
    rows = [
        line for file in folder.glob("runs/*/metrics.jsonl") for line in file.read_text().split("\n")[:-1]
    ]
    return json.loads(rows[-1])["step"] if rows else -1


def interrupted(tiny, monkeypatch, *overrides: str):
    """Return the config and the folder of a run with checkpoints of steps 3 and 5, and the rest to do."""
    config = tiny("train.steps=9", "train.checkpoint_every=3", "train.eval_every=2", *overrides)
    with monkeypatch.context() as patch:
        stop_at({4}, signal.SIGTERM, patch)
        with pytest.raises(Interrupted):
            train_or_resume(config)
    [folder] = Path(config.runs_dir).iterdir()
    return config, folder


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "another run's"])
def test_a_damaged_newest_checkpoint_is_skipped_with_one_line(tiny, tmp_path, monkeypatch, capsys, damage):
    config, folder = interrupted(tiny, monkeypatch)
    newest = checkpoint.path_of(folder / "checkpoints", checkpoint.saved_steps(folder / "checkpoints")[-1])
    content = newest.read_bytes()
    middle = len(content) // 2
    other = train_or_resume(tiny("seed=1", "train.steps=9")) / "checkpoints"
    contents = {
        "cut": content[:middle],
        "flipped": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        "empty": b"",
        "another run's": checkpoint.path_of(other, 9).read_bytes(),
    }
    newest.write_bytes(contents[damage])
    train_or_resume(config)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(lines) == 1
    assert newest.name in lines[0]
    uninterrupted = train_or_resume(with_runs_dir(config, tmp_path / "whole"))
    assert same_tensors(final_tensors(folder), final_tensors(uninterrupted))
    assert rows_without_clocks(folder) == rows_without_clocks(uninterrupted)


def test_without_a_usable_checkpoint_the_run_is_refused_and_nothing_is_removed(tiny, monkeypatch):
    config, folder = interrupted(tiny, monkeypatch)
    files = [*(folder / "checkpoints").glob("step-*")]
    for file in files:
        file.write_bytes(b"no")
    with pytest.raises(CheckpointError, match="no older file is usable; fresh=true starts the run over"):
        train_or_resume(config)
    assert all(file.exists() for file in files)


def test_the_best_checkpoint_stays_when_a_run_is_stopped_twice(tiny, monkeypatch):
    config, folder = interrupted(tiny, monkeypatch)
    best = read_status(folder)["best"]
    with monkeypatch.context() as patch:
        stop_at({5}, signal.SIGTERM, patch)
        with pytest.raises(Interrupted):
            train_or_resume(config)
    assert read_status(folder)["best"]["val/loss"] <= best["val/loss"]
    assert read_status(folder)["best"]["step"] in checkpoint.saved_steps(folder / "checkpoints")


def test_two_processes_never_train_one_run(tiny, monkeypatch):
    config, folder = interrupted(tiny, monkeypatch)
    with Run(folder, config) as run:
        assert run.lock.is_locked
        with pytest.raises(ConfigError, match="trains this run; wait for it or end it"):
            train_or_resume(config)
    train_or_resume(config)


def test_two_starts_at_once_give_one_run_and_one_refusal(tmp_path, text_file):
    processes = [Program("train.py", *TRAIN, "train.steps=2000", cwd=tmp_path) for _ in range(2)]
    until(lambda: any(process.poll() is not None for process in processes))
    [refused] = [process for process in processes if process.poll() is not None]
    [other] = [process for process in processes if process is not refused]
    _, errors = refused.communicate()
    assert refused.returncode == 1
    assert "trains this run; wait for it or end it" in errors.splitlines()[-1]
    other.send_signal(signal.SIGINT)
    assert other.wait() == 130


def test_a_full_disk_ends_with_one_line_and_loses_nothing_written(tiny, monkeypatch):
    config, folder = interrupted(tiny, monkeypatch)
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


def test_a_folder_that_is_removed_ends_the_run_with_one_line(tiny, monkeypatch):
    config, folder = interrupted(tiny, monkeypatch)
    write = RunLog.write

    def write_and_remove(self, step, row):
        if step == 7:
            shutil.rmtree(folder)
        return write(self, step, row)

    monkeypatch.setattr(RunLog, "write", write_and_remove)
    with pytest.raises((OSError, CheckpointError)) as raised:
        train_or_resume(config)
    assert str(folder) in str(raised.value) + str(getattr(raised.value, "filename", ""))


def test_a_run_says_in_which_other_environment_it_resumes(tiny, monkeypatch, capsys):
    config, folder = interrupted(tiny, monkeypatch)
    other = config.model_copy(update={"train": config.train.model_copy(update={"threads": 2})})
    train_or_resume(other)
    assert "resumes in another environment: threads 1 → 2" in capsys.readouterr().out
    assert read_json(folder / "environment.json")["earlier"][0]["threads"] == 1


def test_what_a_killed_process_left_is_removed_and_earlier_environments_are_kept(tiny, monkeypatch):
    config, folder = interrupted(tiny, monkeypatch)
    (folder / "checkpoints" / ".tmpAbC123").write_bytes(b"half of a checkpoint")
    environment = folder / "environment.json"
    environment.write_text(json.dumps(read_json(environment) | {"earlier": [{"threads": 7}]}))
    train_or_resume(config)
    assert not [*(folder / "checkpoints").glob(".*")]
    assert read_json(environment)["earlier"] == [{"threads": 7}]


def test_fresh_starts_over_to_the_same_bits(tiny):
    first = final_tensors(train_anew(tiny()))
    assert same_tensors(first, final_tensors(train_anew(tiny())))
