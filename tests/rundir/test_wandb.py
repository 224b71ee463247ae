"""wandb has every row of metrics.jsonl, and whatever becomes of wandb, the run is the same."""

import base64
import contextlib
import gzip
import hashlib
import http.server
import json
import math
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from rundir import wandb_process, wandb_sink
from rundir.folder import read_status
from rundir.metrics import Metrics
from system import signals
from system.errors import ConfigError
from tests.conftest import ROOT, configured, daily
from tests.helpers.runs import FAILS, QUICK, final, go, rows, same

KEY = "0" * 40
LONG = ("train.steps=60", "train.eval_every=0", "train.checkpoint_every=0")


def inspected(file: Path) -> list[dict]:
    """The records of a .wandb file, read by wandb's own reader."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def offline(folder: Path) -> list[Path]:
    """The .wandb files there, the oldest first."""
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime)


def records(kind: str, *files: Path) -> list[dict]:
    """Those of one kind."""
    return [record[kind] for file in files for record in inspected(file) if record["type"] == kind]


def history(file: Path) -> list[dict]:
    """The logged rows, without what wandb adds."""
    items = [record["item"] for record in records("history", file)]
    return [{k: v for k, v in item.items() if not k.startswith("_")} for item in items]


def stopped(config, monkeypatch, step: int) -> None:
    """Train until that step's row, where a signal comes."""
    write = Metrics.write

    def write_and_stop(self, row):
        write(self, row)
        if row["step"] == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Metrics, "write", write_and_stop)
        with pytest.raises(signals.Interrupted):
            go(config)


