"""From a finding to its numbers: train what is not trained yet, measure what is not measured yet, keep both.

    <out>/runs/          the runs, as train.py leaves them; findings share those that are the same
    <out>/results/       a JSON for each finding and its control, named by what it was measured on and with

The same command again does what is missing: runs go on where they ended, and what is measured is read back.
"""

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.progress import track

from cli import app
from findings.finding import Finding
from findings.models import TRAINING, Cases, Found, all_cases, each
from rundir import identity
from rundir.code_hash import source
from rundir.environment import PACKAGES, ROOT, processor
from rundir.folder import has_ended
from system import signals
from system.errors import ConfigError
from system.files import small_text, write_atomically

Measure = Callable[..., Found]
LARGEST = 2**24  # bytes of a result
PARTS = ("model", "data", "diagnostics", "findings")  # whose code makes and measures models


class Where(BaseModel):
    """Where a result was measured: as in environment.json, and how many runs it is of."""

    processor: str
    precision: str
    packages: dict[str, str]
    runs: int


class Seconds(BaseModel):
    """That a result took: its runs, one after another, and measuring them."""

    training: float
    measuring: float


class Result(BaseModel):
    """What was measured, as it is kept.

    Attributes:
        conditions: of the finding, all but the code.
        by_seed: seed -> quantity -> value.
        rows: the picture's points: (arm, x, y), of all seeds.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    conditions: dict[str, Any]
    by_seed: dict[int, dict[str, float]]
    rows: list[tuple[str, float | str, float]]
    seconds: Seconds
    where: Where


def read(file: Path) -> Result | None:
    """None where there is no such file, or it is no result."""
    try:
        return Result.model_validate_json(small_text(file, LARGEST))
    except (OSError, ValueError):
        return None


def obtain(name: str, finding: Finding, out: Path, config_dir: str | None = None) -> Result:
    """The result of a finding, as it is kept, or else measured now.

    Raises:
        ConfigError: conditions that cannot be; a run that failed.
        DataError: as data.token_files.prepare.
    """
    out = out.resolve()
    cases = all_cases(finding, out, config_dir)
    file = out / "results" / f"{name}-{content(finding, cases)}.json"
    if found := read(file):
        return found
    if finding.trains:
        train(cases, out / "runs", config_dir)
    result = measured(name, finding, cases)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, result.model_dump_json())
    return result


def newest(name: str, finding: Finding, folder: Path) -> Path | None:
    """The file with the newest result there is of a finding under its conditions, by whatever code."""
    files = [*folder.glob(f"{name}.json"), *folder.glob(f"{name}-{'[0-9a-f]' * 8}.json")]
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        if (found := read(file)) and found.conditions == finding.conditions():
            return file
    return None


def kept(name: str, finding: Finding, folder: Path) -> Result | None:
    """That result."""
    file = newest(name, finding, folder)
    return read(file) if file else None


def content(finding: Finding, cases: list[Cases]) -> str:
    """Eight digits that stand for all that a result depends on: the models, their texts, and the code that
    makes and measures them; how runs are trained is in their own names. Not what is expected of it."""
    models = [
        [case.arm, case.value, identity.identity(case.config, case.precision, case.data.fingerprint)]
        for case in each(cases)
    ]
    code = [
        file.read_text(encoding="utf-8") for part in PARTS for file in sorted((ROOT / part).rglob("*.py"))
    ]
    own = source(finding.measure)  # which may be elsewhere
    return identity.short_hash({"conditions": finding.conditions(), "models": models, "code": [*code, own]})


def train(cases: list[Cases], runs_dir: Path, config_dir: str | None = None) -> None:
    """Do the runs that have not ended, by one sweep.

    Raises:
        ConfigError: one of them fails.
        Interrupted: a signal came; the sweep was told, and saved what it had.
    """
    folders = {case.folder: case for case in each(cases) if case.folder and not has_ended(case.folder)}
    if not folders:
        return
    arms = json.dumps([case.typed for case in folders.values()], ensure_ascii=False)
    command = [sys.executable, str(ROOT / "train.py"), "-m", app.quoted(f"runs_dir={runs_dir}")]
    command += [f"hydra.sweeper.arms={arms}", *TRAINING]
    command += [f"--config-dir={config_dir}"] if config_dir else []
    told: list[int] = []

    def tell(number: int, frame: Any) -> None:  # it waits below: here it would wait for itself
        told.append(number)
        sweep.send_signal(number)

    sys.stdout.flush()
    with subprocess.Popen(command) as sweep, signals.handled(tell):
        status = sweep.wait()
    if told:
        raise signals.Interrupted(told[0])
    if status:
        raise ConfigError("some of its runs failed, as said above; the same command tries them again")


def measured(name: str, finding: Finding, cases: list[Cases]) -> Result:
    """Measure each seed's models.

    Raises:
        ConfigError: there is no such function, or it does not give what is expected; a model cannot be looked
        at.
    """
    import torch

    measure = function(finding.measure)
    torch.use_deterministic_algorithms(True)
    found: dict[int, Found] = {}
    console = Console(stderr=True)
    began = time.perf_counter()
    for one in track(
        cases, f"measuring {name}", console=console, disable=not console.is_terminal, transient=True
    ):
        found[one.seed] = measure(one, **finding.options)
        given = found[one.seed].values
        if lacking := [q for q in finding.quantities() if q not in given]:
            there = ", ".join(map(repr, given))
            raise ConfigError(f"{finding.measure} gives no {lacking[0]!r}; it gives {there}")
    seconds = Seconds(training=spent(cases), measuring=time.perf_counter() - began)
    return Result(
        conditions=finding.conditions(),
        by_seed={seed: dict(one.values) for seed, one in found.items()},
        rows=[row for one in found.values() for row in one.rows],
        seconds=seconds,
        where=where(cases),
    )


def function(target: str) -> Measure:
    """Raises ConfigError where it cannot be imported."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"measure: {target} cannot be imported ({error}); check its name") from None


def spent(cases: list[Cases]) -> float:
    """Seconds that all runs took, one after another, each of them counted once."""
    by_folder = {case.folder: case for case in each(cases) if case.folder}
    return sum(float(case.run.axes["seconds"][-1]) for case in by_folder.values())


def where(cases: list[Cases]) -> Where:
    from importlib.metadata import version

    trained = {case.folder: case.run.environment for case in each(cases) if case.folder}
    here = {
        "processor": processor(),
        "precision": "fp32",
        "packages": {name: version(name) for name in PACKAGES},
    }
    for environment in trained.values():
        here = {key: environment[key] for key in here}
    return Where(**here, runs=len(trained))
