"""Take runs from published tables (scripts/publish.py), so that a sweep need not train them again.

A published run has no weights: it can be compared, and settings can be chosen by it, but not sampled from.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from cli import messages
from cli.app import CONF
from cli.schema import RunConfig
from comparison.find import SHARED
from comparison.load import Run, UnreadableError
from rundir.folder import has_ended, read_status
from rundir.run_files import NOT_IN_IDENTITY
from sweep.job import Job
from system.errors import ConfigError
from system.files import jsonable, write_atomically


def published_runs(folders: Iterable[str]) -> dict[str, Run]:
    """Return the runs of published tables by name; a relative path is relative to the project's folder.
    Raises ConfigError."""
    runs: dict[str, Run] = {}
    for folder in folders:
        from comparison.published import read  # imports scipy, for which a sweep without tables need not wait

        if not (CONF.parent / folder / SHARED).exists():
            problem = f"{CONF.parent / folder} has no published runs; name a folder that has"
            raise ConfigError(f"hydra.sweeper.published: {problem}")
        try:
            runs |= {run.name: run for run in read(CONF.parent / folder)}
        except UnreadableError as error:
            raise ConfigError(f"hydra.sweeper.published: {folder}: {error}; restore its files") from None
    return runs


def restore_published(jobs: Iterable[Job]) -> None:
    """Write the folders of the jobs whose runs are published; an error is the job's. A run that another
    program has begun meanwhile is left alone."""
    for job in jobs:
        if job.published and job.run and job.config:
            if read_status(job.run):
                job.published, job.done = None, has_ended(job.run)
                continue
            try:
                restore(job.run, job.config, job.published)
                job.published = None
            except OSError as error:
                job.error, job.done = messages.error_line(error, []), False


def restore(folder: Path, config: RunConfig, run: Run) -> None:
    """Write the folder of a published run, status.json last: then the run has ended. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps(jsonable(row), allow_nan=False) + "\n" for row in rows_of(run))
    write_atomically(folder / "metrics.jsonl", rows)
    settings = config.model_dump(by_alias=True)
    watched = {key: f"train.{key}" for key in NOT_IN_IDENTITY}  # older tables may lack newer keys
    settings["train"] |= {key: run.config[name] for key, name in watched.items() if name in run.config}
    write_atomically(folder / "config.yaml", yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    environment = run.environment | {"restored_from": str(run.folder.parent)}
    parts = {"environment": environment, "certificate": run.certificate, "status": run.status}
    for name, content in parts.items():
        write_atomically(folder / f"{name}.json", json.dumps(jsonable(content), indent=1, allow_nan=False))


def rows_of(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the published rows of metrics.jsonl."""
    values: list[dict[str, Any]] = [{} for _ in run.axes["step"]]
    for name, (rows, numbers) in run.metrics.items():
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            values[row][name] = number
    axes = zip(*(run.axes[axis].tolist() for axis in ("step", "tokens", "seconds")), strict=True)
    for (step, tokens, seconds), row in zip(axes, values, strict=True):
        yield {"step": int(step), "tokens": int(tokens), "seconds": seconds} | row
