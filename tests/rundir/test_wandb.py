"""wandb gets every row of metrics.jsonl once, under one id per run, and the last checkpoint if asked."""

import base64
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from rundir import wandb_process, wandb_sink
from rundir.folder import read_status
from system import signals
from system.errors import ConfigError
from tests.conftest import configured
from tests.helpers import leaks
from tests.helpers.programs import PATIENCE
from tests.helpers.runs import FAILING_NORM, QUICK, metric_rows, train_or_resume
from tests.helpers.waiting import until
from tests.helpers.wandb_runs import (
    KEY,
    WANDB,
    Server,
    after_row,
    history,
    lines_of_wandb,
    offline,
    records,
    serving,
    signalling,
    warnings_of_wandb,
    watched,  # noqa: F401 a fixture
)
from training import build


def stopped(config, monkeypatch, step: int) -> Path:
    """Return the folder of a run that a signal ended after the row of ``step``."""
    with monkeypatch.context() as patched:
        after_row(patched, step, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(signals.Interrupted):
            train_or_resume(config)
    [folder] = Path(config.runs_dir).iterdir()
    return folder


def test_without_a_key_a_run_is_offline_and_its_file_holds_every_row(watched, tmp_path, capsys):
    folder = train_or_resume(watched("norm=batchnorm", "train.eval_every=4", "wandb.tags=[a,b]"))
    [file] = offline(tmp_path)
    assert history(file) == metric_rows(folder)
    assert {"act.rms/00.mlp", "update.ratio/01", "val/batch_stats_gap"} <= set().union(*metric_rows(folder))
    [run] = records("run", file)
    stored = run["config"]["update"]
    assert stored["norm"]["_name_"] == "batchnorm"
    assert stored["certificate"]["start"]["causal"] is False
    assert (run["project"], run["tags"]) == ("normgpt", ["a", "b", "leaks"])
    assert run["run_group"].startswith("batchnorm-pre-")
    assert run["display_name"] == folder.name
    assert run["run_id"].startswith(folder.name)
    assert [record["exit_code"] for record in records("exit", file)] == [0]
    metrics = records("metric", file)
    axes = {metric.get("glob_name", metric.get("name")): metric.get("step_metric") for metric in metrics}
    assert axes == {"step": None, "tokens": None, "*": "step", "val/*": "tokens"}
    assert "wandb: offline; to watch it: wandb leet " in capsys.readouterr().out


@pytest.mark.slow
def test_a_leak_that_only_the_trained_model_has_is_marked(watched, tmp_path, monkeypatch):
    leak, real = leaks.LEAKS["late_schedule"]["norm"], build.bind
    monkeypatch.setattr(
        build, "bind", lambda group, *arguments: leak if group == "norm" else real(group, *arguments)
    )
    train_or_resume(watched("model.block_size=16", "train.steps=40", "train.eval_every=0", "stats.every=0"))
    *_, run = records("run", *offline(tmp_path))
    assert run["tags"] == ["leaks"]


@pytest.mark.long
def test_a_resumed_run_has_each_row_once_and_its_id_and_one_that_starts_over_another(
    watched, tmp_path, monkeypatch
):
    config = watched("train.steps=6", "norm=batchnorm")
    folder = stopped(config, monkeypatch, 3)
    assert history(*offline(tmp_path)) == metric_rows(folder)
    start = json.loads((folder / "certificate.json").read_text())["start"]
    train_or_resume(config)
    first, second = offline(tmp_path)
    assert history(first, second) == metric_rows(folder)
    assert [row["step"] for row in metric_rows(folder)] == list(range(7))
    assert [record["exit_code"] for record in records("exit", first, second)] == [1, 0]
    assert json.loads((folder / "certificate.json").read_text())["start"] == start
    train_or_resume(config.model_copy(update={"fresh": True}))
    ids = [record["run_id"] for record in records("run", *offline(tmp_path))]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.faults
def test_what_wandb_missed_before_is_copied_when_the_run_resumes(watched, tmp_path, monkeypatch):
    config = watched("train.steps=12", "train.eval_every=0")
    with monkeypatch.context() as patched:
        signalling(patched, "wandb_process", signal.SIGKILL)
        stopped(config, patched, 7)
    folder = train_or_resume(config)
    assert [row["step"] for row in history(offline(tmp_path)[-1])] == list(range(13))
    assert history(offline(tmp_path)[-1]) == metric_rows(folder)


@pytest.mark.slow
def test_an_artifact_is_the_last_checkpoint_of_a_finished_run_and_wandb_sync_leaves_it_there(
    watched, tmp_path, monkeypatch, capsys
):
    config = watched("norm=batchnorm", "wandb.artifact=true")
    named = config.norm.model_copy(update={"name": "batch+norm.é_2"})
    config = config.model_copy(update={"norm": named})
    stopped(config, monkeypatch, 3)
    folder = train_or_resume(config)
    assert not warnings_of_wandb(capsys)
    first, second = offline(tmp_path)
    assert not records("artifact", first)
    [artifact] = records("artifact", second)
    file = folder / "checkpoints" / "step-00000006.safetensors"
    content = file.read_bytes()
    assert artifact["type"] == "model"
    assert artifact["name"] == folder.name.replace("batch+norm.é_2", "batch-norm.-_2")
    assert {*artifact["aliases"]} == {"final", "latest"}
    status = read_status(folder)
    losses = {"val/full_loss": status["final"], "best": status["best"]}
    assert json.loads(artifact["metadata"]) == {"step": 6, "leaks": True} | losses
    [entry] = artifact["manifest"]["contents"]
    assert (entry["path"], entry["local_path"]) == (file.name, str(file))
    assert entry["digest"] == base64.b64encode(hashlib.md5(content).digest()).decode()

    with serving(monkeypatch):
        subprocess.run([WANDB, "sync", str(second.parent)], capture_output=True, timeout=PATIENCE, check=True)
    assert content in Server.uploads
    assert file.read_bytes() == content
    same_size = [f for f in tmp_path.rglob("*") if f.is_file() and f.stat().st_size == len(content)]
    assert {f.parent for f in same_size} == {file.parent}  # wandb made no copy


def test_a_checkpoint_that_is_missing_is_one_line(tmp_path, capsys):
    wandb_process.upload(None, tmp_path / "step-6.safetensors", {})
    [line] = lines_of_wandb(capsys)
    assert "step-6.safetensors: not uploaded (ValueError: Path is not a file" in line


def test_the_longest_wait_grows_with_the_checkpoint(tiny):
    folder = train_or_resume(tiny())
    size = (folder / "checkpoints" / "step-00000006.safetensors").stat().st_size
    longest = wandb_sink.FINISH_SECONDS + math.ceil(size / wandb_process.UPLOAD_RATE)
    for config, seconds in ((tiny("wandb.artifact=true"), longest), (tiny(), wandb_sink.FINISH_SECONDS)):
        assert wandb_process.finish_seconds(wandb_sink.job_of(config, folder, "group", 0)) == seconds


def test_half_a_row_waits_for_its_other_half(tmp_path, monkeypatch):
    logged, ended = [], threading.Event()

    run = MagicMock(summary={}, log=lambda row, step, commit: logged.append(row))
    (tmp_path / "status.json").write_text('{"state": "finished", "best": null}')
    (tmp_path / "wandb.json").write_text('{"id": "x", "copied": 0}')
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 0}\n{"step"')
    monkeypatch.setattr(wandb_process, "POLL", 0.01)
    monkeypatch.setattr(wandb_process, "FLUSH", 0.01)
    monkeypatch.setattr(wandb_process, "begin", lambda job: run)
    job = {
        "folder": str(tmp_path),
        "offset": 0,
        "init": {"id": "x", "config": {"certificate": {}}},
        "checkpoint": None,
    }
    copying = threading.Thread(target=wandb_process.copy_rows, args=(job, ended))
    copying.start()
    assert until(lambda: json.loads((tmp_path / "wandb.json").read_text())["copied"]) == len('{"step": 0}\n')
    with file.open("a") as stream:
        stream.write(': 1}\n{"step": 2')
    ended.set()
    copying.join()
    assert logged == [{"step": 0}, {"step": 1}]
    copied = len('{"step": 0}\n{"step": 1}\n')
    assert json.loads((tmp_path / "wandb.json").read_text()) == {"id": "x", "copied": copied}


@pytest.mark.slow
@pytest.mark.faults
def test_each_job_of_a_sweep_is_a_wandb_run_of_its_own_also_after_one_that_failed(
    command, text_file, tmp_path
):
    (tmp_path / "fails.py").write_text(FAILING_NORM)
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "fails.yaml").write_text("_target_: fails.Fails\n")
    done = command(
        *("train.py", "--config-dir", str(tmp_path), "-m", *QUICK, "norm=fails,none", "wandb.mode=offline"),
        PYTHONPATH=str(tmp_path),
    )
    assert done.returncode == 1
    folders = [next((tmp_path / "runs").glob(f"{norm}-*")) for norm in ("fails", "none")]
    first, second = offline(tmp_path)
    assert [history(first), history(second)] == [metric_rows(folder) for folder in folders]
    assert [record["exit_code"] for record in records("exit", first, second)] == [1, 0]


