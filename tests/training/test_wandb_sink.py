"""wandb gets every row under one id per run; whatever happens to wandb, the run ends as without it."""

import gzip
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from data.errors import ConfigError
from tests.conftest import configured
from tests.helpers.waiting import until
from training import wandb_sink
from training.wandb_sink import Wandb, wandb_mode

# wandb's own threads may raise when its process was killed, which costs nothing
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
ROWS = [
    {"step": step, "tokens": 32 * step, "train/loss": 4 - step / 8, "act.rms/00.mlp": 1.5}
    for step in range(12)
]
FACTS = {"parameters": 1234, "device": "cpu", "precision": "fp32", "ranks": 1, "threads": 1, "compile": False}
SETTLED = {"settled": {"model.final_norm": "same"}, "git": {"commit": "abc", "clean": True}}
ENVIRONMENT = FACTS | SETTLED | {"group": "layernorm-pre-1a2b"}
CAUSAL = {"start": {"causal": True, "independent_rows": True}, "end": None}
LEAKING = CAUSAL | {"end": {"causal": False, "independent_rows": True}}
BEST = {"step": 11, "val/loss": 3.5}
STATUS = {"state": "finished", "step": 11, "reason": None, "best": BEST, "final": 3.5}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The folder of a run; no user is logged in to wandb, and wandb writes beside it."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "layernorm-pre-s0-ab" / "checkpoints").mkdir(parents=True)
    return tmp_path / "runs" / "layernorm-pre-s0-ab"


def logged(folder, mode="offline", rows=ROWS, status=STATUS, certificate=CAUSAL, overrides=()) -> None:
    """Log a whole run."""
    sink = Wandb(mode, configured(*overrides), folder, ENVIRONMENT, rows[0]["step"])
    for row in rows:
        sink.log(row)
    sink.finish(status, certificate, folder / "checkpoints" / "step-11.safetensors")
    assert not sink.thread.is_alive()


def own(row: dict) -> dict:
    """Return a logged row without the columns that wandb adds."""
    return {key: value for key, value in row.items() if key[0] != "_"}


def offline_runs() -> list[dict[str, list]]:
    """Return the offline runs, the oldest first: the records of each kind, read by wandb's own reader; as
    ``rows``, what was logged."""
    runs = []
    for file in sorted(Path().glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime):
        inspect = [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", file]
        done = subprocess.run(inspect, capture_output=True, text=True, timeout=60, check=True)
        records = defaultdict(list)
        for line in map(json.loads, done.stdout.splitlines()):
            records[line["type"]].append(line.get(line["type"]))
        runs.append(records | {"rows": [own(record["item"]) for record in records["history"]]})
    return runs


def test_an_offline_run_has_rows_config_summary_and_checkpoint(folder, capsys):
    (folder / "checkpoints" / "step-11.safetensors").write_bytes(b"weights")
    logged(folder, certificate=LEAKING, overrides=("wandb.tags=[a]", "wandb.artifact=true"))
    [run] = offline_runs()
    assert run["rows"] == ROWS
    assert (run["run"][-1]["run_group"], run["run"][-1]["tags"]) == (ENVIRONMENT["group"], ["a", "leaks"])
    facts = {"norm": "layernorm", "parameters": 1234, "commit": "abc", "model_final_norm": "same"}
    assert facts.items() <= run["run"][0]["config"]["update"].items()
    summary = {key: value for record in run["summary"] for key, value in record["update"].items()}
    assert (summary["best/val/loss"], summary["leaks"]) == (3.5, True)
    assert [record["exit_code"] for record in run["exit"]] == [0]
    [artifact] = [record for record in run["artifact"] if record["type"] == "model"]
    assert artifact["manifest"]["contents"][0]["local_path"].endswith("/checkpoints/step-11.safetensors")
    assert capsys.readouterr().out.startswith("wandb: offline; to upload it: wandb sync wandb/")


@pytest.mark.slow
def test_a_resumed_run_keeps_its_id_and_one_that_starts_over_gets_another(folder):
    logged(folder, rows=ROWS[:7], status=STATUS | {"state": "interrupted"})
    logged(folder, rows=ROWS[7:])
    logged(folder)
    runs = offline_runs()
    assert [run["rows"] for run in runs] == [ROWS[:7], ROWS[7:], ROWS]
    first, second, third = (run["run"][0]["run_id"] for run in runs)
    assert first == second != third
    assert [run["exit"][0]["exit_code"] for run in runs] == [1, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no key", "refuses", "never answers"])
def test_without_a_server_that_answers_every_row_is_offline(folder, monkeypatch, capsys, fault):
    monkeypatch.setattr(wandb_sink, "CONNECT_SECONDS", 2)
    if fault != "no key":
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = 9 if fault == "refuses" else mute.getsockname()[1]
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        logged(folder, "online")
    assert [run["rows"] for run in offline_runs()] == [ROWS]
    reason = "no key" if fault == "no key" else "no connection"
    assert capsys.readouterr().out.startswith(f"wandb: offline ({reason}")


class Server(http.server.BaseHTTPRequestHandler):
    """As much of wandb's server as a run needs to begin."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        body = gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body
        project = {"id": "p", "name": "normgpt", "entity": {"id": "e", "name": "someone"}, "internalId": "p"}
        bucket = {"id": "b", "name": "n", "displayName": "n", "config": "{}", "historyLineCount": 0}
        answers = {
            "UpsertBucket": {"upsertBucket": {"bucket": bucket | {"project": project}, "inserted": True}},
            "CreateRunFiles": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}},
            "Viewer": {"viewer": {"id": "v", "entity": "someone", "username": "someone", "flags": "{}"}},
        }
        operation = re.search(r"(?:query|mutation) (\w+)", json.loads(body or "{}").get("query", ""))
        content = json.dumps({"data": answers.get(operation[1], {}) if operation else {}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_a_server_that_dies_ends_nothing(folder, monkeypatch, capsys):
    monkeypatch.setattr(wandb_sink, "FINISH_SECONDS", 4)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", url := f"http://127.0.0.1:{server.server_port}")
        sink = Wandb("online", configured(), folder, ENVIRONMENT, 0)
        for row in ROWS:
            sink.log(row)
        said = until(lambda: capsys.readouterr().out)  # wandb has begun
        server.shutdown()
        sink.finish(STATUS, CAUSAL, folder / "none")
    assert not sink.thread.is_alive()
    assert said.startswith(f"wandb: {url}/someone/normgpt/runs/")


def test_the_mode_is_checked_at_the_door(folder, monkeypatch):
    for value, mode in (("OFFLINE", "offline"), ("", "auto")):
        monkeypatch.setenv("WANDB_MODE", value)
        assert wandb_mode(configured()) == mode
    monkeypatch.setenv("WANDB_MODE", "ofline")
    with pytest.raises(ConfigError, match="WANDB_MODE: invalid value 'ofline'; expected one of auto, online"):
        wandb_mode(configured())
    assert wandb_mode(configured("wandb.mode=disabled")) == "disabled"
