"""Copies the rows of a run's metrics.jsonl to wandb, in a process of its own; rundir/metrics.py starts it.

wandb may hang (a stopped helper process is waited for without end), raise in the middle of a log, ask
questions, and take seconds to start. Here it can: the process that trains writes metrics.jsonl and does not
know who reads it. A run that was killed is copied to its last line, too, and each run of a sweep is a wandb
run of its own, whatever became of the one before.

Standard input: one line of JSON, what to do (see ``main``); another when the run has ended, which its end
means, too. Standard output: lines for the user.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

POLL = 0.5  # seconds between looks at metrics.jsonl
FLUSH = 2.0  # seconds of rows that are lost if wandb is killed
PROBE = 2**16  # bytes that a disk should still take
SETTINGS = {  # where this wandb has them: those with x_ come and go
    "silent": True,
    "console": "off",  # this process's own output is nothing to keep
    "disable_git": True,  # environment.json has it
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": FLUSH,
}


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        print("wandb:", " ".join(text.split()), flush=True)


def main() -> None:
    """The line on standard input is a table: ``mode`` (auto, online or offline), ``init`` (what wandb.init is
    given), ``signals`` to ignore, ``pid`` of the process that trains, ``folder`` of the run, ``offset`` from
    which metrics.jsonl is copied; ``connect`` and ``last``, seconds that a server may take to answer and that
    may go by after the run's end; ``artifact``, None or what ``log_checkpoint`` is given. That of the end has
    the two that are known then: tracking.py's ``wandb_end``."""
    sys.stdout = os.fdopen(os.dup(1), "w")  # ours alone: while a process that wandb starts has it, it is open
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    job = json.loads(sys.stdin.readline())
    for number in job["signals"]:  # they are for the run, whose end is ours
        signal.signal(number, signal.SIG_IGN)
    if hasattr(os, "nice"):  # not on Windows
        os.nice(10)
    over = threading.Event()
    threading.Thread(target=wait_for_the_end, args=(job, over), daemon=True).start()
    try:
        copy(job, over)
    except BaseException as error:
        say(f"{type(error).__name__}: {error}; the run goes on without it, and metrics.jsonl has every row")
        os._exit(1)  # wandb's own clean-up could hang


def wait_for_the_end(job: dict[str, Any], over: threading.Event) -> None:
    with contextlib.suppress(ValueError):  # there is no line where the run was killed
        job |= json.loads(sys.stdin.read())
    over.set()
    time.sleep(job["last"])
    checkpoint = ", wandb artifact put the checkpoint" if job["artifact"] else ""
    say(
        f"not done {job['last']} s after the end; metrics.jsonl has every row; "
        f"wandb sync uploads what is there{checkpoint}"
    )
    os._exit(1)


def copy(job: dict[str, Any], over: threading.Event) -> None:
    run = begin(job)
    if run is None:
        return
    run.define_metric("step")
    run.define_metric("tokens")
    run.define_metric("*", step_metric="step")
    run.define_metric("val/*", step_metric="tokens")
    folder = Path(job["folder"])
    disk = Disk(Path(run.dir).parents[1])  # wandb/run-…/files
    with (folder / "metrics.jsonl").open("rb") as file:
        file.seek(job["offset"])
        marked, mark = time.monotonic(), job["offset"]
        ended = False
        while not ended:
            ended = over.wait(POLL)  # what was written before the end is read below
            if time.monotonic() - marked > 2 * FLUSH:  # what was copied by then is in wandb's file by now
                remember(job, mark)
                marked, mark = time.monotonic(), file.tell()
            for line in iter(file.readline, b""):
                if not line.endswith(b"\n"):  # the rest of it is still to come
                    file.seek(-len(line), os.SEEK_CUR)
                    break
                row = json.loads(line)
                run.log(logged(row), step=row["step"], commit=True)
            disk.check()
        status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
        run.summary["state"] = status["state"]
        for key, value in (status["best"] or {}).items():  # wandb's own minimum is NaN after one NaN
            run.summary[f"best/{key}"] = value
        finish(run, 0 if status["state"] in ("finished", "diverged") else 1, job["artifact"])
        remember(job, file.tell())
    disk.check(now=True)


def finish(run: Any, exit_code: int, artifact: dict[str, Any] | None) -> None:
    """End the wandb run, and with it the upload of the checkpoint, where one is wanted."""
    if artifact is None:
        run.finish(exit_code=exit_code)
        return
    logged = None
    with a_failure_said(artifact["file"]):
        logged = log_checkpoint(run, **artifact)
    run.finish(exit_code=exit_code)  # however the upload goes
    with a_failure_said(artifact["file"]):
        if logged and not run.offline:
            logged.wait()  # it has come or failed by now, and this raises the error


