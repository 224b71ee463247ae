"""Copy the rows of a run's metrics.jsonl to wandb, in a separate process that rundir/wandb_sink.py starts.

wandb may hang, raise in the middle of a log, ask questions, and take seconds to start. None of this can
disturb the process that trains, which only writes metrics.jsonl. A killed run is copied up to its last row,
and each run of a sweep is a separate wandb run, even after a failed run.

Standard input: one JSON line, the job of rundir/wandb_sink.py; it is closed when the run has ended. Standard
output: lines for the user.
"""

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

POLL = 0.5  # seconds between reads of metrics.jsonl
UPLOAD_RATE = 10**6  # bytes per second; a slower upload of a checkpoint is aborted
FLUSH = 2.0  # seconds between wandb's writes; if wandb is killed, the rows since the last are lost
SETTINGS = {
    "silent": True,
    "console": "off",  # this process prints nothing worth keeping
    "disable_git": True,  # environment.json has the commit
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": FLUSH,
}


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # stdout may be closed
        print("wandb:", " ".join(text.split()), flush=True)


def main() -> None:
    """Read the job from stdin; copy rows to wandb until the run has ended."""
    # wandb's processes do not inherit this stream, so it closes with this process
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    job = json.loads(sys.stdin.readline())
    for number in job["signals"]:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(os, "nice"):  # not on Windows
        os.nice(10)
    ended = threading.Event()
    threading.Thread(target=wait_for_end, args=(job, ended), daemon=True).start()
    try:
        copy_rows(job, ended)
    except BaseException as error:
        say(f"{type(error).__name__}: {error}; training is not affected, metrics.jsonl has every row")
        os._exit(1)  # wandb's clean-up at exit could hang


def status_of(job: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(Path(job["folder"], "status.json").read_text(encoding="utf-8")))


def final_checkpoint(job: dict[str, Any]) -> Path | None:
    """Return the checkpoint to upload: the last one of a finished run, or None if no upload is wanted."""
    return Path(job["checkpoint"]) if job["checkpoint"] and status_of(job)["state"] == "finished" else None


def finish_seconds(job: dict[str, Any]) -> int:
    """Return how many seconds wandb may take after the end of the run."""
    file = final_checkpoint(job)
    size = file.stat().st_size if file and file.is_file() else 0
    return int(job["finish_seconds"]) + math.ceil(size / UPLOAD_RATE)


def wait_for_end(job: dict[str, Any], ended: threading.Event) -> None:
    """Set ``ended`` when the run has ended; then end this process if wandb takes too long."""
    sys.stdin.read()
    ended.set()
    time.sleep(seconds := finish_seconds(job))
    checkpoint = ", and the checkpoint with wandb artifact put" if final_checkpoint(job) else ""
    say(
        f"gave up {seconds} s after the end; metrics.jsonl has every row; "
        f"upload the rest with wandb sync{checkpoint}"
    )
    os._exit(1)


def copy_rows(job: dict[str, Any], ended: threading.Event) -> None:
    run = begin(job)
    if run is None:
        return
    run.define_metric("step")
    run.define_metric("tokens")
    run.define_metric("*", step_metric="step")
    run.define_metric("val/*", step_metric="tokens")
    metrics, offset = Path(job["folder"], "metrics.jsonl"), job["offset"]
    mark_time, mark = time.monotonic(), offset
    last_pass = False
    while not last_pass:
        last_pass = ended.wait(POLL)  # rows written before the end are copied below
        if time.monotonic() - mark_time > 2 * FLUSH:  # wandb has flushed the rows before the mark
            record_copied(job, mark)
            mark_time, mark = time.monotonic(), offset
        unread = read_from(metrics, offset)
        complete = unread[: unread.rfind(b"\n") + 1]  # the last line may be incomplete
        offset += len(complete)
        for line in complete.splitlines():
            row = json.loads(line)
            run.log(wandb_row(row), step=row["step"], commit=True)
    status = status_of(job)
    run.summary["state"] = status["state"]
    certificate = job["init"]["config"]["certificate"]
    with contextlib.suppress(OSError, ValueError):  # someone may have removed the file
        certificate = json.loads(Path(job["folder"], "certificate.json").read_text(encoding="utf-8"))
    leaks = any(False in (a["causal"], a["independent_rows"]) for a in certificate.values() if a)
    if leaks and "leaks" not in run.tags:  # only the trained model does
        run.tags = (*run.tags, "leaks")
    run.config.update({"certificate": certificate}, allow_val_change=True)
    for key, value in (status["best"] or {}).items():  # wandb's minimum is NaN after one NaN
        run.summary[f"best/{key}"] = value
    if checkpoint := final_checkpoint(job):
        losses = {"val/full_loss": status["final"], "best": status["best"]}
        upload(run, checkpoint, {"step": status["step"], "leaks": leaks} | losses)
    run.finish(exit_code=0 if status["state"] in ("finished", "diverged") else 1)
    record_copied(job, offset)


