"""wandb gets every row under one id per run; whatever happens to wandb, the run ends as without it."""

import contextlib
import gzip
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cli.compose import choices
from cli.schema import RunConfig
from data.errors import ConfigError
from tests.conftest import ROOT
from training import wandb_sink
from training.wandb_pictures import by_statistic
from training.wandb_sink import Wandb, wandb_mode, wandb_row

# wandb's own threads may raise when its process was killed, which costs nothing
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
SITES = ("embed", "00.mlp", "01.mlp", "final")
ROWS = [
    {"step": step, "tokens": 32 * step, "train/loss": 4 - step / 8, "val/loss": 3.5}
    | {f"act.rms/{site}": 1.5 + step for site in SITES}
    for step in range(12)
]
ENVIRONMENT = {"group": "layernorm-pre-1a2b", "parameters": 1234, "device": "cpu", "precision": "fp32"} | {
    "ranks": 1, "threads": 1, "compile": False, "settled": {"model.final_norm": "same"}
}  # fmt: skip
ENVIRONMENT |= {"git": {"commit": "abc", "clean": True}}
CAUSAL = {"start": {"causal": True, "independent_rows": True}, "end": None}
LEAKING = CAUSAL | {"end": {"causal": False, "independent_rows": True}}
STATUS = {"state": "finished", "step": 11, "reason": None, "best": {"step": 11, "val/loss": 3.5}}
PROGRAM = """
import os, sys, time
from pathlib import Path
from tests.training.test_wandb_sink import ENVIRONMENT, CAUSAL, ROWS, STATUS, config_of
from training import wandb_sink
mode, folder, *act = sys.argv[1:]
sink = wandb_sink.Wandb(mode, config_of(), Path(folder), ENVIRONMENT, 0)
for row in ROWS:
    sink.log(row)
    if act and row["step"] == 5:
        while not sink.jobs.empty() or not list(Path(".").glob("wandb/*/*.wandb")):
            time.sleep(0.1)
        wandb_sink.kill_core()
        time.sleep(1)
sink.finish(STATUS, lambda: ROWS, CAUSAL, Path(folder, "none"))
print("wandb" in sys.modules)
"""


def config_of(*overrides: str) -> RunConfig:
    return choices([*overrides])[""]


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
    sink = Wandb(mode, config_of(*overrides), folder, ENVIRONMENT, rows[0]["step"])
    for row in rows:
        sink.log(row)
    sink.finish(status, lambda: rows, certificate, folder / "checkpoints" / "step-11.safetensors")
    assert not sink.thread.is_alive()


def files(kind: str = "offline-run") -> list[Path]:
    """Return the .wandb files, the oldest first."""
    return sorted(Path().glob(f"wandb/{kind}-*/*.wandb"), key=lambda file: file.stat().st_mtime)


def records(kind: str, file: Path) -> list[dict]:
    """Return the records of one kind in a .wandb file, read by wandb's own reader."""
    inspect = [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", file]
    done = subprocess.run(inspect, capture_output=True, text=True, timeout=60, check=True)
    return [row[kind] for row in map(json.loads, done.stdout.splitlines()) if row["type"] == kind]


def history(file: Path) -> list[dict]:
    """Return the logged rows without the columns that wandb adds, and without the pictures."""
    rows = [own(record["item"]) for record in records("history", file)]
    return [row for row in rows if "tokens" in row]


def own(row: dict) -> dict:
    return {key: value for key, value in row.items() if key[0] != "_"}


def hooks() -> tuple:
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.excepthook, sys.exit


def said(capsys) -> list[str]:
    """Return the lines about wandb, without those that only slow machines print."""
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("wandb: waiting")]


def test_an_offline_run_has_rows_pictures_summary_and_checkpoint(folder, capsys):
    (folder / "checkpoints" / "step-11.safetensors").write_bytes(b"weights")
    before = hooks()
    logged(folder, certificate=LEAKING, overrides=["wandb.tags=[a]", "wandb.artifact=true"])
    assert hooks() == before
    [file] = files()
    assert history(file) == ROWS
    pictures = records("history", file)[-1]["item"]
    wanted = {"within/act.rms mlp map._type", "Custom Chart Tables/within/act.rms mlp_table._type"}
    assert wanted <= pictures.keys()
    *_, run = records("run", file)
    assert (run["run_group"], run["tags"]) == (ENVIRONMENT["group"], ["a", "leaks"])
    config = records("run", file)[0]["config"]["update"]
    facts = {"norm": "layernorm", "parameters": 1234, "commit": "abc", "model_final_norm": "same"}
    assert facts.items() <= config.items()
    assert not [
        key for key, value in config.items() if value is None or (isinstance(value, dict) and key[0] != "_")
    ]
    defined = {m.get("glob_name") or m["name"]: m.get("options", {}) for m in records("metric", file)}
    hidden = {name for name, options in defined.items() if options.get("hidden")}
    assert {"act.rms/*", "leak.*", "tokens"} <= hidden
    assert not {"train/loss", "val/loss"} & hidden
    summary = {key: value for record in records("summary", file) for key, value in record["update"].items()}
    assert summary["best/val/loss"] == 3.5
    assert summary["leaks"]
    assert [record["exit_code"] for record in records("exit", file)] == [0]
    [artifact] = [record for record in records("artifact", file) if record["type"] == "model"]
    assert artifact["manifest"]["contents"][0]["local_path"].endswith("/checkpoints/step-11.safetensors")
    [line] = said(capsys)
    assert line.startswith("wandb: offline; to watch it: wandb leet wandb; to upload it: wandb sync wandb/")