@pytest.fixture
def watched(tiny, tmp_path, monkeypatch):
    """The config of a run that wandb copies into tmp_path/wandb, where nobody is logged in."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))

    def make(*overrides: str):
        return tiny(f"wandb.dir={tmp_path}", "stats.every=2", *overrides)

    return make


def test_without_a_key_a_run_is_offline_and_its_file_holds_every_row(watched, tmp_path, capsys):
    config = watched("norm=batchnorm", "train.eval_every=4", "wandb.tags=[a,b]")
    folder = go(config)
    [file] = offline(tmp_path)
    assert history(file) == rows(folder)
    assert {"act.rms/00.mlp", "update.ratio/01", "val/batch_stats_gap"} <= set().union(*rows(folder))
    [run] = records("run", file)
    stored = run["config"]["update"]
    assert stored["norm"]["_name_"] == "batchnorm"
    assert stored["certificate"]["causal"] is False
    assert run["project"] == "normgpt"
    assert run["tags"] == ["a", "b", "leaks"]
    assert run["display_name"] == folder.name
    assert run["run_id"].startswith(folder.name)
    [exited] = records("exit", file)
    assert exited["exit_code"] == 0
    metrics = records("metric", file)
    axes = {metric.get("glob_name", metric.get("name")): metric.get("step_metric") for metric in metrics}
    assert axes == {"step": None, "tokens": None, "*": "step", "val/*": "tokens"}
    assert "wandb: offline; watch" in capsys.readouterr().out


@pytest.mark.faults
def test_runs_that_differ_in_their_seed_share_a_group_and_no_others_do(watched, tmp_path):
    for override in ("seed=0", "seed=1", "norm=none"):
        go(watched(override, "train.steps=1"))
    groups = [record["run_group"] for record in records("run", *offline(tmp_path))]
    assert groups[0] == groups[1] != groups[2]


def test_a_run_that_goes_on_has_each_row_once_and_keeps_its_id(watched, tmp_path, monkeypatch):
    config = watched("train.steps=6")
    stopped(config, monkeypatch, 3)
    folder = go(config)
    first, second = offline(tmp_path)
    assert history(first) + history(second) == rows(folder)
    assert [row["step"] for row in rows(folder)] == list(range(7))
    assert len({record["run_id"] for record in records("run", first, second)}) == 1
    assert [record["exit_code"] for record in records("exit", first, second)] == [1, 0]


@pytest.mark.faults
def test_what_wandb_missed_before_is_copied_when_the_run_goes_on(watched, tmp_path, monkeypatch):
    config = watched("train.steps=12", "train.eval_every=0")
    with monkeypatch.context() as patched:
        signalling(patched, "wandb_sink", signal.SIGKILL)
        stopped(config, patched, 7)
    folder = go(config)
    assert [row["step"] for row in history(offline(tmp_path)[-1])] == list(range(13))
    assert history(offline(tmp_path)[-1]) == rows(folder)


def test_a_certificate_is_of_the_start_and_stays_when_the_run_goes_on(watched, monkeypatch):
    config = watched("train.steps=6", "norm=batchnorm")
    stopped(config, monkeypatch, 3)
    [folder] = Path(config.runs_dir).iterdir()
    before = (folder / "certificate.json").read_bytes()
    go(config)
    assert (folder / "certificate.json").read_bytes() == before


def test_an_artifact_is_the_last_checkpoint_of_a_run_that_finishes_and_wandb_sync_leaves_it_there(
    watched, tmp_path, monkeypatch, capsys
):
    config = watched("norm=batchnorm", "wandb.artifact=true")
    named = config.norm.model_copy(update={"name": "batch+norm.é_2"})
    config = config.model_copy(update={"norm": named})
    stopped(config, monkeypatch, 3)
    folder = go(config)
    assert "not uploaded" not in capsys.readouterr().out
    first, second = offline(tmp_path)
    assert not records("artifact", first)
    [artifact] = records("artifact", second)
    file = folder / "checkpoints" / "step-00000006.safetensors"
    whole = file.read_bytes()
    assert artifact["type"] == "model"
    assert artifact["name"] == folder.name.replace("batch+norm.é_2", "batch-norm.-_2")
    assert {*artifact["aliases"]} == {"final", "latest"}
    status = read_status(folder)
    losses = {"val/full_loss": status["final"], "best": status["best"]}
    assert json.loads(artifact["metadata"]) == {"step": 6, "leaks": True} | losses
    [entry] = artifact["manifest"]["contents"]
    assert (entry["path"], entry["local_path"]) == (file.name, str(file))
    assert entry["digest"] == base64.b64encode(hashlib.md5(whole).digest()).decode()

    with serving(monkeypatch):
        command = [str(Path(sys.executable).with_name("wandb")), "sync", str(second.parent)]
        subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert whole in Server.uploads
    assert file.read_bytes() == whole
    others = [left for left in tmp_path.rglob("*") if left.is_file() and left.stat().st_size == len(whole)]
    assert {left.parent for left in others} == {file.parent}  # wandb made no copy


@pytest.mark.faults
def test_a_checkpoint_that_is_not_there_is_one_line(watched, tmp_path, monkeypatch, capsys):
    wandb_end = wandb_sink.wandb_end

    def after_a_loss(config, folder):
        for file in (folder / "checkpoints").iterdir():
            file.unlink()
        return wandb_end(config, folder)

    monkeypatch.setattr(wandb_sink, "wandb_end", after_a_loss)
    folder = go(watched("wandb.artifact=true"))
    lines = [line for line in capsys.readouterr().out.splitlines() if "uploaded" in line]
    assert len(lines) == 1
    assert "step-00000006.safetensors: not uploaded (ValueError: Path is not a file" in lines[0]
    [file] = offline(tmp_path)
    assert not records("artifact", file)
    assert history(file) == rows(folder)
    assert records("exit", file)[0]["exit_code"] == 0


def test_the_longest_wait_is_of_the_checkpoint_s_size(tiny):
    config = tiny("wandb.artifact=true")
    folder = go(config)
    size = (folder / "checkpoints" / "step-00000006.safetensors").stat().st_size
    assert wandb_sink.wandb_end(config, folder)["last"] == wandb_sink.LAST + math.ceil(
        size / wandb_sink.SLOWEST
    )
    assert wandb_sink.wandb_end(tiny(), folder) == {"last": wandb_sink.LAST, "artifact": None}


def test_half_a_row_waits_for_its_other_half(tmp_path, monkeypatch):
    logged, over = [], threading.Event()

    class Run:
        dir, summary = str(tmp_path / "wandb" / "run" / "files"), {}

        def define_metric(self, *_: object, **__: object) -> None: ...
        def finish(self, exit_code: int) -> None: ...
        def log(self, row, step, commit):
            logged.append(row)

    (tmp_path / "wandb").mkdir()
    (tmp_path / "status.json").write_text('{"state": "finished", "best": null}')
    (tmp_path / "wandb.json").write_text('{"id": "x", "copied": 0}')
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 0}\n{"step"')
    monkeypatch.setattr(wandb_process, "POLL", 0.01)
    monkeypatch.setattr(wandb_process, "FLUSH", 0.01)
    monkeypatch.setattr(wandb_process, "begin", lambda job: Run())
    job = {"folder": str(tmp_path), "offset": 0, "init": {"id": "x"}, "artifact": None}
    copying = threading.Thread(target=wandb_process.copy, args=(job, over))
    copying.start()
    deadline = time.monotonic() + 60
    while (copied := json.loads((tmp_path / "wandb.json").read_text())["copied"]) == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert copied == len('{"step": 0}\n')
    with file.open("a") as stream:
        stream.write(': 1}\n{"step": 2')
    over.set()
    copying.join()
    assert logged == [{"step": 0}, {"step": 1}]
    assert json.loads((tmp_path / "wandb.json").read_text()) == {
        "id": "x",
        "copied": len('{"step": 0}\n{"step": 1}\n'),
    }


@pytest.mark.faults
def test_a_run_that_starts_over_is_another_wandb_run(watched, tmp_path):
    config = watched("train.steps=1")
    go(config)
    go(config.model_copy(update={"fresh": True}))
    ids = {file.stem for file in offline(tmp_path)}
    assert len(ids) == 2


@pytest.mark.faults
def test_each_job_of_a_sweep_is_a_wandb_run_of_its_own_also_after_one_that_failed(
    command, text_file, tmp_path
):
    (tmp_path / "fails.py").write_text(FAILS)
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "fails.yaml").write_text("_target_: fails.Fails\n")
    done = command(
        *("train.py", "--config-dir", str(tmp_path), "-m", *QUICK, "norm=fails,none", "wandb.mode=offline"),
        PYTHONPATH=str(tmp_path),
    )
    assert done.returncode == 1
    folders = {
        folder.name.split("-")[0]: folder for folder in (tmp_path / "runs").iterdir() if folder.name[0] != "."
    }
    first, second = offline(tmp_path)
    assert history(first) == rows(folders["fails"])
    assert history(second) == rows(folders["none"])
    assert [record["exit_code"] for record in records("exit", first, second)] == [1, 0]


def test_a_diverged_run_has_its_histograms_and_its_best_in_wandb(watched, tmp_path, capsys):
    wild = (
        "norm=none",
        "optim.learning_rate=10",
        "train.grad_clip=0",
        "train.steps=20",
        "train.eval_every=1",
    )
    folder = go(watched(*wild, "stats.every=1", "stats.histograms_every=1", "wandb.artifact=true"))
    assert read_status(folder)["state"] == "diverged"
    [file] = offline(tmp_path)
    assert not records("artifact", file)
    assert "not uploaded" not in capsys.readouterr().out
    logged = history(file)
    assert len(logged) == len(rows(folder))
    assert logged[0]["hist.act/00.mlp._type"] == "histogram"
    summary = {k: v for record in records("summary", file) for k, v in record["update"].items()}
    assert summary["state"] == "diverged"
    assert summary["best/val/loss"] == read_status(folder)["best"]["val/loss"]


def test_a_histogram_of_numbers_that_are_not_finite_is_their_number():
    value = {"low": "Infinity", "high": "-Infinity", "nonfinite": 7, "counts": [0, 0]}
    assert wandb_process.logged({"step": 1, "hist.act/embed": value, "x": "NaN"}).keys() == {
        "step",
        "nonfinite.act/embed",
        "x",
    }
    assert math.isnan(wandb_process.logged({"x": "NaN"})["x"])
    assert wandb_process.logged({"x": "-Infinity"})["x"] == -math.inf


# faults --------------------------------------------------------------------------------------------------


def children(of: int) -> dict[int, str]:
    """Process numbers and command lines of all that descends from a process."""
    parents, lines = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                lines[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    found = {of}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: lines[pid] for pid in found - {of}}


def signalling(monkeypatch, name: str, number: int) -> list[int]:
    """At step 5, wait until wandb has its file, and signal each process of that name below this one.

    Returns a list that will hold their numbers."""
    write, sent = Metrics.write, []

    def write_and_signal(self, row):
        write(self, row)
        deadline = time.monotonic() + 60
        while row["step"] == 5 and not sent:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            if list(Path(os.environ["HOME"]).glob("wandb/*/*.wandb")):
                sent.extend(pid for pid, line in children(os.getpid()).items() if name in line)
                for pid in sent:
                    os.kill(pid, number)

    monkeypatch.setattr(Metrics, "write", write_and_signal)
    return sent


def same_as_without(config, folder: Path, tmp_path: Path) -> bool:
    """Whether the run in ``folder`` ended as one without wandb does."""
    off = config.wandb.model_copy(update={"mode": "disabled"})
    without = go(config.model_copy(update={"wandb": off, "runs_dir": str(tmp_path / "without")}))
    return same(final(folder), final(without)) and len(rows(folder)) == len(rows(without))


@pytest.mark.parametrize(
    ("name", "number", "said"),
    daily(
        [
            ("wandb_sink", signal.SIGKILL, "its process was ended"),
            ("wandb-core", signal.SIGKILL, "the run goes on without it"),
            ("wandb-core", signal.SIGSTOP, "not done 3 s after the end"),
            ("wandb_sink", signal.SIGTERM, ""),
            ("wandb_sink", signal.SIGSTOP, "its process was ended"),
        ]
    ),
)
def test_wandb_killed_or_stopped_in_the_middle_costs_one_line(
    watched, tmp_path, monkeypatch, capsys, name, number, said
):
    config = watched(*LONG)
    monkeypatch.setattr(wandb_sink, "LAST", 3)
    sent = signalling(monkeypatch, name, number)
    started = time.monotonic()
    folder = go(config)
    assert time.monotonic() - started < 60
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wandb: ")]
    warnings = [line for line in lines if "offline; watch" not in line and "waiting" not in line]
    assert len(warnings) == (1 if said else 0), lines
    assert all(said in line for line in warnings)
    monkeypatch.undo()
    assert same_as_without(config, folder, tmp_path)
    for pid, line in children(os.getpid()).items():
        assert "wandb_sink" not in line, f"{pid} is left"
    for pid in sent:
        with contextlib.suppress(ProcessLookupError):  # a stopped one cannot end by itself
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def server(answers: bool):
    """The address of a server that closes every connection at once, or never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = listening.accept()[0]
                    connection.close() if answers else kept.append(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    for connection in kept:
        connection.close()


@pytest.mark.parametrize("answers", daily([True, False]))
def test_a_server_that_refuses_or_never_answers_leaves_an_offline_run(
    watched, tmp_path, monkeypatch, capsys, answers
):
    monkeypatch.setattr(wandb_sink, "CONNECT", 2)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    config = watched("wandb.mode=auto")
    with server(answers) as address:
        monkeypatch.setenv("WANDB_BASE_URL", address)
        started = time.monotonic()
        folder = go(config)
        assert time.monotonic() - started < 60
    out = capsys.readouterr().out
    assert out.count("this run is offline") == 1
    assert not list(tmp_path.glob("wandb/run-*"))  # what the attempt left
    [file] = offline(tmp_path)
    assert history(file) == rows(folder)
    assert same_as_without(config, folder, tmp_path)


class Failing(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"] or 0))
        self.send_error(500)

    def log_message(self, *_: object) -> None:
        pass


FAULTS = ("refuses", "hangs up", "never answers", "is no host", "fails", "has nowhere to write")


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_wandb_costs_seconds_and_changes_no_bit(
    watched, tmp_path, monkeypatch, fault, record_property
):
    """In a run that is longer than the attempt to reach it."""
    failing = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    threading.Thread(target=failing.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    config = watched("train.steps=5000", "train.log_every=50", "train.eval_every=0", "stats.every=0")
    if fault == "has nowhere to write":
        config = config.model_copy(update={"wandb": config.wandb.model_copy(update={"dir": "/proc/nope"})})
    off = config.model_copy(update={"wandb": config.wandb.model_copy(update={"mode": "disabled"})})
    off = off.model_copy(update={"runs_dir": str(tmp_path / "without")})

    def costs(config) -> tuple[Path, float, float]:
        """The run, and its seconds before its first step and after its last."""
        began = time.time()
        folder = go(config)
        ended = time.time()
        last = (folder / "metrics.jsonl").stat().st_mtime
        return folder, last - began - rows(folder)[-1]["seconds"], ended - last

    with server(fault == "hangs up") as silent:
        address = {
            "refuses": "http://127.0.0.1:9",
            "is no host": "http://nowhere.invalid",
            "fails": f"http://127.0.0.1:{failing.server_port}",
        }
        monkeypatch.setenv("WANDB_BASE_URL", address.get(fault, silent))
        folder, before, after = costs(config)
    without, before_without, after_without = costs(off)
    failing.shutdown()
    failing.server_close()
    record_property("R10 a fault of wandb, seconds more at the start", round(before - before_without, 1))
    record_property("R10 a fault of wandb, seconds more at the end", round(after - after_without, 1))
    assert before - before_without <= 15
    assert after - after_without <= 5
    assert same(final(folder), final(without))
    steps = [row["step"] for row in rows(folder)]
    assert steps == [row["step"] for row in rows(without)] == sorted({*steps})
    for file in offline(tmp_path):
        assert history(file) == rows(folder)


class Server(http.server.BaseHTTPRequestHandler):
    """As much of wandb's server as a run and its checkpoint need. It keeps the history and the files that it
    is sent; it may refuse files, and is silent where a path begins with ``silent``."""

    history: ClassVar[list[dict]] = []
    uploads: ClassVar[list[bytes]] = []
    silent: ClassVar[str] = "none"
    refuses: ClassVar[bool] = False

    def do_PUT(self) -> None:
        self.uploads.append(self.rfile.read(int(self.headers["content-length"])))
        self.answer(403 if self.refuses else 200, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        if not self.path.startswith(("/graphql", "/files/")):  # about wandb itself
            return self.answer(200, b"{}")
        asked = json.loads(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
        rows = asked.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
        self.history.extend(json.loads(row) for row in rows)
        operation = re.search(r"(?:query|mutation) (\w+)", asked.get("query", ""))
        data = self.found(operation[1], asked.get("variables", {}).get("name")) if operation else {}
        return self.answer(200, json.dumps({"data": data}).encode())

    def found(self, operation: str, name: str) -> dict:
        project = {"id": "p", "name": "normgpt", "entity": {"id": "e", "name": "someone"}, "internalId": "p"}
        bucket = {"id": "b", "name": name, "displayName": name, "config": "{}", "historyLineCount": 0}
        upload = {"uploadUrl": f"http://{self.headers['host']}/upload", "uploadHeaders": []}
        file = upload | {"storagePath": "s", "uploadMultipartUrls": None, "artifact": {"id": "a"}}
        sequence = {"__typename": "ArtifactSequence", "id": "s", "name": "n", "project": project}
        artifact = {"id": "a", "digest": "d", "artifactSequence": sequence | {"latestArtifact": None}}
        stored = {"__typename": "Artifact", "versionIndex": 0, "artifactType": {"name": "model"}, "tags": []}
        stored |= {"ttlIsInherited": True, "state": "COMMITTED", "size": 1, "fileCount": 1, "aliases": []}
        stored |= {"createdAt": "2026-01-01T00:00:00", "ttlDurationSeconds": -1}
        nothing = ("description", "metadata", "historyStep", "commitHash", "updatedAt")
        return {
            "UpsertBucket": {"upsertBucket": {"bucket": bucket | {"project": project}, "inserted": True}},
            "CreateRunFiles": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}},
            "Viewer": {"viewer": {"id": "v", "entity": "someone", "username": "someone", "flags": "{}"}},
            "ArtifactType": {"project": None},
            "CreateArtifact": {"createArtifact": {"artifact": artifact | {"state": "PENDING"}}},
            "CreateArtifactManifest": {
                "createArtifactManifest": {"artifactManifest": {"id": "m", "file": {"id": "f"} | upload}}
            },
            "CreateArtifactFiles": {"createArtifactFiles": {"files": {"edges": [{"node": file}]}}},
            "CommitArtifact": {"commitArtifact": {"artifact": artifact}},
            "ArtifactByID": {"artifact": dict.fromkeys(nothing) | artifact | stored},
        }.get(operation, {})

    def answer(self, status: int, content: bytes) -> None:
        if self.path.startswith(self.silent):
            time.sleep(30)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(monkeypatch, **how):
    """The address of a Server on which wandb is logged in."""
    for name, value in ({"history": [], "uploads": []} | how).items():
        monkeypatch.setattr(Server, name, value)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.socket.close()


@pytest.mark.parametrize(
    ("fault", "said"),
    daily(
        [
            ({}, ""),
            ({"refuses": True}, "step-00000006.safetensors: not uploaded (ValueError: "),
            ({"silent": "/upload"}, "not done 4 s after the end"),
        ]
    ),
)
def test_online_a_checkpoint_is_uploaded_or_that_is_one_line(watched, monkeypatch, capsys, fault, said):
    monkeypatch.setattr(wandb_sink, "LAST", 3)  # and one of the checkpoint
    with serving(monkeypatch, **fault):
        folder = go(watched("wandb.artifact=true"))
    file = folder / "checkpoints" / "step-00000006.safetensors"
    assert file.read_bytes() in Server.uploads
    out = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wandb: ")]
    warnings = [line for line in out[1:] if "waiting" not in line]
    assert len(warnings) == (1 if said else 0), out
    assert all(said in line for line in warnings)
    waiting = "wandb: waiting for it, 4 seconds at most: the checkpoint at 1 MB/s, and 3"
    assert not fault.get("silent") or waiting in out


@pytest.mark.faults
def test_a_signal_ends_the_wait_for_a_checkpoint(watched, monkeypatch, capsys):
    wandb_end, began = wandb_sink.wandb_end, []

    def signalled(config, folder):
        threading.Timer(4, os.kill, (os.getpid(), signal.SIGINT)).start()
        began.append(time.monotonic())
        return wandb_end(config, folder)

    monkeypatch.setattr(wandb_sink, "wandb_end", signalled)
    config = watched("wandb.artifact=true")
    with serving(monkeypatch, silent="/upload"), pytest.raises(signals.Interrupted):
        go(config)
    assert 4 <= time.monotonic() - began[0] < 8
    [folder] = Path(config.runs_dir).iterdir()
    assert read_status(folder)["state"] == "finished"
    for pid, line in children(os.getpid()).items():
        if "wandb_sink" in line:
            os.kill(pid, signal.SIGKILL)
    while "its process was ended" not in capsys.readouterr().out:
        assert time.monotonic() - began[0] < 60
        time.sleep(0.1)


@pytest.mark.parametrize("silent", daily([False, True]))
def test_online_the_server_gets_every_row_and_may_fall_silent(watched, tmp_path, monkeypatch, capsys, silent):
    monkeypatch.setattr(wandb_sink, "LAST", 4)
    config = watched()
    with serving(monkeypatch, silent="/files/" if silent else "none") as address:
        folder = go(config)
    out = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wandb: ")]
    assert f"wandb: {address}/someone/normgpt/runs/{folder.name}" in out[0]
    if not silent:
        got = [{k: v for k, v in row.items() if k[0] != "_"} for row in Server.history]
        assert got == rows(folder)
        assert len(out) == 1
    else:
        assert "not done 4 s after the end" in out[-1]
    [file] = tmp_path.glob("wandb/run-*/*.wandb")
    assert history(file) == rows(folder)
    assert same_as_without(config, folder, tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("mode", ["auto", "online"])
def test_a_key_that_is_none_leaves_an_offline_run(watched, tmp_path, monkeypatch, capsys, mode):
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    folder = go(watched(f"wandb.mode={mode}"))
    assert capsys.readouterr().out.count("this run is offline") == 1
    assert history(offline(tmp_path)[0]) == rows(folder)


@pytest.mark.parametrize(
    ("setting", "mode", "said", "files"),
    [
        ("disabled", "auto", "wandb: disabled by its own settings", 0),
        ("offline", "online", "its own settings say offline; this run is offline", 1),
        ("offline", "auto", "wandb: offline; watch", 1),
    ],
)
def test_wandbs_own_settings_are_heard(watched, tmp_path, monkeypatch, capsys, setting, mode, said, files):
    (tmp_path / "settings").write_text(f"[default]\nmode = {setting}\n")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    go(watched(f"wandb.mode={mode}"))
    assert said in capsys.readouterr().out
    assert len(offline(tmp_path)) == files


def test_wandbs_own_variables_are_heard(watched, tmp_path, monkeypatch):
    for name, value in {"PROJECT": "p", "RUN_GROUP": "g", "TAGS": "a,b", "DIR": str(tmp_path / "d")}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    now = configured.__wrapped__()  # not the one that was composed without them
    config = watched().model_copy(update={"wandb": now.wandb})
    go(config)
    [run] = records("run", *offline(tmp_path / "d"))
    assert (run["project"], run["run_group"], run["tags"]) == ("p", "g", ["a", "b"])


def test_wandb_mode_of_the_environment(tiny, monkeypatch):
    for said, mode in (("dryrun", "offline"), ("OFFLINE", "offline"), ("disabled", "disabled"), ("", "auto")):
        monkeypatch.setenv("WANDB_MODE", said)
        assert wandb_sink.wandb_mode(tiny()) == mode
        assert wandb_sink.wandb_mode(tiny("wandb.mode=online")) == "online"
    monkeypatch.setenv("WANDB_MODE", "ofline")
    with pytest.raises(
        ConfigError, match="WANDB_MODE: should be one of auto, online, offline, disabled, not 'ofline'"
    ):
        wandb_sink.wandb_mode(tiny())


@pytest.mark.faults
def test_a_reader_that_has_gone_is_no_traceback(tmp_path, text_file):
    script = f"{sys.executable} {ROOT / 'train.py'} {' '.join(QUICK)} wandb.mode=offline | head -3"
    done = subprocess.run(script, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


def test_online_without_a_key_is_offline_and_says_so(watched, tmp_path, capsys):
    folder = go(watched("wandb.mode=online"))
    assert "no key was found" in capsys.readouterr().out
    assert history(offline(tmp_path)[0]) == rows(folder)


@pytest.mark.faults
def test_on_a_terminal_nothing_is_asked(tmp_path, text_file):
    terminal, side = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")} | {
        "HOME": str(tmp_path)
    }
    with subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *QUICK],
        cwd=tmp_path,
        env=environment,
        stdin=side,
        stdout=side,
        stderr=side,
    ) as process:
        os.close(side)
        out = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody is there any more
            while chunk := os.read(terminal, 65536):
                out += chunk
        os.close(terminal)
        assert process.wait(timeout=60) == 0
    assert b"wandb: offline; watch" in out
    assert b"finished" in out


def test_a_folder_that_cannot_be_written_is_said_and_another_used(watched, tmp_path, monkeypatch, capsys):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    config = watched(f"wandb.dir={tmp_path}/text.txt/x")
    folder = go(config)
    out = capsys.readouterr().out
    assert out.count("text.txt/x cannot be written") + out.count("the run goes on without it") == 1
    assert same_as_without(config, folder, tmp_path)


@pytest.mark.faults
def test_a_full_disk_is_said_once(watched, tmp_path, capsys):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        config = watched(
            *LONG, f"wandb.dir={small}", "stats.every=1", 'stats.metrics=["*"]', "wandb.artifact=true"
        )
        folder = go(config)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wandb: ")]
    warnings = [line for line in lines if "offline; watch" not in line]
    assert len(warnings) == 1, lines
    assert "No space left on device" in warnings[0]
    assert same_as_without(config, folder, tmp_path)


@pytest.mark.faults
def test_a_killed_run_is_in_wandb_to_its_last_row(command, text_file, tmp_path):
    long = (*QUICK, "train.steps=100000", "train.log_every=1", "train.eval_every=0", "wandb.mode=offline")
    with subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *long], cwd=tmp_path, stdout=subprocess.DEVNULL
    ) as run:
        deadline = time.monotonic() + 60
        while not offline(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1)
        run.kill()
    [folder] = (tmp_path / "runs").iterdir()
    whole = [
        json.loads(line)
        for line in (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        if line[-1] == "\n"
    ]
    while time.monotonic() < deadline and not records("exit", offline(tmp_path)[0]):
        time.sleep(0.2)
    assert history(offline(tmp_path)[0]) == whole
    assert len(whole) > 100


def test_where_no_process_can_be_started_the_run_goes_on_and_errors_are_not_reported_home(
    watched, monkeypatch, capsys
):
    started = []

    start = subprocess.Popen

    def refuse(arguments, **options):
        if wandb_process.__file__ not in arguments:
            return start(arguments, **options)
        started.append(options["env"])
        raise OSError("no more processes")

    monkeypatch.delenv("WANDB_ERROR_REPORTING")
    monkeypatch.setattr(wandb_sink.subprocess, "Popen", refuse)
    folder = go(watched())
    assert started[0]["WANDB_ERROR_REPORTING"] == "false"
    assert capsys.readouterr().out.count("wandb: no more processes; the run goes on without it") == 1
    assert read_status(folder)["state"] == "finished"


def without_wandb(tmp_path: Path) -> dict[str, str]:
    """An environment in which Python does not find wandb."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfrom importlib.machinery import PathFinder\nfind = PathFinder.find_spec\n"
        "def found(name, *more):\n    return None if name == 'wandb' else find(name, *more)\n"
        "PathFinder.find_spec = found\n"
    )
    return {"PYTHONPATH": str(tmp_path), "WANDB_MODE": ""}


def test_without_wandb_auto_is_one_line_and_what_was_asked_for_is_an_error(text_file, tmp_path):
    def command(*arguments):
        return subprocess.run(
            [sys.executable, str(ROOT / "train.py"), *QUICK, *arguments],
            cwd=tmp_path,
            env=os.environ | without_wandb(tmp_path),
            capture_output=True,
            text=True,
        )

    done = command()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wandb: it is not installed") == 1
    refused = command("wandb.mode=offline", "seed=1")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    assert "wandb.mode: offline needs wandb" in refused.stderr


def test_a_folder_named_wandb_is_not_taken_for_the_package(tiny, tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k.split(".")[0] != "wandb"})
    with pytest.raises(ConfigError, match="needs wandb"):
        wandb_sink.wandb_mode(tiny("wandb.mode=offline"))


def test_a_signal_ends_the_run_and_wandb_has_it_all(watched, tmp_path, monkeypatch):
    config = watched("train.steps=6")
    stopped(config, monkeypatch, 2)
    [folder] = Path(config.runs_dir).iterdir()
    assert history(offline(tmp_path)[0]) == rows(folder)
