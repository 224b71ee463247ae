"""Faults of wandb: whatever happens to wandb, the run is the same, and one line reports the fault."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rundir import wandb_process, wandb_sink
from rundir.folder import read_status
from system import signals
from tests.conftest import ROOT, daily
from tests.helpers.runs import QUICK, final_tensors, metric_rows, same_tensors, train_or_resume
from tests.helpers.waiting import until
from tests.helpers.wandb_runs import (
    Failing,
    Server,
    after_row,
    children,
    history,
    lines_of_wandb,
    offline,
    records,
    same_as_without,
    serving,
    signalling,
    warnings_of_wandb,
    watched,  # noqa: F401 a fixture
    without_wandb,
)

pytestmark = pytest.mark.slow

LONG = ("train.steps=60", "train.eval_every=0", "train.checkpoint_every=0")
FAULTS = ("never answers", "refuses", "is no host", "fails", "has nowhere to write")


@pytest.mark.parametrize(
    ("name", "number", "warning"),
    daily(
        [
            ("wandb_process", signal.SIGKILL, "its process was killed"),
            ("wandb-core", signal.SIGKILL, "training is not affected"),
            ("wandb-core", signal.SIGSTOP, "gave up 3 s after the end"),
            ("wandb_process", signal.SIGTERM, ""),
            ("wandb_process", signal.SIGSTOP, "its process was killed"),
        ]
    ),
)
def test_wandb_killed_or_stopped_in_the_middle_costs_one_line(
    watched, tmp_path, monkeypatch, capsys, name, number, warning
):
    config = watched(*LONG)
    monkeypatch.setattr(wandb_sink, "FINISH_SECONDS", 3)
    sent = signalling(monkeypatch, name, number)
    started = time.monotonic()
    folder = train_or_resume(config)
    assert time.monotonic() - started < 60
    warnings = warnings_of_wandb(capsys)
    assert len(warnings) == (1 if warning else 0), warnings
    assert all(warning in line for line in warnings)
    monkeypatch.undo()
    assert same_as_without(config, folder, tmp_path)
    for pid, line in children(os.getpid()).items():
        assert "wandb_process" not in line, f"{pid} is left"
    for pid in sent:
        with contextlib.suppress(ProcessLookupError):  # a process that SIGSTOP stopped cannot end by itself
            os.kill(pid, signal.SIGKILL)


@pytest.mark.faults
@pytest.mark.parametrize("fault", daily(FAULTS))
def test_a_fault_of_wandb_costs_seconds_and_one_line_and_changes_no_bit(
    watched, tmp_path, monkeypatch, capsys, fault, record_property
):
    """The run takes longer than the attempt to connect."""
    monkeypatch.setattr(wandb_sink, "CONNECT_SECONDS", 2)
    config = watched("train.steps=1500", "train.log_every=50", "train.eval_every=0", "stats.every=0")
    if fault == "has nowhere to write":
        config = config.model_copy(update={"wandb": config.wandb.model_copy(update={"dir": "/proc/nope"})})

    def costs(config) -> tuple[Path, float, float]:
        """Return the run's folder, and the seconds before the first step and after the last row."""
        began = time.time()
        folder = train_or_resume(config)
        ended = time.time()
        last = (folder / "metrics.jsonl").stat().st_mtime
        return folder, last - began - metric_rows(folder)[-1]["seconds"], ended - last

    with serving(monkeypatch, Failing) as failing, socket.create_server(("127.0.0.1", 0)) as mute:
        others = {"refuses": "http://127.0.0.1:9", "is no host": "http://nowhere.invalid", "fails": failing}
        monkeypatch.setenv("WANDB_BASE_URL", others.get(fault, f"http://127.0.0.1:{mute.getsockname()[1]}"))
        folder, before, after = costs(config)
    [line] = lines_of_wandb(capsys)
    assert line.startswith("wandb: offline (no connection: ") or fault == "has nowhere to write"
    without, before_without, after_without = costs(without_wandb(config, tmp_path))
    record_property("R10 a fault of wandb, seconds more at the start", round(before - before_without, 1))
    record_property("R10 a fault of wandb, seconds more at the end", round(after - after_without, 1))
    assert before - before_without <= 15
    assert after - after_without <= 5
    assert same_tensors(final_tensors(folder), final_tensors(without))
    steps = [row["step"] for row in metric_rows(folder)]
    assert steps == [row["step"] for row in metric_rows(without)] == sorted({*steps})
    assert not list(tmp_path.glob("wandb/run-*"))  # the failed attempt left no folder
    for file in offline(tmp_path):
        assert history(file) == metric_rows(folder)