@pytest.mark.slow
def test_a_resumed_run_keeps_its_id_and_one_that_starts_over_gets_another(folder):
    logged(folder, rows=ROWS[:7], status=STATUS | {"state": "interrupted"})
    logged(folder, rows=ROWS[7:])
    logged(folder)
    assert [history(file) for file in files()] == [ROWS[:7], ROWS[7:], ROWS]
    assert not any("within/" in str(record) for record in records("history", files()[0]))  # takes no step
    first, second, third = (records("run", file)[0]["run_id"] for file in files())
    assert first == second != third
    assert [records("exit", file)[0]["exit_code"] for file in files()] == [1, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["refuses", "never answers"])
def test_without_a_server_that_answers_every_row_is_offline(folder, monkeypatch, capsys, fault):
    monkeypatch.setattr(wandb_sink, "CONNECT_SECONDS", 2)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = 9 if fault == "refuses" else mute.getsockname()[1]
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        logged(folder, "online")
    assert [history(file) for file in files()] == [ROWS]
    assert not files("run")  # the failed attempt leaves no folder
    [line] = said(capsys)
    assert line.startswith("wandb: offline (no connection: ")


@pytest.mark.slow
def test_without_a_key_every_row_is_offline(folder, capsys):
    logged(folder, "online")
    assert [history(file) for file in files()] == [ROWS]
    assert said(capsys)[0].startswith("wandb: offline (no key; run wandb login); ")


class Server(http.server.BaseHTTPRequestHandler):
    """As much of wandb's server as a run needs; ``rows`` are what it received."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        body = gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body
        query = json.loads(body or "{}")
        self.server.rows += query.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
        project = {"id": "p", "name": "normgpt", "entity": {"id": "e", "name": "someone"}, "internalId": "p"}
        bucket = {"id": "b", "name": "n", "displayName": "n", "config": "{}", "historyLineCount": 0}
        answers = {
            "UpsertBucket": {"upsertBucket": {"bucket": bucket | {"project": project}, "inserted": True}},
            "CreateRunFiles": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}},
            "Viewer": {"viewer": {"id": "v", "entity": "someone", "username": "someone", "flags": "{}"}},
        }
        operation = re.search(r"(?:query|mutation) (\w+)", query.get("query", ""))
        content = json.dumps({"data": answers.get(operation[1], {}) if operation else {}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_online_the_server_gets_every_row(folder, monkeypatch, capsys):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads, server.rows = True, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    with contextlib.closing(server.socket):
        logged(folder, "online", status=STATUS | {"state": "interrupted"})  # a whole run uploads its pictures
        server.shutdown()
    assert [own(json.loads(row)) for row in server.rows] == ROWS
    assert said(capsys)[0].startswith(f"wandb: http://127.0.0.1:{server.server_port}/someone/normgpt/runs/")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["disabled", "offline"])
def test_a_killed_core_costs_one_line_and_a_disabled_wandb_is_not_imported(folder, mode):
    command = [sys.executable, "-c", PROGRAM, mode, str(folder), *["kill"] * (mode == "offline")]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, env=environ)
    *lines, imported = done.stdout.splitlines()
    assert not done.stderr
    if mode == "disabled":
        assert (lines, imported) == ([], "False")
    else:
        assert lines[0].startswith("wandb: offline")
        assert [line for line in lines if "training is not affected" in line] == lines[1:2] == lines[1:]


def test_the_mode_is_checked_at_the_door(folder, monkeypatch, capsys):
    for value, mode in (("dryrun", "offline"), ("OFFLINE", "offline"), ("", "auto")):
        monkeypatch.setenv("WANDB_MODE", value)
        assert wandb_mode(config_of()) == mode
    monkeypatch.setenv("WANDB_MODE", "ofline")
    with pytest.raises(ConfigError, match="WANDB_MODE: invalid value 'ofline'; expected one of auto, online"):
        wandb_mode(config_of())
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert wandb_mode(config_of()) == "disabled"
    assert said(capsys) == ["wandb: not installed; the run's folder has all that wandb would show"]
    with pytest.raises(ConfigError, match=r"wandb.mode: online needs wandb; run pip install wandb"):
        wandb_mode(config_of("wandb.mode=online"))


def test_charts_have_a_line_a_block_from_the_embedding_to_the_head():
    charts = by_statistic(
        [*ROWS, {"step": 12, "act.rms/100.mlp": "NaN", "grad.norm/10": 1, "grad.norm/9": 2}]
    )
    assert {name: [*lines] for name, lines in charts.items()} == {
        "act.rms mlp": ["embed", "00", "01", "final"],
        "grad.norm": ["9", "10"],
    }


def test_a_histogram_of_non_finite_numbers_is_their_count():
    value = {"low": "Infinity", "high": "-Infinity", "nonfinite": 7, "counts": [0, 0]}
    row = wandb_row({"step": 1, "hist.act/embed": value, "y": "-Infinity"})
    assert row == {"step": 1, "nonfinite.act/embed": 7, "y": float("-inf")}
