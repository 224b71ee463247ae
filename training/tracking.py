"""What a run writes down while it goes: metrics.jsonl, the source of truth, and a copy of it in wandb."""

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
from typing import Any, Self

from training import wandb_sink
from training.checking import ConfigError
from training.config import RunConfig
from training.files import jsonable, naming, read_json, write_atomically
from training.runs import leaks

CONNECT = 10  # seconds that wandb's server may take to answer
LAST = 15  # seconds that wandb may take after a run's end


class Metrics:
    """metrics.jsonl: one JSON object a line, flushed, so that what was logged survives the process."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.stream = file.open("a", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        line = json.dumps(jsonable(row), allow_nan=False) + "\n"
        with naming(self.file):
            self.stream.write(line)
            self.stream.flush()

    def sync(self) -> None:
        """Make what was written survive a power failure, too."""
        os.fsync(self.stream.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()


def cut(file: Path, step: int) -> list[dict[str, Any]]:
    """Drop the rows of metrics.jsonl from ``step`` on, as a run that goes on there writes them again. Returns
    the rows that stay."""
    rows = []
    for line in file.read_bytes().splitlines() if file.exists() else []:
        with suppress(ValueError, TypeError, LookupError):  # a line in whose middle the process ended
            row = json.loads(line)
            if row["step"] < step:
                rows.append(row)
    write_atomically(file, "".join(json.dumps(row) + "\n" for row in rows), sync=True)
    return rows


def best_of(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Step and val/loss of the evaluation with the lowest, but for step 0's; None where there is none."""
    evaluated = [row for row in rows if "val/loss" in row and row["step"] > 0]
    lowest = min(evaluated, key=lambda row: row["val/loss"], default=None)
    return {key: lowest[key] for key in ("step", "val/loss")} if lowest else None


def wandb_mode(config: RunConfig) -> str:
    """auto, online, offline or disabled. ``auto`` is what WANDB_MODE says, where that is set; it is disabled,
    and that is said, where wandb is not installed.

    Raises:
        ConfigError: another mode is asked for, and wandb is not installed.
    """
    asked = config.wandb.mode
    mode = (os.environ.get("WANDB_MODE") or asked) if asked == "auto" else asked
    mode = {"dryrun": "offline"}.get(mode, mode)  # its old name
    if mode == "disabled":
        return mode
    found = importlib.util.find_spec("wandb")
    if found is not None and found.origin is not None:  # a mere folder of that name has no origin
        return mode
    if asked == "auto":
        print("wandb: it is not installed; the run's folder has all that it would show", flush=True)
        return "disabled"
    raise ConfigError(f"wandb.mode: {mode} needs wandb; pip install wandb, or wandb.mode=disabled")


@contextmanager
def copied_to_wandb(mode: str, config: RunConfig, folder: Path, group: str, step: int) -> Iterator[None]:
    """Inside, a process copies the rows of metrics.jsonl to wandb as they come: see wandb_sink.py. At the end
    it is waited for, LAST seconds at most.

    Args:
        mode: what ``wandb_mode`` said.
        folder: the run's; its name begins the id of the wandb run.
        group: of runs that differ in their seed alone; wandb.group goes before.
        step: that the run goes on from; from 0 it is a new wandb run.
    """
    if mode == "disabled":
        yield
        return
    known = read_json(folder / "wandb.json") if step else {}
    # a name that begins anew would not do: wandb's server takes no step of an id twice
    run_id = known.get("id") or f"{folder.name}-{secrets.token_hex(3)}"
    write_atomically(folder / "wandb.json", json.dumps({"id": run_id}))
    settings, certificate = config.wandb, read_json(folder / "certificate.json")
    job = {
        "mode": mode,
        "pid": os.getpid(),
        "connect": CONNECT,
        "last": LAST,
        "folder": str(folder.resolve()),
        "offset": (folder / "metrics.jsonl").stat().st_size if known else 0,
        "init": {
            "id": run_id,
            "resume": "allow",
            "name": folder.name,
            "project": settings.project,
            "entity": settings.entity,
            "group": settings.group or group,
            "tags": [*settings.tags, *(["leaks"] if leaks(folder) else [])],
            "dir": settings.dir,
            "config": config.model_dump(by_alias=True) | {"certificate": certificate},
        },
    }
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", wandb_sink.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for us
            env={"WANDB_ERROR_REPORTING": "false"} | os.environ,
        )
    except OSError as error:
        print(f"wandb: {error}; the run goes on without it, and metrics.jsonl has every row", flush=True)
        yield
        return
    relay = threading.Thread(target=relayed, args=(child,), daemon=True)
    relay.start()
    assert child.stdin
    try:
        with suppress(OSError):  # that it has ended already is heard from the relay
            child.stdin.write(json.dumps(job) + "\n")
            child.stdin.flush()
        yield
    finally:
        with suppress(OSError):
            child.stdin.close()  # says that the run has ended
        relay.join(2)
        if relay.is_alive():
            print(f"wandb: waiting for it, {LAST} seconds at most", flush=True)
            relay.join(LAST)
            child.kill()
            relay.join()


def relayed(child: "subprocess.Popen[str]") -> None:
    """Print what the process says, until it ends."""
    assert child.stdout
    with child.stdout as lines:
        for line in lines:
            print(line, end="", flush=True)
    if child.wait() < 0:
        print(
            "wandb: its process was ended; the run goes on without it, and metrics.jsonl has every row",
            flush=True,
        )
