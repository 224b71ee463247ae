"""A job of a sweep, for the process that launched it: a folder with two files, on a cluster three.

    job.json    its arguments; then, by the process that does it, that it runs; then how it ended
    log.txt     what it printed
    slurm.json  the cluster's number of it

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
from system.files import jsonable, read_typed, write_atomically

Process = tuple[int, float]  # its number, and when it began: system/os_compat.py


@with_config(ConfigDict(extra="allow"))
class Job(TypedDict, total=False):
    """The content of job.json."""

    launcher: Process
    process: Process
    state: Literal["waiting", "running", "ended"]
    error: str


class ClusterJob(TypedDict):
    """The content of slurm.json."""

    job: str


KINDS: dict[str, TypeAdapter[Any]] = {"job.json": TypeAdapter(Job), "slurm.json": TypeAdapter(ClusterJob)}


def read_json(file: Path) -> dict[str, Any]:
    """Return the file's content; nothing where it is missing or damaged."""
    try:
        return read_typed(file, KINDS[file.name])
    except (OSError, ValueError):
        return {}


def write(folder: Path, record: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "job.json", json.dumps(jsonable(record), indent=1))


def read(folder: Path) -> dict[str, Any]:
    return read_json(folder / "job.json")


@contextmanager
def kept(folder: Path | None) -> Iterator[dict[str, Any]]:
    """Inside, the job's ``value`` or ``error`` is put into the dict that this yields. In a sweep it is kept
    in job.json, and what is printed goes to log.txt; else, ``folder`` being None, this does nothing."""
    outcome: dict[str, Any] = {}
    if folder is None:
        yield outcome
        return
    record = read(folder)
    if record["launcher"][0] == PARENT:
        guard()
    idle.clear()
    record |= {"state": "running", "host": platform.node()}
    on_cluster = "SUBMITIT_EXECUTOR" in os.environ
    if not on_cluster:  # whose jobs are ended by their number there
        record["process"] = this_process()
    with (
        (folder / "log.txt").open("a", encoding="utf-8", buffering=1) as log,
        redirect_stdout(log),
        redirect_stderr(log),
        signals.handled(signals.end),
    ):
        state = "ended"
        try:
            write(folder, record)  # from now on the launching process sends its signals on
            yield outcome
        except SystemExit:
            if on_cluster:
                state = "waiting"  # it may take the job back, and begin it again
            raise
        finally:
            if on_cluster or read(folder).get("launcher") == record["launcher"]:  # it is still this sweep's
                write(folder, record | {"state": state} | outcome)
            idle.set()


def write_cluster_job(folder: Path, number: str) -> None:
    write_atomically(folder / "slurm.json", json.dumps({"job": number}))


def cluster_job(folder: Path) -> str:
    """The number of the job that was last submitted for this record; "" for none."""
    return str(read_json(folder / "slurm.json").get("job", ""))


PARENT = os.getppid()  # of a launcher's worker: the launching process
idle = threading.Event()  # whether this process has no job


@cache
def guard() -> None:
    """From now on this worker ends, as by SIGTERM and so saving, when the launching process has gone: what it
    would do next is another sweep's by then."""

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
    """Whether another process of this machine launched this job and waits for its end."""
    if record.get("state") not in ("waiting", "running") or record["launcher"][0] == os.getpid():
        return False
    return os_compat.exists(*record["launcher"])


def alive(record: dict[str, Any]) -> bool:
    """Whether the job of this record is being done by another process of this machine, no cluster's."""
    process = record.get("process")
    if not process or record.get("host") != platform.node() or process[0] == os.getpid():
        return False
    return record["state"] == "running" and os_compat.exists(*process)


@cache
def this_process() -> tuple[int, float]:
    """Its number, which another may have later, and when it began."""
    return os.getpid(), os_compat.began(os.getpid()) or 0.0
