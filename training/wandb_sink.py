"""Show a run on wandb: a sink of the rows of metrics.jsonl that never ends a run and never delays a step.

All of wandb, its import included, runs in one thread of the process that trains. ``Wandb.log`` only puts a
row into the thread's queue, and ``Wandb.finish`` waits a limited time. The first error is printed; then the
thread ends, and later calls do nothing: metrics.jsonl has every row.

While the run trains, wandb shows its losses, in the sections ``train`` and ``val``. Single statistics are
logged, too, but hidden; at the end, the section ``within`` gets pictures of them (wandb_pictures.py). What is
measured once is in the summary.
"""

import importlib.util
import json
import math
import os
import queue
import re
import secrets
import shlex
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from cli.schema import RunConfig
from data.errors import ConfigError, described
from data.files import write_atomically
from probe.metric_names import STATISTICS
from training.run_folder import leaking, read_json

CONNECT_SECONDS = 8  # limit on the wait for wandb's server at the start
FINISH_SECONDS = 15  # limit on the wait for the last rows, besides the time for uploading a checkpoint
UPLOAD_RATE = 10**6  # bytes per second; a slower upload of a checkpoint is aborted
MODES = ("auto", "online", "offline", "disabled")
SETTINGS = {
    "silent": True,
    "console": "off",
    "disable_git": True,  # environment.json has the commit
    "x_save_requirements": False,
    "finish_timeout_raises": True,
    "x_transaction_log_flush_interval": 2.0,  # seconds; a kill loses the rows since the last flush
}
ONCE = ("leak.*", "val/full_loss", "val/select_loss", "val/report_loss", "val/bpb")
SERIES = ("step", "tokens", "seconds", "stats/*", "hist.*", "nonfinite.*", *(f"{s}/*" for s in STATISTICS))
HIDDEN = *SERIES, *ONCE
FACTS = ("parameters", "device", "precision", "ranks", "threads", "compile")  # of the environment
NOT_SENT = {"_target_", "runs_dir", "fresh", "cache", "verify", "stats", "wandb"}  # settings


def say(text: str) -> None:
    with suppress(OSError):  # stdout may be closed
        print("wandb:", " ".join(text.split()), flush=True)


def wandb_mode(config: RunConfig) -> str:
    """Return one of MODES. ``auto`` means WANDB_MODE, if set, and disabled if wandb is not installed. Raises
    ConfigError if WANDB_MODE is invalid, or if a mode given in the config needs wandb."""
    mode: str = config.wandb.mode
    if mode == "auto":
        mode = (os.environ.get("WANDB_MODE") or mode).lower()
    mode = {"dryrun": "offline"}.get(mode, mode)  # an old name
    if mode not in MODES:
        raise ConfigError(f"WANDB_MODE: invalid value {mode!r}; expected one of {', '.join(MODES)}")
    package = importlib.util.find_spec("wandb")
    if mode == "disabled" or (package and package.origin):  # a folder named wandb has no origin
        return mode
    if config.wandb.mode == "auto":
        say("not installed; the run's folder has all that wandb would show")
        return "disabled"
    raise ConfigError(f"wandb.mode: {mode} needs wandb; run pip install wandb, or give wandb.mode=disabled")


