"""Write the runs of a study as two tables, small enough for a repository; read those of a published study.

    runs.csv      a line per run, also per trial: settings, state, losses at the end, leaks, costs, conditions
    curves.csv    val/loss by step

They are beside study.json. In a published study, study.json names no folder of runs. Numbers have all their
digits. A cell is empty if its value is unknown. A damaged table is refused as a whole.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from data.errors import ConfigError
from data.files import first_error, write_atomically
from study.files import Part, Study, choice_of
from study.runs import LOSSES, Curve, RunResult
from study.statistics import compared_runs, seeds_of
from training.run_folder import read_status

RUNS, CURVES = "runs.csv", "curves.csv"
CONDITIONS = tuple("torch device GPU ranks threads compile processor commit".split())
MEASURED = ("collapsed", *LOSSES, "leaks", "began", "tokens_per_s", "peak_memory", *CONDITIONS)
FROM_TEXT = TypeAdapter(RunResult)
NOT_KNOWN = datetime.min.replace(tzinfo=UTC)  # when a run began, if that was not recorded


# ---------------------------------------------------------------------------------------------------
# Reading


def read_runs_csv(folder: Path, metric: str) -> dict[str, RunResult]:
    """Return the runs of a published study by name. Raises OSError; ConfigError if a table is damaged or a
    finished run lacks the metric."""
    curves: dict[str, list[tuple[int, float]]] = {}
    runs: dict[str, RunResult] = {}

    def add_point(cells: dict[str, str]) -> None:
        if loss := cells["val/loss"]:
            curves.setdefault(cells["name"], []).append((int(cells["step"]), float(loss)))

    def add_run(cells: dict[str, str]) -> None:
        run = run_of(cells, tuple(curves.get(cells["name"], ())))
        if run.name in runs:
            raise ValueError("this run is listed twice")
        if not run.diverged and not (metric in run.losses and run.curve):
            raise ValueError(f"it has no {metric}, or no curve")
        runs[run.name] = run

    read_table(folder / CURVES, ("name", "step", "val/loss"), add_point)
    read_table(folder / RUNS, ("name", "state", *MEASURED), add_run)
    return runs


def read_table(file: Path, columns: Sequence[str], add: Callable[[dict[str, str]], None]) -> None:
    """Call ``add`` with the cells of each line. Raises OSError; ConfigError if the table is damaged."""
    with file.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        try:
            if missing := {*columns} - {*(reader.fieldnames or ())}:
                raise ValueError(f"it has no column {min(missing)}")
            for cells in reader:
                if None in cells or None in cells.values():
                    raise ValueError("it has more or fewer cells than there are columns")
                add(cells)
        except (ValueError, csv.Error) as error:
            why = first_error(error) if isinstance(error, ValidationError) else error
            raise ConfigError(f"{file}: line {reader.line_num}: {why}; restore the file") from None


def run_of(cells: Mapping[str, str], curve: Curve) -> RunResult:
    """Return the run of a line of runs.csv. Raises ValueError."""
    known = {column: text for column, text in cells.items() if text}
    losses = {name: known[name] for name in LOSSES if name in known}
    texts = {
        "name": cells["name"],
        "folder": None,
        "state": cells["state"],
        "collapsed": cells["collapsed"] == "true",
        "losses": {} if cells["state"] == "diverged" else losses,
        "leaks": cells["leaks"].split("; ") if cells["leaks"] else [],
        "began": known.get("began", NOT_KNOWN),
        "tokens_per_s": known.get("tokens_per_s"),
        "memory": known.get("peak_memory"),
        "curve": curve,
        "conditions": {key: cells[key] for key in CONDITIONS},
    }
    return FROM_TEXT.validate_python(texts, strict=False)


# ---------------------------------------------------------------------------------------------------
# Writing


def public(study: Study) -> Study:
    """Return a study without folders and paths, and without the settings of wandb."""
    declared_by, words = (
        [word for word in words if "=" in word and "/" not in word and not word.startswith("wandb.")]
        for words in (study.declared_by, study.words)
    )
    changes = {"runs_dir": "", "config_dir": None, "declared_by": declared_by, "words": words}
    return study.model_copy(update=changes)


def write_runs(out: Path, study: Study, chosen: Part, extended: Part, runs: Mapping[str, RunResult]) -> None:
    """Write runs.csv and curves.csv: the runs that have ended, of a study that was trained here."""
    ended = [(runs[name], about) for name, about in planned(study, chosen, extended) if name in runs]
    points = (
        {"name": run.name, "step": step, "val/loss": loss} for run, _ in ended for step, loss in run.curve
    )
    columns = ("name", "arm", "roles", "seed", *study.tune, "state", "reason", *MEASURED)
    write_table(out / RUNS, columns, (line_of(run, about) for run, about in ended))
    write_table(out / CURVES, ("name", "step", "val/loss"), points)


def planned(study: Study, chosen: Part, extended: Part) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each run of a study, and its arm, role, seed and settings."""
    for arm in study.arms:
        for settings, names in zip(study.trials, arm.trials, strict=True):
            for seed, name in zip(study.trial_seeds, names, strict=False):
                yield name, {"arm": arm.title, "roles": "trial", "seed": seed, **settings}
        settings = choice_of(chosen, arm.title).get("settings", {})
        names = compared_runs(arm.title, chosen, extended)
        for seed, name in zip(seeds_of(study, extended), names, strict=False):
            yield name, {"arm": arm.title, "roles": "compared", "seed": seed, **settings}


def line_of(run: RunResult, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": run.name,
        **about,
        "state": run.state,
        "reason": read_status(run.folder).get("reason") if run.folder else None,
        "collapsed": str(run.collapsed).lower(),
        **run.losses,
        "leaks": "; ".join(run.leaks),
        "began": run.began.isoformat(),
        "tokens_per_s": run.tokens_per_s,
        "peak_memory": run.memory,
        **run.conditions,
    }


def write_table(file: Path, columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> None:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_atomically(file, stream.getvalue())
