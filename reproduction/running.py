"""From a finding to its numbers: train what is not trained yet, measure what is not measured yet, keep both.

    <out>/runs/          the runs, as train.py leaves them; findings share those that are the same
    <out>/results/       a JSON for each finding and its control, named by what it was measured on and with

The same command again does what is missing: runs go on where they ended, and what is measured is read back.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.progress import track

from plain.files import small_text, write_atomically
from reproduction.cases import TRAINING, Cases, Found, all_cases, each
from reproduction.finding import Finding
from training import runs
from training.checking import ConfigError
from training.environment import PACKAGES, ROOT, processor
from training.source import source

Measure = Callable[..., Found]
LARGEST = 2**24  # bytes of a result


class Result(BaseModel):
    """What was measured, as it is kept.

    Attributes:
        conditions: of the finding, all but the code.
        by_seed: seed -> quantity -> value.
        rows: the picture's points: (arm, x, y), of all seeds.
        seconds: that it took, of training, one run after another, and of measuring.
        where: processor, precision, versions, and how many runs.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    conditions: dict[str, Any]
    by_seed: dict[int, dict[str, float]]
    rows: list[tuple[str, float | str, float]]
    seconds: dict[str, float]
    where: dict[str, Any]


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
        DataError: as data.prepared.prepare.
    """
    cases = all_cases(finding, out.resolve(), config_dir)
    file = out / "results" / f"{name}-{content(finding, cases)}.json"
    if found := read(file):
        return found
    if finding.trains:
        train(cases, config_dir)
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
    """Eight digits that stand for all that a result depends on: the models and their texts, the code that
    measures them, and where they are not trained the code that makes them. Not what is expected of it."""
    models = [
        [
            case.arm,
            case.value,
            str(case.folder) if case.folder else runs.identity(case.config, "fp32", case.data.fingerprint),
        ]
        for case in each(cases)
    ]
    return runs.short_hash({"models": models, "measure": source(finding.measure), "options": finding.options})


def train(cases: list[Cases], config_dir: str | None = None) -> None:
    """Do the runs that have not ended, by one sweep. Raises ConfigError where one fails."""
    todo = {
        str(case.folder): case for case in each(cases) if not (case.folder and runs.has_ended(case.folder))
    }
    if not todo:
        return
    arms = json.dumps([case.overrides for case in todo.values()])
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        "-m",
        "hydra/launcher=joblib",
        f"hydra.sweeper.arms={arms}",
    ]
    sys.stdout.flush()
    command += [*TRAINING, *([f"--config-dir={config_dir}"] if config_dir else [])]
    with subprocess.Popen(command) as sweep, passing_on(sweep):
        status = sweep.wait()
    if status:
        raise ConfigError("some of its runs failed, as said above; the same command tries them again")


@contextmanager
def passing_on(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """SIGTERM and SIGINT go to the process, which saves and ends, and so does this one then. (Ctrl-C reaches
    both by itself.)"""

    def tell(number: int, frame: Any) -> None:
        if number == signal.SIGTERM:
            process.send_signal(number)
        process.wait()
        sys.exit(128 + number)

    before = {number: signal.signal(number, tell) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def measured(name: str, finding: Finding, cases: list[Cases]) -> Result:
    """Measure each seed's models. Raises ConfigError where there is no such function."""
    import torch

    measure = function(finding.measure)
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    torch.use_deterministic_algorithms(True)
    found: dict[int, Found] = {}
    console = Console(stderr=True)
    began = time.perf_counter()
    for one in track(
        cases, f"measuring {name}", console=console, disable=not console.is_terminal, transient=True
    ):
        found[one.seed] = measure(one, **finding.options)
    seconds = {"training": spent(cases), "measuring": time.perf_counter() - began}
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


def where(cases: list[Cases]) -> dict[str, Any]:
    from importlib.metadata import version

    trained = [case.run.environment for case in each(cases) if case.folder]
    here = {
        "processor": processor(),
        "precision": "fp32",
        "packages": {name: version(name) for name in PACKAGES},
    }
    if trained:
        here |= {key: trained[0][key] for key in here}
    return here | {"runs": len({case.folder for case in each(cases) if case.folder})}
