"""Send the rows of metrics.jsonl to wandb, without ever ending a run or delaying a step.

All of wandb, its import included, runs in one thread of the process that trains. ``Wandb.log`` only puts a
row into the thread's queue, and ``Wandb.finish`` waits a limited time. The first error is printed; then the
thread ends, and later calls do nothing: metrics.jsonl has every row.
"""

import json
import math
import os
import queue
import re
import secrets
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
from training.run_folder import leaking, read_json

CONNECT_SECONDS = 8  # limit on the wait for wandb's server at the start
FINISH_SECONDS = 15  # limit on the wait for the last rows, besides the time for uploading a checkpoint
UPLOAD_RATE = 10**6  # bytes per second; a slower upload of a checkpoint is aborted
MODES = ("auto", "online", "offline", "disabled")
FACTS = ("parameters", "device", "precision", "ranks", "threads", "compile")  # of the environment
NOT_SENT = {"_target_", "runs_dir", "fresh", "cache", "verify", "stats", "wandb"}  # settings


def say(text: str) -> None:
    print("wandb:", " ".join(text.split()), flush=True)


def wandb_mode(config: RunConfig) -> str:
    """Return one of MODES: the config's or, if that is ``auto``, the one in the variable WANDB_MODE. Raises
    ConfigError."""
    if config.wandb.mode != "auto":
        return config.wandb.mode
    mode = (os.environ.get("WANDB_MODE") or "auto").lower()
    if mode not in MODES:
        raise ConfigError(f"WANDB_MODE: invalid value {mode!r}; expected one of {', '.join(MODES)}")
    return mode


class Wandb:
    """Starts wandb in its thread, unless ``mode`` is disabled.

    Args:
        mode: see ``wandb_mode``.
        environment: the content of environment.json; some of it becomes wandb's config.
        step: 0 starts a new run at wandb, as its server accepts each step of a run only once. A later step
            continues the run whose id is in the folder's wandb.json.
    """

    def __init__(
        self, mode: str, config: RunConfig, folder: Path, environment: dict[str, Any], step: int
    ) -> None:
        self.jobs: queue.SimpleQueue[Callable[[Any], None] | None] = queue.SimpleQueue()
        self.settings = config.wandb
        facts = {key: environment[key] for key in FACTS} | environment["settled"]
        facts |= environment["git"] or {}  # commit, clean
        options = self.settings.model_dump(include={"project", "entity", "tags", "dir"}) | {
            "name": folder.name,
            "group": self.settings.group or environment["group"],
            "config": flat(config.model_dump(by_alias=True)) | flat(facts),
        }
        self.thread = threading.Thread(target=self.work, args=(mode, options), daemon=True)
        if mode != "disabled":
            stored = {"id": f"{folder.name}-{secrets.token_hex(3)}"}
            stored |= read_json(folder / "wandb.json") if step else {}
            write_atomically(folder / "wandb.json", json.dumps(stored))
            options["id"] = stored["id"]
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else a dead server costs 10 s at exit
            self.thread.start()

    def work(self, mode: str, options: dict[str, Any]) -> None:
        """Runs in the thread: start wandb, then do the jobs of the queue in order, up to the first None."""
        try:
            run = begin(mode, options)
            while run and (job := self.jobs.get()):
                job(run)
        except Exception as error:
            say(f"{described(error)}; training is not affected, metrics.jsonl has every row")
        with suppress(Exception):  # ends wandb's process, so that nothing is left to do at exit
            import wandb

            wandb.teardown()

    def log(self, row: dict[str, Any]) -> None:
        """Log a row of metrics.jsonl."""
        if self.thread.is_alive():
            self.jobs.put(lambda run: run.log(wandb_row(row), step=row["step"]))

    def finish(self, status: dict[str, Any], certificate: dict[str, Any], checkpoint: Path) -> None:
        """Log how the run ended, and wait a limited time for wandb.

        Args:
            status, certificate: the content of status.json and certificate.json.
            checkpoint: the last one, which is uploaded if the run has finished and wandb.artifact is set.
        """
        if not self.thread.is_alive():
            return
        uploads = self.settings.artifact and status["state"] == "finished" and checkpoint.is_file()
        file = checkpoint if uploads else None
        self.jobs.put(partial(end, status=status, leaks=leaking(certificate), file=file))
        self.jobs.put(None)
        try:
            self.thread.join(CONNECT_SECONDS + FINISH_SECONDS + upload_seconds(file))
        finally:  # also if Ctrl-C ends the wait
            for child in psutil.Process().children() if self.thread.is_alive() else ():
                if child.name() == "wandb-core":
                    child.kill()  # the call that waits for its answer then raises an error in the thread
            self.thread.join(2)