def log_checkpoint(run: Any, file: str, name: str, metadata: dict[str, Any]) -> Any:
    import wandb

    artifact = wandb.Artifact(name, type="model", metadata=metadata)
    # A checkpoint never changes, so wandb reads it where it is, now or at wandb sync (whose 0.28 then removed
    # it). By default wandb 0.31 makes copies in ~/.local/share/wandb, where an offline run's stays for good,
    # and in ~/.cache/wandb.
    artifact.add_file(file, policy="immutable", skip_cache=True)
    return run.log_artifact(artifact, aliases=["final"])


@contextlib.contextmanager
def a_failure_said(file: str) -> Iterator[None]:
    """What fails in here is only told of: wandb has the rows all the same."""
    try:
        yield
    except Exception as error:
        say(f"{file}: not uploaded ({type(error).__name__}: {error})")


def remember(job: dict[str, Any], copied: int) -> None:
    """How much of metrics.jsonl wandb has: a run that goes on goes on there."""
    file = Path(job["folder"]) / "wandb.json"
    known = json.loads(file.read_text(encoding="utf-8"))
    if known["id"] == job["init"]["id"]:  # the run may have been killed, and started over meanwhile
        temporary = file.with_name(".wandb.json.tmp")
        temporary.write_text(json.dumps(known | {"copied": copied}), encoding="utf-8")
        temporary.replace(file)


def begin(job: dict[str, Any]) -> Any:
    """A wandb run: online if that is wanted and there is a key and a server, else offline. None where wandb's
    own settings say that there shall be none."""
    import wandb

    wanted = SETTINGS | {"init_timeout": job["connect"], "x_stats_pid": job["pid"]}
    known = wandb.Settings.model_fields
    settings = wandb.Settings(**{key: value for key, value in wanted.items() if key in known})
    configured = wandb.setup(settings).settings.mode  # by wandb offline, wandb disabled
    mode: Any = job["mode"]
    if mode == "auto" and configured == "disabled":
        say("disabled by its own settings")
        return None
    if mode != "offline":
        why = None
        if mode == "online":
            why = "no key was found, wandb login asks for one"
            why = why if configured == "online" else f"its own settings say {configured}"
        try:
            mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
        except (wandb.errors.AuthenticationError, wandb.errors.UsageError) as error:
            mode, why = "offline", str(error)
        if mode == "offline" and why:
            say(f"{why}; this run is offline")
    attempts = set(Path(job["init"]["dir"]).glob(f"wandb/run-*-{job['init']['id']}"))
    try:
        run = wandb.init(mode=mode, settings=settings, **job["init"])
    except Exception as error:
        if mode == "offline":
            raise
        say(f"no connection ({type(error).__name__}: {error}); this run is offline")
        wandb.teardown()
        for attempt in set(Path(job["init"]["dir"]).glob(f"wandb/run-*-{job['init']['id']}")) - attempts:
            shutil.rmtree(attempt, ignore_errors=True)  # empty, and it would be uploaded
        mode = "offline"
        run = wandb.init(mode=mode, settings=settings, **job["init"])
    asked, got = Path(job["init"]["dir"]).resolve(), Path(run.dir).resolve().parent
    if not got.is_relative_to(asked):
        say(f"{asked} cannot be written; this run is in {got}")
    where = os.path.relpath(got)
    offline = f"offline; watch: wandb leet {os.path.dirname(where)}; upload: wandb sync {where}"
    say(offline if mode == "offline" else str(run.url))
    return run


def logged(row: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics.jsonl as wandb takes it: numbers, and histograms."""
    import numpy as np
    import wandb

    out: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(value, dict):
            out[name] = float(value) if isinstance(value, str) else value  # NaN, Infinity
            continue
        out[name.replace("hist.", "nonfinite.", 1)] = value["nonfinite"]
        if sum(value["counts"]):
            counts = np.asarray(value["counts"])
            edges = np.linspace(value["low"], value["high"], len(counts) + 1)
            out[name] = wandb.Histogram(np_histogram=(counts, edges))
    return out


class Disk:
    """Notices that wandb's disk is full. wandb does not say so: it only loses what it writes."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / ".space"
        self.said = False
        self.checked = time.monotonic()

    def check(self, now: bool = False) -> None:
        if self.said or not (now or time.monotonic() - self.checked > 10):
            return
        self.checked = time.monotonic()
        try:
            self.file.write_bytes(bytes(PROBE))
        except OSError as error:
            self.said = True
            say(
                f"{self.file.parent}: {error.strerror}; rows may be missing there, metrics.jsonl has them all"
            )
        finally:
            with contextlib.suppress(OSError):
                self.file.unlink()


if __name__ == "__main__":
    main()