@pytest.mark.parametrize(
    ("fault", "warning"),
    daily(
        [
            ({}, ""),
            ({"refuses": True}, "step-00000006.safetensors: not uploaded (ValueError: "),
            ({"silent": "/upload"}, "gave up 9 s after the end"),
        ]
    ),
)
def test_online_the_server_gets_every_row_and_the_checkpoint_or_one_line_says_why_not(
    watched, tmp_path, monkeypatch, capsys, fault, warning
):
    def has_rows() -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):  # the file is being written
            return any(records("history", file) for file in tmp_path.glob("wandb/run-*/*.wandb"))
        return False

    seconds = 8 if "silent" in fault else 30  # and 1 for the checkpoint
    monkeypatch.setattr(wandb_sink, "FINISH_SECONDS", seconds)
    after_row(monkeypatch, 5, lambda: until(has_rows))  # so wandb's start is not part of these seconds
    config = watched("wandb.artifact=true")
    with serving(monkeypatch, **fault) as address:
        folder = train_or_resume(config)
    first, *warnings = lines_of_wandb(capsys)
    id_of_run = next(tmp_path.glob("wandb/run-*/*.wandb")).stem.removeprefix("run-")
    assert first == f"wandb: {address}/someone/normgpt/runs/{id_of_run}"
    assert len(warnings) == (1 if warning else 0), warnings
    assert all(warning in line for line in warnings)
    if "silent" not in fault:
        assert (folder / "checkpoints" / "step-00000006.safetensors").read_bytes() in Server.uploads
        assert [{k: v for k, v in row.items() if k[0] != "_"} for row in Server.history] == metric_rows(
            folder
        )
    [file] = tmp_path.glob("wandb/run-*/*.wandb")
    assert history(file) == metric_rows(folder)
    assert same_as_without(config, folder, tmp_path)


def test_where_no_process_can_be_started_training_continues_and_errors_are_not_reported_home(
    tiny, tmp_path, monkeypatch, capsys
):
    environments = []

    def refuse(arguments, env, **_):
        environments.append(env)
        raise OSError("no more processes")

    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
    monkeypatch.setattr(wandb_sink.subprocess, "Popen", refuse)
    (tmp_path / "metrics.jsonl").touch()
    with wandb_sink.copied_to_wandb("offline", tiny(), tmp_path, "group", 0):
        pass
    assert environments[0]["WANDB_ERROR_REPORTING"] == "false"
    assert "wandb: no more processes; training continues without wandb" in capsys.readouterr().out


@pytest.mark.faults
def test_a_signal_ends_the_wait_for_a_checkpoint(watched, monkeypatch, capsys):
    finish_seconds, began = wandb_process.finish_seconds, []

    def signalled(job):
        threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()
        began.append(time.monotonic())
        return finish_seconds(job)

    monkeypatch.setattr(wandb_process, "finish_seconds", signalled)
    config = watched("wandb.artifact=true")
    with serving(monkeypatch, silent="/upload"), pytest.raises(signals.Interrupted):
        train_or_resume(config)
    assert 2 <= time.monotonic() - began[0] < 6
    [folder] = Path(config.runs_dir).iterdir()
    assert read_status(folder)["state"] == "finished"
    for pid, line in children(os.getpid()).items():
        if "wandb_process" in line:
            os.kill(pid, signal.SIGKILL)
    until(lambda: "its process was killed" in capsys.readouterr().out)


@pytest.mark.faults
def test_a_killed_run_is_in_wandb_to_its_last_row(text_file, tmp_path):
    long = (*QUICK, "train.steps=100000", "train.log_every=1", "train.eval_every=0", "wandb.mode=offline")
    command = [sys.executable, str(ROOT / "train.py"), *long]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as run:
        until(lambda: offline(tmp_path))
        time.sleep(1)
        run.kill()
    [folder] = (tmp_path / "runs").iterdir()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    complete = [json.loads(line) for line in lines if line[-1] == "\n"]
    until(lambda: records("exit", offline(tmp_path)[0]), pause=0.2)
    assert history(offline(tmp_path)[0]) == complete
    assert len(complete) > 100