def read_from(file: Path, offset: int) -> bytes:
    """Return the bytes of a file from an offset on; none while the file is missing, as the run writes it
    again if someone has removed it."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as stream:
        stream.seek(offset)
        return stream.read()
    return b""


def upload(run: Any, file: Path, metadata: dict[str, Any]) -> None:
    """Upload a checkpoint; a failure is only reported."""
    import wandb

    try:
        name = re.sub(r"[^A-Za-z0-9._-]", "-", file.parents[1].name)[-128:]  # keeps the hash at the end
        artifact = wandb.Artifact(name, type="model", metadata=metadata)
        # A checkpoint never changes, so wandb reads it in place, now or at wandb sync. By default wandb makes
        # copies in ~/.local/share/wandb (for an offline run never removed) and in ~/.cache/wandb.
        artifact.add_file(str(file), policy="immutable", skip_cache=True)
        logged = run.log_artifact(artifact, aliases=["final"])
        if not run.offline:
            logged.wait()  # raises if the upload has failed
    except Exception as error:
        say(f"{file}: not uploaded ({type(error).__name__}: {error})")


def record_copied(job: dict[str, Any], copied: int) -> None:
    """Record how many bytes of metrics.jsonl wandb has; a resumed run is copied from this offset on."""
    file = Path(job["folder"]) / "wandb.json"
    stored = json.loads(file.read_text(encoding="utf-8"))
    if stored["id"] == job["init"]["id"]:  # otherwise the run was killed and started over meanwhile
        temporary = file.with_name(".wandb.json.tmp")
        temporary.write_text(json.dumps(stored | {"copied": copied}), encoding="utf-8")
        temporary.replace(file)


def begin(job: dict[str, Any]) -> Any:
    """Start and return a wandb run: online if that is wanted and possible, else offline. Returns None if
    wandb's settings disable wandb."""
    import wandb

    wanted = SETTINGS | {"init_timeout": job["connect_seconds"], "x_stats_pid": job["pid"]}
    fields = wandb.Settings.model_fields  # settings with x_ differ between versions of wandb
    settings = wandb.Settings(**{key: value for key, value in wanted.items() if key in fields})
    configured = wandb.setup(settings).settings.mode  # set by the commands wandb offline, wandb disabled
    if job["mode"] == "auto" and configured == "disabled":
        say("disabled by its own settings")
        return None
    pattern = f"wandb/run-*-{job['init']['id']}"  # of the folders that online starts make
    folders_before, why_offline = set(Path(job["init"]["dir"]).glob(pattern)), ""
    if job["mode"] != "offline":
        try:
            if wandb.login(prompt=False, verify=False):
                run = wandb.init(mode="online", settings=settings, **job["init"])
                say(str(run.url))
                return run
            if job["mode"] == "online":
                by_settings = f"its own settings say {configured}"
                why_offline = f" ({'no key; run wandb login' if configured == 'online' else by_settings})"
        except Exception as error:
            why_offline = f" (no connection: {type(error).__name__}: {error})"
            wandb.teardown()
            for attempt in set(Path(job["init"]["dir"]).glob(pattern)) - folders_before:
                shutil.rmtree(attempt, ignore_errors=True)  # empty, but wandb sync would upload it
    run = wandb.init(mode="offline", settings=settings, **job["init"])
    folder = os.path.relpath(Path(run.dir).parent)
    leet, sync = shlex.join(["wandb", "leet", os.path.dirname(folder)]), shlex.join(["wandb", "sync", folder])
    say(f"offline{why_offline}; to watch it: {leet}; to upload it: {sync}")
    return run


def wandb_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.jsonl with histograms as wandb.Histogram, and the strings NaN, Infinity
    and -Infinity as numbers."""
    import numpy as np
    import wandb

    converted: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(value, dict):
            converted[name] = float(value) if isinstance(value, str) else value  # NaN, Infinity
            continue
        converted[name.replace("hist.", "nonfinite.", 1)] = value["nonfinite"]
        if sum(value["counts"]):
            counts = np.asarray(value["counts"])
            edges = np.linspace(value["low"], value["high"], len(counts) + 1)
            converted[name] = wandb.Histogram(np_histogram=(counts, edges))
    return converted


if __name__ == "__main__":
    main()
