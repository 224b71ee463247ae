"""Train and measure the models of a finding, and store the runs and the numbers.

    <out>/runs/          the runs, as train.py writes them; findings that need the same run share it
    <out>/results/       a JSON per finding and per control; the file name has a hash of models and code

The same command resumes: it finishes unfinished runs and reads back finished measurements.
"""

import importlib
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from rich.console import Console
from rich.progress import track

from data.errors import ConfigError
from data.files import digest, write_atomically
from findings.finding import Finding
from findings.models import TRAINING, Cases, Measured, all_cases, each_case
from study.launch import Job, check, default_n_jobs, run_all
from training import identity
from training.environment import PACKAGES, ROOT, processor
from training.identity import source
from training.run_folder import has_ended

# the folders of the code that makes and measures models
PARTS = ("model", "data", "training", "probe", "findings")


class Provenance(BaseModel):  # the machine, with keys of environment.json, and the number of runs
    processor: str
    precision: str
    packages: dict[str, str]
    runs: int


class Seconds(BaseModel):
    training: float  # the sum over the runs
    measuring: float


class Result(BaseModel, ser_json_inf_nan="strings", serialize_by_alias=True, validate_by_name=True):
    """A measurement, as the JSON file keeps it."""

    conditions: dict[str, Any]  # everything that the numbers depend on, except the code
    by_seed: dict[int, dict[str, float]]  # seed -> quantity -> value
    rows: list[tuple[str, float | str, float]]  # the picture's points (arm, x, y) of all seeds
    seconds: Seconds
    provenance: Provenance = Field(alias="where")


def read(file: Path) -> Result | None:
    """Return a result; None if the file is missing or invalid."""
    try:
        return Result.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None


def obtain(name: str, finding: Finding, out: Path, config_dir: str | None = None) -> Result:
    """Return a finding's stored result; if none is stored, measure the finding and store the result. Raises
    ConfigError and DataError."""
    out = out.resolve()
    cases = all_cases(finding, out, config_dir)
    file = out / "results" / f"{name}-{content_hash(finding, cases)}.json"
    if result := read(file):
        return result
    if finding.trains:
        train(cases, out / "runs", config_dir)
    result = measure(name, finding, cases)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, result.model_dump_json())
    return result


def find_result(name: str, finding: Finding, folder: Path) -> Result | None:
    """Return the newest stored result that has the finding's conditions, whatever code measured it; None if
    there is none."""
    # results/findings has one published result per finding, {name}.json, without the hash of its code
    files = [*folder.glob(f"{name}.json"), *folder.glob(f"{name}-{'[0-9a-f]' * 8}.json")]
    results = map(read, sorted(files, key=lambda file: file.stat().st_mtime, reverse=True))
    return next((r for r in results if r and r.conditions == finding.conditions()), None)


def content_hash(finding: Finding, cases: list[Cases]) -> str:
    """Return a hash, eight hex digits, of the models, their texts, and the code that makes and measures the
    models. Expectations are not part of the hash."""
    models = [
        [case.arm, case.value, identity.identity(case.config, case.precision, case.data.fingerprint)]
        for case in each_case(cases)
    ]
    code = [
        file.read_text(encoding="utf-8") for part in PARTS for file in sorted((ROOT / part).rglob("*.py"))
    ]
    code.append(source(finding.measure))  # and what it uses of other folders, such as study/
    return digest({"conditions": finding.conditions(), "models": models, "code": code})[:8]


def train(cases: list[Cases], runs_dir: Path, config_dir: str | None = None) -> None:
    """Train the models whose runs have not ended, several at once. Raises ConfigError if a run failed, and
    Interrupted at a signal, when each run has saved."""
    folders = {case.folder: case for case in each_case(cases) if case.folder}
    if all(map(has_ended, folders)):
        return
    jobs = [
        Job(str(folder.relative_to(runs_dir)), (*case.arguments, *TRAINING))
        for folder, case in folders.items()
    ]
    logs, device = runs_dir / ".sweep", next(iter(folders.values())).config.device
    check(run_all(jobs, runs_dir, logs, default_n_jobs(device), config_dir), logs)


def measure(name: str, finding: Finding, cases: list[Cases]) -> Result:
    """Measure the models of each seed. Raises ConfigError."""
    import torch

    function = import_function(finding.measure)
    torch.use_deterministic_algorithms(True)
    by_seed: dict[int, Measured] = {}
    console, start = Console(stderr=True), time.perf_counter()
    progress: dict[str, Any] = {"console": console, "disable": not console.is_terminal, "transient": True}
    for seed_cases in track(cases, f"measuring {name}", **progress):
        measured = by_seed[seed_cases.seed] = function(seed_cases, **finding.options)
        if missing := [quantity for quantity in finding.quantities() if quantity not in measured.values]:
            available = ", ".join(map(repr, measured.values))
            raise ConfigError(f"{finding.measure} returns no {missing[0]!r}; it returns {available}")
    runs = [*{case.folder: case.run for case in each_case(cases) if case.folder}.values()]
    training = sum(float(run.rows[-1]["seconds"]) for run in runs)
    packages = {name: version(name) for name in PACKAGES}
    machine: dict[str, Any] = {"processor": processor(), "precision": "fp32", "packages": packages}
    if runs:
        machine = {key: runs[-1].environment[key] for key in machine}
    return Result(
        conditions=finding.conditions(),
        by_seed={seed: dict(measured.values) for seed, measured in by_seed.items()},
        rows=[
            (arm, x, y)
            for measured in by_seed.values()
            for arm, points in measured.points.items()
            for x, y in (points.items() if isinstance(points, Mapping) else points)
        ],
        seconds=Seconds(training=training, measuring=time.perf_counter() - start),
        provenance=Provenance(**machine, runs=len(runs)),
    )


def import_function(target: str) -> Callable[..., Measured]:
    """Import and return the function ``target``. Raises ConfigError if it cannot be imported."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"measure: {target} cannot be imported ({error}); check the name") from None
