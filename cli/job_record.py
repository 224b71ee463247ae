"""The record of a sweep's job, for the process that launched it: a folder with two files, on a cluster three.

    job.json    its arguments and state; the process that runs the job updates it
    log.txt     its output
    slurm.json  its number on the cluster

The launching process writes job.json before the job starts.
"""

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from system import os_compat, signals
from system.files import jsonable, read_or_empty, write_atomically

Process = tuple[int, float]  # number and start time: system/os_compat.py


@with_config(ConfigDict(extra="allow"))
class Job(TypedDict, total=False):
    """The content of job.json."""

    launcher: Process
    process: Process
    state: Literal["waiting", "running", "ended"]
    error: str


class ClusterJob(TypedDict):
    job: str


JOB = TypeAdapter(Job)
CLUSTER_JOB = TypeAdapter(ClusterJob)


def write(folder: Path, record: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "job.json", json.dumps(jsonable(record), indent=1))


def read(folder: Path) -> dict[str, Any]:
    """Return the content of job.json; empty if it is missing or damaged."""
    return read_or_empty(folder / "job.json", JOB)


@contextmanager
def kept(folder: Path | None) -> Iterator[dict[str, Any]]:
    """Context manager around a job, which puts its ``value`` or ``error`` into the dict that this yields. In
    a sweep that goes to job.json and the output to log.txt; a ``folder`` of None is no sweep."""
    outcome: dict[str, Any] = {}
    if folder is None:
        yield outcome
        return
    record = read(folder)
    if record["launcher"][0] == PARENT:
        end_with_launcher()
    idle.clear()
    record |= {"state": "running", "host": platform.node()}
    on_cluster = "SUBMITIT_EXECUTOR" in os.environ
    if not on_cluster:  # there a job is ended by its number
        record["process"] = this_process()
    with (
        (folder / "log.txt").open("a", encoding="utf-8", buffering=1) as log,
        redirect_stdout(log),
        redirect_stderr(log),
        signals.handled(signals.end),
    ):
        state = "ended"
        try:
            write(folder, record)  # from here on the launching process forwards its signals
            yield outcome
        except SystemExit:
            if on_cluster:
                state = "waiting"  # the cluster may preempt the job and start it again
            raise
        finally:
            if on_cluster or read(folder).get("launcher") == record["launcher"]:  # not another sweep's by now
                write(folder, record | {"state": state} | outcome)
            idle.set()


def write_cluster_job(folder: Path, number: str) -> None:
    write_atomically(folder / "slurm.json", json.dumps({"job": number}))


def cluster_job(folder: Path) -> str:
    """Return the number of the job that was last submitted for this record; "" for none."""
    return str(read_or_empty(folder / "slurm.json", CLUSTER_JOB).get("job", ""))


PARENT = os.getppid()  # of a launcher's worker: the launching process
idle = threading.Event()  # set while this process has no job


@cache
def end_with_launcher() -> None:
    """End this worker, as by SIGTERM and so saving, when the launching process has ended: by then its next
    job may be another sweep's."""

    def watch() -> None:
        while os.getppid() == PARENT:
            time.sleep(0.3)
        if not idle.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            idle.wait()
        os._exit(1)

    if os.getppid() != PARENT:
        os._exit(1)
    threading.Thread(target=watch, daemon=True).start()


def is_anothers(record: dict[str, Any]) -> bool:
    """Return true if another process of this machine launched this job and waits for its end."""
    if record.get("state") not in ("waiting", "running") or record["launcher"][0] == os.getpid():
        return False
    return os_compat.exists(*record["launcher"])


def alive(record: dict[str, Any]) -> bool:
    """Return true if another process of this machine, not of a cluster, is running this job."""
    process = record.get("process")
    if not process or record.get("host") != platform.node() or process[0] == os.getpid():
        return False
    return record["state"] == "running" and os_compat.exists(*process)


@cache
def this_process() -> tuple[int, float]:
    """Return this process's number, which another may have later, and its start time."""
    return os.getpid(), os_compat.start_time(os.getpid()) or 0.0