class Wandb:
    """A sink of a run's metrics. An error is printed once; later calls do nothing."""

    def __init__(
        self, mode: str, config: RunConfig, folder: Path, environment: dict[str, Any], step: int
    ) -> None:
        """Start wandb in the thread; return at once.

        Args:
            mode: see ``wandb_mode``.
            environment: the content of environment.json; some of it becomes config.
            step: 0 starts a new run at wandb, whose server accepts each step of an id once; a later step
                continues the run whose id is in the folder's wandb.json.
        """
        self.jobs: queue.SimpleQueue[Callable[[Any], None] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.mode, self.gave_up, self.settings = mode, False, config.wandb
        if self.mode == "disabled":
            return
        stored = {"id": f"{folder.name}-{secrets.token_hex(3)}"}
        stored |= read_json(folder / "wandb.json") if step else {}
        write_atomically(folder / "wandb.json", json.dumps(stored))
        facts = {key: environment[key] for key in FACTS} | environment["settled"]
        facts |= environment["git"] or {}  # commit, clean
        self.options = {
            "id": stored["id"],
            "resume": "allow",
            "reinit": "create_new",  # whatever became of an earlier run in this process
            "name": folder.name,
            "project": self.settings.project,
            "entity": self.settings.entity,
            "group": self.settings.group or environment["group"],
            "tags": [*self.settings.tags],
            "dir": self.settings.dir,
            "config": flat(config.model_dump(by_alias=True)) | flat(facts),
        }
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else a dead server costs 10 s at exit
        self.thread.start()

    def work(self) -> None:
        """In the thread: start wandb, then do the jobs of the queue in their order; None is the last."""
        hooks = sys.excepthook, sys.exit
        try:
            run = begin(self.mode, self.options)
            while run and (job := self.jobs.get()):
                job(run)
        except Exception as error:
            if not self.gave_up:
                say(f"{described(error)}; training is not affected, metrics.jsonl has every row")
        finally:
            with suppress(Exception):  # ends wandb's process, so that nothing is left to do at exit
                importlib.import_module("wandb").teardown()
            sys.excepthook, sys.exit = hooks  # wandb replaces them

    def log(self, row: dict[str, Any]) -> None:
        """Log a row of metrics.jsonl."""
        if self.thread.is_alive():
            self.jobs.put(lambda run: run.log(wandb_row(row), step=row["step"], commit=True))

    def finish(
        self,
        status: dict[str, Any],
        rows: Callable[[], list[dict[str, Any]]],
        certificate: dict[str, Any],
        checkpoint: Path,
    ) -> None:
        """Log how the run ended, and wait a limited time for wandb.

        Args:
            status: the content of status.json.
            rows: returns all rows of metrics.jsonl, of which the pictures are made.
            checkpoint: the last one, which is uploaded if the run has finished and wandb.artifact is set.
        """
        if not self.thread.is_alive():
            return
        uploads = self.settings.artifact and status["state"] == "finished" and checkpoint.is_file()
        file = checkpoint if uploads else None
        self.jobs.put(partial(end, status=status, rows=rows, certificate=certificate, file=file))
        self.jobs.put(None)
        self.thread.join(2)
        if not self.thread.is_alive():
            return
        seconds = CONNECT_SECONDS + FINISH_SECONDS + upload_seconds(file)
        say(f"waiting up to {seconds} s for the last rows")
        try:
            self.thread.join(seconds)
        finally:  # also if a signal ends the wait
            if self.thread.is_alive():
                self.gave_up = True
                kill_core()
                self.thread.join(2)
                say("gave up; metrics.jsonl has every row; upload the rest with wandb sync")


def kill_core() -> None:
    """Kill wandb's process: whatever waits for its answer then raises an error."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.name() == "wandb-core":
                child.kill()


def begin(mode: str, options: dict[str, Any]) -> Any:
    """Start and return a wandb run: online if that is wanted and possible, else offline. Returns None if
    wandb's own settings disable it."""
    import wandb

    fields = wandb.Settings.model_fields  # settings with x_ differ between versions of wandb
    wanted = SETTINGS | {"init_timeout": CONNECT_SECONDS, "finish_timeout": FINISH_SECONDS}
    settings = wandb.Settings(**{key: value for key, value in wanted.items() if key in fields})
    configured = wandb.setup(settings).settings.mode  # set by the commands wandb offline, wandb disabled
    if mode == "auto" and configured == "disabled":
        say("disabled by its own settings")
        return None
    attempts = partial(Path(options["dir"]).glob, f"wandb/run-*-{options['id']}")
    before, run, why_offline = {*attempts()}, None, ""
    if mode != "offline":
        try:
            if wandb.login(prompt=False, verify=False):
                run = wandb.init(mode="online", settings=settings, **options)
                say(str(run.url))
            elif mode == "online":
                by_settings = f"its own settings say {configured}"
                why_offline = f" ({'no key; run wandb login' if configured == 'online' else by_settings})"
        except Exception as error:
            why_offline = f" (no connection: {described(error)})"
            wandb.teardown()  # else the id is still in use
            for attempt in {*attempts()} - before:
                shutil.rmtree(attempt, ignore_errors=True)  # empty, but wandb sync would upload it
    if run is None:
        run = wandb.init(mode="offline", settings=settings, **options)
        folder = os.path.relpath(Path(run.dir).parent)
        leet = shlex.join(["wandb", "leet", os.path.dirname(folder)])
        sync = shlex.join(["wandb", "sync", folder])
        say(f"offline{why_offline}; to watch it: {leet}; to upload it: {sync}")
    run.define_metric("*", step_metric="step")
    for name in HIDDEN:
        run.define_metric(name, step_metric="step", hidden=True)
    return run


def end(
    run: Any,
    status: dict[str, Any],
    rows: Callable[[], list[dict[str, Any]]],
    certificate: dict[str, Any],
    file: Path | None,
) -> None:
    """Log the pictures, the summary and the checkpoint of a run that has ended."""
    from training.wandb_pictures import pictures  # here: the loop needs none

    has_ended = status["state"] in ("finished", "diverged")
    if has_ended and (found := pictures(rows())):  # they take a step, which a resumed run would need
        run.log(found)
    leaky, best = leaking(certificate), status.get("best")
    once = {key: status.get(key) for key in ("state", "reason", "peak_memory")}
    once |= {"leaks": leaky, "parameters": run.config.get("parameters")}
    once |= {f"best/{key}": value for key, value in (best or {}).items()}
    run.summary.update({key: value for key, value in once.items() if value is not None})
    if leaky:
        run.tags = (*run.tags, "leaks")
    if file:
        losses = {"val/full_loss": status.get("final"), "best": best}
        upload(run, file, {"step": status.get("step"), "leaks": leaky} | losses)
    run.finish(exit_code=0 if has_ended else 1)


def upload_seconds(file: Path | None) -> int:
    return math.ceil(file.stat().st_size / UPLOAD_RATE) if file and file.is_file() else 0


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
            logged.wait(timeout=upload_seconds(file) + FINISH_SECONDS // 2)  # raises if the upload has failed
    except Exception as error:
        say(f"{file}: not uploaded ({described(error)}); to upload it: wandb artifact put")


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings that are not null, without levels: norm, norm_eps, optim_learning_rate, … wandb's
    filters do not find a key with a dot."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        name = "_".join(filter(None, [prefix, key.replace("_name_", "").replace(".", "_")]))
        if key in NOT_SENT or value is None:
            continue
        result |= flat(value, name) if isinstance(value, dict) else {name: value}
    return result


def wandb_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.jsonl with histograms as wandb.Histogram, and the strings NaN, Infinity
    and -Infinity as numbers."""
    import numpy as np
    import wandb

    converted: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(value, dict):
            converted[name] = float(value) if isinstance(value, str) else value
            continue
        converted[name.replace("hist.", "nonfinite.", 1)] = value["nonfinite"]
        if sum(value["counts"]):
            edges = np.linspace(value["low"], value["high"], len(value["counts"]) + 1)
            converted[name] = wandb.Histogram(np_histogram=(np.asarray(value["counts"]), edges))
    return converted