def begin(mode: str, options: dict[str, Any]) -> Any:
    """Start and return a wandb run: online if that is wanted and possible, else offline. Returns None if the
    user has run ``wandb disabled``."""
    import wandb

    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,  # environment.json has the commit
        init_timeout=CONNECT_SECONDS,
        finish_timeout=FINISH_SECONDS,
        finish_timeout_raises=True,
    )
    start = partial(wandb.init, resume="allow", reinit="create_new", settings=settings, **options)
    run, why_offline = None, ""
    if mode == "auto" and wandb.setup(settings).settings.mode == "disabled":
        say("disabled by its own settings")
        return None
    if mode != "offline":
        try:
            if wandb.login(prompt=False, verify=False):
                run = start(mode="online")
                say(str(run.url))
            elif mode == "online":
                why_offline = " (no key; run wandb login, or wandb online)"
        except Exception as error:
            why_offline = f" (no connection: {described(error)})"
            wandb.teardown()  # else the id is still in use
    if run is None:
        run = start(mode="offline")
        say(f"offline{why_offline}; to upload it: wandb sync {os.path.relpath(Path(run.dir).parent)}")
    run.define_metric("*", step_metric="step")
    return run


def end(run: Any, status: dict[str, Any], leaks: bool, file: Path | None) -> None:
    """Log the summary and the checkpoint of a run that has ended."""
    best = {f"best/{key}": value for key, value in (status["best"] or {}).items()}
    once = best | {key: status.get(key) for key in ("state", "reason", "peak_memory")} | {"leaks": leaks}
    run.summary.update({key: value for key, value in once.items() if value is not None})
    if leaks:
        run.tags = (*run.tags, "leaks")
    if file:
        losses = {"val/full_loss": status["final"], "best": status["best"]}
        upload(run, file, {"step": status["step"], "leaks": leaks} | losses)
    run.finish(exit_code=0 if status["state"] in ("finished", "diverged") else 1)


def upload_seconds(file: Path | None) -> int:
    return math.ceil(file.stat().st_size / UPLOAD_RATE) if file else 0


def upload(run: Any, file: Path, metadata: dict[str, Any]) -> None:
    """Upload a checkpoint. Raises wandb's error if that fails."""
    import wandb

    name = re.sub(r"[^A-Za-z0-9._-]", "-", file.parents[1].name)[-128:]  # keeps the hash at the end
    artifact = wandb.Artifact(name, type="model", metadata=metadata)
    # A checkpoint never changes, so wandb reads it in place, now or at wandb sync. By default wandb would
    # copy it to ~/.cache/wandb and to ~/.local/share/wandb, where copies of offline runs are never removed.
    artifact.add_file(str(file), policy="immutable", skip_cache=True)
    logged = run.log_artifact(artifact, aliases=["final"])
    if not run.offline:
        logged.wait(timeout=upload_seconds(file) + FINISH_SECONDS // 2)


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings that are not null in one flat dict: norm, norm_eps, optim_learning_rate, … The keys
    have no dots, as wandb's filters do not find keys with dots."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        name = "_".join(filter(None, [prefix, key.replace("_name_", "").replace(".", "_")]))
        if key not in NOT_SENT and value is not None:
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
        elif sum(value["counts"]):
            edges = np.linspace(value["low"], value["high"], len(value["counts"]) + 1)
            converted[name] = wandb.Histogram(np_histogram=(np.asarray(value["counts"]), edges))
    return converted
