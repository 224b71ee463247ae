"""Start rundir/wandb_process.py, which copies metrics.jsonl to wandb; print the process's lines and wait for
its end."""

import importlib.util
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cli.schema import RunConfig
from rundir import wandb_process
from rundir.checkpoint_file import path_of
from rundir.run_files import leaks, read_json
from system.errors import ConfigError
from system.files import write_atomically
from system.os_compat import SIGNALS
from system.terminal import announced

CONNECT_SECONDS = 8  # limit on the wait for wandb's server
FINISH_SECONDS = 15  # limit on the wait for wandb after a run, plus the time for uploading a checkpoint
WITHOUT = "training continues without wandb, metrics.jsonl has every row"
MODES = ("auto", "online", "offline", "disabled")


def wandb_mode(config: RunConfig) -> str:
    """Return one of MODES. ``auto`` means WANDB_MODE, if set, and disabled if wandb is not installed. Raises
    ConfigError if WANDB_MODE is invalid, or if a mode given in the config needs wandb."""
    config_mode = mode = str(config.wandb.mode)
    if mode == "auto":
        mode = (os.environ.get("WANDB_MODE") or mode).lower()
    mode = {"dryrun": "offline"}.get(mode, mode)  # an old name
    if mode not in MODES:
        raise ConfigError(f"WANDB_MODE: invalid value {mode!r}; expected one of {', '.join(MODES)}")
    package = importlib.util.find_spec("wandb")
    if mode == "disabled" or (package and package.origin):  # a folder named wandb has no origin
        return mode
    if config_mode != "auto":
        raise ConfigError(
            f"wandb.mode: {mode} needs wandb; run pip install wandb, or give wandb.mode=disabled"
        )
    print("wandb: not installed; the run's folder has all that wandb would show", flush=True)
    return "disabled"


@contextmanager
def copied_to_wandb(mode: str, config: RunConfig, folder: Path, group: str, step: int) -> Iterator[None]:
    """Context manager: start a process that copies the rows of metrics.jsonl to wandb as they are written; at
    the end, wait a limited time for this process. ``step`` 0 starts a new wandb run."""
    if mode == "disabled":
        yield
        return
    job = job_of(config, folder, group, step) | {"mode": mode}
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", wandb_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C must reach this process only
            env={"WANDB_ERROR_REPORTING": "false"} | os.environ,
        )
    except OSError as error:
        print(f"wandb: {error}; {WITHOUT}", flush=True)
        yield
        return
    relay = threading.Thread(target=print_lines, args=(child,), daemon=True)  # prints above the progress line
    relay.start()
    assert child.stdin
    try:
        with suppress(OSError):  # if the child has already ended, the relay reports it
            child.stdin.write(json.dumps(job) + "\n")
            child.stdin.flush()
        yield
    finally:
        with suppress(OSError):
            child.stdin.close()  # tells the child that the run has ended
        relay.join(2)
        if relay.is_alive():
            seconds = wandb_process.finish_seconds(job)
            print(f"wandb: waiting up to {seconds} s for the last rows", flush=True)
            with announced("wandb: waiting for the last rows"):
                relay.join(seconds)
            child.kill()
            relay.join()


def print_lines(child: "subprocess.Popen[str]") -> None:
    """Print the lines of the child process until it ends, and one more line if it was killed."""
    assert child.stdout
    with suppress(OSError), child.stdout:  # if stdout is closed, the main thread reports it
        for line in child.stdout:
            print(line, end="", flush=True)
    if child.wait() < 0:
        with suppress(OSError):
            print(f"wandb: its process was killed; {WITHOUT}", flush=True)


def job_of(config: RunConfig, folder: Path, group: str, step: int) -> dict[str, Any]:
    """Return the input of wandb_process.py; ``init`` has the arguments of wandb.init. The run's wandb.json
    stores the id of the wandb run and how many bytes of metrics.jsonl were copied."""
    # a new id for each start from step 0: wandb's server accepts each step of an id only once
    stored: dict[str, Any] = {"id": f"{folder.name}-{secrets.token_hex(3)}", "copied": 0}
    stored |= read_json(folder / "wandb.json") if step else {}
    write_atomically(folder / "wandb.json", json.dumps(stored))
    settings = config.wandb
    certificate = read_json(folder / "certificate.json")
    roles = [role["role"] for role in read_json(folder / "environment.json").get("roles", [])]
    last_checkpoint = path_of(folder / "checkpoints", config.train.steps)
    return {
        "pid": os.getpid(),
        "signals": [*map(int, SIGNALS)],
        "connect_seconds": CONNECT_SECONDS,
        "finish_seconds": FINISH_SECONDS,
        "folder": str(folder.resolve()),
        "checkpoint": str(last_checkpoint.absolute()) if settings.artifact else None,
        "offset": min(stored["copied"], (folder / "metrics.jsonl").stat().st_size),
        "init": {
            "id": stored["id"],
            "resume": "allow",
            "name": folder.name,
            "project": settings.project,
            "entity": settings.entity,
            "group": settings.group or group,
            "tags": [*settings.tags, *["leaks"] * leaks(certificate), *roles[-1:]],
            "dir": settings.dir,
            "config": config.model_dump(by_alias=True) | {"certificate": certificate},
        },
    }
