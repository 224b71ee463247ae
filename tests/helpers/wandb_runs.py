"""Runs that are copied to wandb, the records that wandb writes, and an imitation of wandb's server."""

import contextlib
import gzip
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from rundir.metrics import Metrics
from tests.helpers.programs import PATIENCE
from tests.helpers.runs import final_tensors, metric_rows, same_tensors, train_or_resume
from tests.helpers.waiting import until

KEY = "0" * 40
WANDB = str(Path(sys.executable).with_name("wandb"))


@pytest.fixture
def watched(tiny, tmp_path, monkeypatch):
    """Overrides -> the config of a run that is copied to tmp_path/wandb; no user is logged in to wandb."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    return lambda *overrides: tiny(f"wandb.dir={tmp_path}", "stats.every=2", *overrides)


def after_row(monkeypatch, step: int, act: Callable[[], None]) -> None:
    """Call ``act`` when a run has written the row of ``step``."""
    write = Metrics.write

    def write_and_act(self, row):
        write(self, row)
        if row["step"] == step:
            act()

    monkeypatch.setattr(Metrics, "write", write_and_act)


def offline(folder: Path) -> list[Path]:
    """Return the .wandb files of a folder, the oldest first."""
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime)


def records(kind: str, *files: Path) -> list[dict]:
    """Return the records of one kind in .wandb files, read by wandb's own reader."""
    inspect = [WANDB, "leet", "inspect", "--json"]
    rows = []
    for file in files:
        done = subprocess.run(
            [*inspect, str(file)], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        rows += [json.loads(line) for line in done.stdout.splitlines()]
    return [row[kind] for row in rows if row["type"] == kind]


def history(*files: Path) -> list[dict]:
    """Return the logged rows without the columns that wandb adds."""
    items = [record["item"] for record in records("history", *files)]
    return [{k: v for k, v in item.items() if not k.startswith("_")} for item in items]


def lines_of_wandb(capsys) -> list[str]:
    """Return the lines that a run printed about wandb, without "waiting" lines, which slow machines print."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wandb: ")]
    return [line for line in lines if not line.startswith("wandb: waiting")]


def warnings_of_wandb(capsys) -> list[str]:
    """Return the lines about wandb, except the one that says where the run is."""
    return [
        line for line in lines_of_wandb(capsys) if not line.startswith(("wandb: offline;", "wandb: http"))
    ]


def without_wandb(config, tmp_path: Path):
    off = config.wandb.model_copy(update={"mode": "disabled"})
    return config.model_copy(update={"wandb": off, "runs_dir": str(tmp_path / "without")})


def same_as_without(config, folder: Path, tmp_path: Path) -> bool:
    """Return whether the run in ``folder`` ended as the same run without wandb does."""
    without = train_or_resume(without_wandb(config, tmp_path))
    same_count = len(metric_rows(folder)) == len(metric_rows(without))
    return same_count and same_tensors(final_tensors(folder), final_tensors(without))


def children(process: int) -> dict[int, str]:
    """Return the process numbers and command lines of all descendants of a process."""
    lines = {}
    for child in psutil.Process(process).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            lines[child.pid] = " ".join(child.cmdline())
    return lines


def signalling(monkeypatch, name: str, number: int) -> list[int]:
    """At step 5, wait until wandb has its file, and signal each descendant process of that name.

    Returns a list that will hold the processes' numbers."""
    sent: list[int] = []

    def signal_all() -> None:
        until(lambda: list(Path(os.environ["HOME"]).glob("wandb/*/*.wandb")))
        sent.extend(until(lambda: [pid for pid, line in children(os.getpid()).items() if name in line]))
        for pid in sent:
            os.kill(pid, number)

    after_row(monkeypatch, 5, signal_all)
    return sent


class Server(http.server.BaseHTTPRequestHandler):
    """An imitation of wandb's server, as far as a run and its checkpoint need one. It keeps the history and
    files that it receives; it may refuse files, and delays answers to paths that begin with ``silent``."""

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
        query = json.loads(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
        rows = query.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
        self.history.extend(json.loads(row) for row in rows)
        operation = re.search(r"(?:query|mutation) (\w+)", query.get("query", ""))
        data = self.data_of(operation[1], query.get("variables", {}).get("name")) if operation else {}
        return self.answer(200, json.dumps({"data": data}).encode())

    def data_of(self, operation: str, name: str) -> dict:
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


class Failing(Server):
    """A server whose every answer is an internal error."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"] or 0))
        self.send_error(500)


@contextlib.contextmanager
def serving(monkeypatch, kind: type[Server] = Server, **attributes):
    """Run a Server and log in to it. Yield its address."""
    for name, value in ({"history": [], "uploads": []} | attributes).items():
        monkeypatch.setattr(Server, name, value)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", address)
    try:
        yield address
    finally:
        server.shutdown()
        server.socket.close()
