"""Keep the record of a sweep's job for the process that launched the job: a folder with two files, or three
on a cluster.

    job.json    launcher and process (an ID and a start time each), state (waiting, running or ended), error
    log.txt     the output of the job
    slurm.json  the job's ID on the cluster

The launching process writes job.json before the job starts; then the process that runs the job updates it.
"""

import json
import math
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from cli.errors import error_line
from data.errors import described
from data.files import jsonable, write_atomically
from sweep import launch, signals
from training.run_folder import read_json
from training.signals import Interrupted


def write(folder: Path, record: dict[str, Any], name: str = "job.json") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / name, json.dumps(jsonable(record), indent=1))


def read(folder: Path, name: str = "job.json") -> dict[str, Any]:
    """Return the content of a record; empty if it is missing or damaged."""
    return read_json(folder / name)


@contextmanager
def record_job(folder: Path) -> Iterator[dict[str, Any]]:
    """Context manager around a job: yield a dict into which the job puts its ``value`` or ``error``. Record
    the dict in job.json and the output in log.txt."""
    outcome: dict[str, Any] = {}
    record = read(folder)
    if record["launcher"][0] == PARENT:
        end_with_launcher()
    idle.clear()
    record |= {"state": "running", "host": platform.node()}
    plan, role = record.get("plan"), record.get("role")
    os.environ["NORMGPT_SWEEP"] = json.dumps({"plan": plan, "roles": [role] if role else []})
    os.environ["NORMGPT_WORKER"] = str(launch.worker())
    on_cluster = "SUBMITIT_EXECUTOR" in os.environ
    if not on_cluster:  # a cluster ends jobs by their ID
        record["process"] = this_process()
    with (
        (folder / "log.txt").open("a", encoding="utf-8", buffering=1) as log,
        redirect_stdout(log),
        redirect_stderr(log),
        signals.handled(signals.end),
    ):
        state = "ended"
        try:
            write(folder, record)  # from now on the launching process forwards signals to this one
            yield outcome
        except SystemExit:
            if on_cluster:
                state = "waiting"  # the cluster may preempt the job and start it again
            raise
        finally:
            # unless another sweep has taken over the job
            if on_cluster or read(folder).get("launcher") == record["launcher"]:
                write(folder, record | {"state": state} | outcome)
            idle.set()


PARENT = os.getppid()  # the launching process, if this process is a worker of a launcher
idle = threading.Event()  # set while this process has no job


@cache
def end_with_launcher() -> None:
    """Watch the launching process: when it has ended, end this worker by SIGTERM, so that its job saves
    before another sweep runs the same job."""

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


def belongs_to_other(record: dict[str, Any]) -> bool:
    """Return True if another process of this machine launched this job and is waiting for its end."""
    if record.get("state") not in ("waiting", "running") or record["launcher"][0] == os.getpid():
        return False
    return launch.is_running(*record["launcher"])


def is_running(record: dict[str, Any]) -> bool:
    """Return True if another process of this machine is running this job; False on a cluster."""
    process = record.get("process")
    if not process or record.get("host") != platform.node() or process[0] == os.getpid():
        return False
    return record.get("state") == "running" and launch.is_running(*process)


@cache
def this_process() -> tuple[int, float]:
    """Return the ID and start time of this process; together they are unique, as IDs are reused."""
    return os.getpid(), launch.start_time(os.getpid()) or 0.0


def recorded(task: Callable[[Any], Any], composed: Any) -> Any:
    """Run a sweep's job, and record its value or its error, with which the sweep continues."""
    with record_job(Path(HydraConfig.get().runtime.output_dir)) as outcome:
        try:
            outcome["value"] = task(composed)
            return outcome["value"]
        except Interrupted as signal:
            outcome["error"] = f"ended by {signal.signal_name}; the same command resumes it"
            raise
        except SystemExit as end:  # the job has printed its error
            signals.check()  # raises if a signal caused the error
            error = end.__context__
            outcome["error"] = (
                error_line(error) or described(error) if isinstance(error, Exception) else str(end)
            )
    return math.inf