@pytest.mark.slow
def test_a_diverged_run_has_its_histograms_and_its_best_in_wandb(watched, tmp_path, capsys):
    wild = ("norm=none", "optim.learning_rate=100", "train.grad_clip=0", "train.steps=20")
    watching = ("train.eval_every=1", "stats.every=1", "stats.histograms_every=1", "wandb.artifact=true")
    folder = train_or_resume(watched(*wild, *watching))
    assert read_status(folder)["state"] == "diverged"
    [file] = offline(tmp_path)
    assert not records("artifact", file)
    assert not warnings_of_wandb(capsys)
    logged = history(file)
    assert len(logged) == len(metric_rows(folder))
    assert logged[0]["hist.act/00.mlp._type"] == "histogram"
    summary = {k: v for record in records("summary", file) for k, v in record["update"].items()}
    assert summary["state"] == "diverged"
    best = read_status(folder)["best"]["val/loss"]
    assert summary["best/val/loss"] == pytest.approx(best)  # wandb writes a large float as an integer


def test_a_histogram_of_non_finite_numbers_is_their_count():
    value = {"low": "Infinity", "high": "-Infinity", "nonfinite": 7, "counts": [0, 0]}
    row = wandb_process.wandb_row({"step": 1, "hist.act/embed": value, "x": "NaN", "y": "-Infinity"})
    assert row.keys() == {"step", "nonfinite.act/embed", "x", "y"}
    assert math.isnan(row["x"])
    assert row["y"] == -math.inf


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "key", "mode", "line"),
    [
        ("disabled", KEY, "auto", "wandb: disabled by its own settings"),
        ("offline", KEY, "online", "wandb: offline (its own settings say offline); to watch it"),
        ("offline", KEY, "auto", "wandb: offline; to watch it"),
        ("online", "", "online", "wandb: offline (no key; run wandb login); to watch it"),
        pytest.param("online", "abc", "auto", "wandb: offline (", marks=pytest.mark.faults),
    ],
)
def test_wandbs_own_settings_and_key_decide(watched, tmp_path, monkeypatch, capsys, setting, key, mode, line):
    (tmp_path / "settings").write_text(f"[default]\nmode = {setting}\n")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", key)
    folder = train_or_resume(watched(f"wandb.mode={mode}"))
    [printed] = lines_of_wandb(capsys)
    assert printed.startswith(line)
    assert [history(file) for file in offline(tmp_path)] == [metric_rows(folder)] * (setting != "disabled")


