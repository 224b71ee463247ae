"""Runs as processes: a program that stands in for train.py, so that each takes a moment."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data.errors import ConfigError
from study import launch
from study.launch import Job, check, run_all
from tests.conftest import ROOT
from tests.helpers.waiting import until

STAND_IN = """
import fcntl, json, os, signal, sys, time
from pathlib import Path

words = dict(word.split("=", 1) for word in sys.argv[1:])
folder = Path("runs", words["name"])
folder.mkdir(parents=True, exist_ok=True)
facts = words | {"gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), "began": time.time(), "signals": 0}

def write(**changes):
    facts.update(changes)
    (folder / "new").write_text(json.dumps(facts))
    (folder / "new").replace(folder / "status.json")

def save(*_):
    write(signals=facts["signals"] + 1)
    if words["how"] == "slow":
        raise SystemExit(143)

for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, save)
write(pid=os.getpid())
time.sleep(0.2)
if words["how"] == "fails":
    print("step 1")
    print("error: norm: it is bad; choose another")
    raise SystemExit(1)
if words["how"] == "beaten" and not (folder / "rival").exists():
    (folder / "rival").touch()
    fcntl.flock(os.open(folder / ".lock", os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
    if os.fork() == 0:  # has the lock, too
        time.sleep(1)
    os._exit(1)
while words["how"] in ("slow", "stubborn"):
    time.sleep(0.05)
write(state="diverged" if words["how"] == "diverges" else "finished", final=2.0803, ended=time.time())
"""
PARENT = """
import sys
from pathlib import Path
from study import launch

launch.TRAIN = Path("train.py")
jobs = [launch.Job(f"r{n}", (f"name=r{n}", f"how={sys.argv[1]}")) for n in range(3)]
launch.run_all(jobs, Path("runs"), Path("logs"), 2)
"""


@pytest.fixture(autouse=True)
def stand_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(STAND_IN)
    monkeypatch.setattr(launch, "TRAIN", tmp_path / "train.py")
    monkeypatch.setattr(launch, "cores", lambda: 6)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def job(name: str, how: str = "runs", *words: str) -> Job:
    return Job(name, (f"name={name}", f"how={how}", *words))


def run(*jobs: Job, n_jobs: int = 2) -> dict[str, int]:
    return run_all(jobs, Path("runs"), Path("logs"), n_jobs)


def status(name: str) -> dict:
    return launch.read_status(Path("runs", name))


def test_runs_go_on_where_one_fails_and_a_line_says_how_each_ended(capsys):
    statuses = run(job("a"), job("b", "fails"), job("c", "diverges"), job("a"))
    assert statuses == {"a": 0, "b": 1, "c": 0}
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "3 runs: 3 to do, 2 at once"
    [a], [b], [c] = ([line for line in lines if f"  {name}  " in line] for name in "abc")
    assert "  2.0803" in a
    assert b[5:].startswith("b  failed (status 1): error: norm: it is bad; choose another")
    assert c.startswith("3/3  c  diverged")
    with pytest.raises(ConfigError, match="1 of 3 failed"):
        check(statuses, Path("logs"))
    assert "b: error: norm: it is bad; choose another (logs/b.log)" in capsys.readouterr().err
    run(job("a"), job("c"), job("d"))  # what has ended is not run again
    assert "3 runs: 2 ended before, 1 to do, 1 at once" in capsys.readouterr().out
    assert "began" in status("d")
    run(job("a"), job("d"))
    assert capsys.readouterr().out == "2 runs: all have ended\n"


def test_a_run_that_another_process_trains_is_waited_for(capsys):
    """Such as one that a killed command has left behind."""
    Path("runs/a").mkdir(parents=True)
    holds = "lock = filelock.FileLock('runs/a/.lock'); lock.acquire(); print(1, flush=True); time.sleep(1)"
    words = [sys.executable, "-c", f"import filelock, time; {holds}; print(time.time())"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        other.stdout.readline()
        assert run(job("a"), job("b"), n_jobs=1) == {"a": 0, "b": 0}
        released = float(other.stdout.read())
    assert "a: another process trains it; waiting" in capsys.readouterr().out.splitlines()
    assert max(status("b")["ended"], released) < status("a")["began"]


def test_a_run_that_another_process_began_to_train_at_the_same_moment_did_not_fail():
    assert run(job("a", "beaten"), job("b"), n_jobs=1) == {"a": 0, "b": 0}
    assert status("b")["ended"] < status("a")["began"]


def test_at_most_n_jobs_run_at_once_and_share_the_cores():
    run(*map(job, "abcd"), job("own", "runs", "train.threads=5"), n_jobs=3)
    spans = [(status(name)["began"], status(name)["ended"]) for name in ("a", "b", "c", "d", "own")]
    at_once = [sum(began <= moment < ended for began, ended in spans) for moment, _ in spans]
    assert max(at_once) == 3
    assert [status(name)["train.threads"] for name in ("a", "own")] == ["2", "5"]
    assert status("a")["hydra.mode"] == "RUN"
    assert status("a")["gpu"] is None


def test_each_run_sees_one_gpu_unless_it_names_one(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert [launch.default_n_jobs(device) for device in ("auto", "cuda", "cuda:1", "cpu")] == [2, 2, 1, 6]
    run(*map(job, "abcd"), job("e", "runs", "device=cuda:1"))
    spans = {name: status(name) for name in "abcd"}
    assert {facts["gpu"] for facts in spans.values()} == {"4", "7"}
    for one in spans.values():
        others = [other for other in spans.values() if other is not one and other["gpu"] == one["gpu"]]
        assert all(one["ended"] <= other["began"] or other["ended"] <= one["began"] for other in others)
    assert status("e")["gpu"] == "4,7"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert launch.default_n_jobs("auto") == 6


def parent(how: str) -> "subprocess.Popen[str]":
    """Start three runs, two at once, in a process of their own; return it when two run."""
    words = [sys.executable, "-c", PARENT, how]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, env={"PYTHONPATH": str(ROOT)}, **pipes)
    until(lambda: all("pid" in status(name) for name in ("r0", "r1")))
    return process


def test_a_signal_reaches_each_run_once_and_a_second_one_kills_the_runs():
    with parent("stubborn") as process:
        for seconds in (0.2, 1.2):  # the first two are within a second: one
            process.send_signal(signal.SIGTERM)
            time.sleep(seconds)
        assert process.poll() is None
        assert [status(name).get("signals") for name in ("r0", "r1", "r2")] == [1, 1, None]
        process.send_signal(signal.SIGINT)
        assert process.wait() == 128 + signal.SIGTERM
        assert process.stderr.read() == "SIGTERM to 2 runs\nSIGKILL to 2 runs\n"
    for name in ("r0", "r1"):
        with pytest.raises(ProcessLookupError):
            os.kill(status(name)["pid"], 0)


def test_no_run_outlives_an_error():
    """Such as that of a reader who has gone, as in | head."""
    with parent("slow") as process:
        process.stdout.close()
        os.kill(status("r0")["pid"], signal.SIGKILL)  # a line about it cannot be printed
        assert "BrokenPipeError" in process.stderr.read()
    until(lambda: status("r1")["signals"] == 1)


def test_a_killed_run_is_named_the_others_go_on_and_are_waited_for():
    with parent("slow") as process:
        os.kill(status("r0")["pid"], signal.SIGKILL)
        until(lambda: "pid" in status("r2"))  # in the place of r0
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert "1/3  r0  failed (status -9): it printed nothing\n" in output
    assert [status(name)["signals"] for name in ("r1", "r2")] == [1, 1]