@pytest.mark.slow
def test_wandbs_own_variables_are_read(watched, tmp_path, monkeypatch):
    for name, value in {"PROJECT": "p", "RUN_GROUP": "g", "TAGS": "a,b", "DIR": str(tmp_path / "d")}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    now = configured.__wrapped__()  # composed anew: the cached config lacks these variables
    train_or_resume(watched().model_copy(update={"wandb": now.wandb}))
    [run] = records("run", *offline(tmp_path / "d"))
    assert (run["project"], run["run_group"], run["tags"]) == ("p", "g", ["a", "b"])


def test_wandb_mode_of_the_environment(tiny, monkeypatch):
    for value, mode in (("dryrun", "offline"), ("OFFLINE", "offline"), ("", "auto")):
        monkeypatch.setenv("WANDB_MODE", value)
        assert wandb_sink.wandb_mode(tiny()) == mode
        assert wandb_sink.wandb_mode(tiny("wandb.mode=online")) == "online"
    monkeypatch.setenv("WANDB_MODE", "ofline")
    with pytest.raises(ConfigError, match="WANDB_MODE: invalid value 'ofline'; expected one of auto, online"):
        wandb_sink.wandb_mode(tiny())


@pytest.mark.slow
@pytest.mark.parametrize("has_a_folder_of_that_name", [False, True])
def test_without_wandb_auto_is_one_line_and_another_mode_an_error(
    tiny, tmp_path, monkeypatch, capsys, has_a_folder_of_that_name
):
    configs = tiny(), tiny("wandb.mode=offline")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k.split(".")[0] != "wandb"})
    if has_a_folder_of_that_name:
        (tmp_path / "wandb").mkdir()
    with pytest.raises(ConfigError, match=r"wandb.mode: offline needs wandb; run pip install wandb"):
        wandb_sink.wandb_mode(configs[1])
    assert wandb_sink.wandb_mode(configs[0]) == "disabled"
    assert capsys.readouterr().out.count("wandb: not installed") == 1
