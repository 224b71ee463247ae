"""Publish a study: its runs as two tables, small enough for a repository, and read them back.

    runs.csv      a line a run, trials too: settings, state, losses at the end, leaks, costs, conditions
    curves.csv    val/loss by step

They lie beside study.json, which then names no folder of runs. Numbers have all their digits; an empty cell
is not known. A damaged table is refused as a whole.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from data.errors import ConfigError
from data.files import first_error, write_atomically
from study.files import Part, Study
from study.runs import Content, Count, Curve, File, Finite, RunResult, moment
from study.statistics import compared_runs, seeds_of
from training.run_folder import REPORT, SELECT, read_status

RUNS, CURVES = "runs.csv", "curves.csv"
PUBLISHED = ("study.json", "chosen.json", "extended.json", RUNS, CURVES, "table.md")
LARGEST = 2**26  # bytes of a table
LOSSES = ("val/full_loss", REPORT, SELECT, "val/bpb")
CONDITIONS = ("torch", "device", "GPU", "ranks", "threads", "compile", "processor", "commit")
COLUMNS = (
    "name",
    "state",
    "collapsed",
    *LOSSES,
    "leaks",
    "began",
    "tokens_per_s",
    "peak_memory",
    *CONDITIONS,
)
NOT_KNOWN = datetime.min.replace(tzinfo=UTC)  # when a run began of which it was not recorded
MODES = "training|evaluation|not tested"


class Line(File):
    """A line of runs.csv; other columns are for readers."""

    name: str
    state: Literal["finished", "diverged"]
    collapsed: bool = False
    full_loss: Finite | None = Field(None, alias="val/full_loss")
    report_loss: Finite | None = Field(None, alias=REPORT)
    select_loss: Finite | None = Field(None, alias=SELECT)
    bpb: Finite | None = Field(None, alias="val/bpb")
    leaks: Annotated[str, Field(pattern=f"^(({MODES})(; ({MODES}))*)?$")] = ""
    began: Annotated[str, AfterValidator(moment)] | None = None
    tokens_per_s: Finite | None = None
    peak_memory: Count | None = None


class Point(File):
    """A line of curves.csv."""

    name: str
    step: Count
    val_loss: Finite | None = Field(None, alias="val/loss")


# ---------------------------------------------------------------------------------------------------
# Reading


def read_runs_csv(folder: Path, metric: str) -> dict[str, RunResult]:
    """Return the runs of a published study by name. Raises OSError; ConfigError: a table is damaged, or a
    finished run lacks ``metric``."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for _, point, _ in read_table(folder / CURVES, Point, ("name", "step", "val/loss")):
        if point.val_loss is not None:
            curves.setdefault(point.name, []).append((point.step, point.val_loss))
    runs: dict[str, RunResult] = {}
    for number, line, cells in read_table(folder / RUNS, Line, COLUMNS):
        run = run_of(line, cells, tuple(curves.get(line.name, ())))
        missing = not run.diverged and (metric if metric not in run.losses else not run.curve and "curve")
        if missing or run.name in runs:
            why = f"it has no {missing}" if missing else "this run is there twice"
            raise damaged(folder / RUNS, number, why)
        runs[run.name] = run
    return runs


def read_table(
    file: Path, kind: type[Content], columns: Sequence[str]
) -> list[tuple[int, Content, dict[str, str]]]:
    """Return number, content and cells of each line. Raises OSError; ConfigError: the table is damaged."""
    if file.stat().st_size > LARGEST:
        raise ConfigError(f"{file}: it has more than {LARGEST:,} bytes; publish a smaller study")
    lines = []
    with file.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        try:
            if missing := [column for column in columns if column not in (reader.fieldnames or ())]:
                raise ValueError(f"there is no column {missing[0]}")
            for cells in reader:
                if None in cells or None in cells.values():
                    raise ValueError("it has more or fewer cells than there are columns")
                known = {column: text for column, text in cells.items() if text}
                lines.append((reader.line_num, kind.model_validate_strings(known), cells))
        except ValidationError as error:
            raise damaged(file, reader.line_num, first_error(error)) from None
        except (ValueError, csv.Error) as error:
            raise damaged(file, reader.line_num, str(error)) from None
    return lines


def damaged(file: Path, number: int, why: str) -> ConfigError:
    return ConfigError(f"{file}: line {number}: {why}; restore the file")


def run_of(line: Line, cells: Mapping[str, str], curve: Curve) -> RunResult:
    losses = dict(zip(LOSSES, (line.full_loss, line.report_loss, line.select_loss, line.bpb), strict=True))
    known = {name: loss for name, loss in losses.items() if loss is not None}
    return RunResult(
        name=line.name,
        folder=None,
        diverged=line.state == "diverged",
        losses={} if line.state == "diverged" else known,
        collapsed=line.collapsed,
        leaks=line.leaks.split("; ") if line.leaks else [],
        began=datetime.fromisoformat(line.began) if line.began else NOT_KNOWN,
        tokens_per_s=line.tokens_per_s,
        memory=line.peak_memory,
        curve=curve,
        conditions={key: cells[key] for key in CONDITIONS},
    )


# ---------------------------------------------------------------------------------------------------
# Writing


def public(study: Study) -> Study:
    """Return a study without folders and paths, and without what it told wandb."""
    declared_by, words = (
        [word for word in words if "=" in word and "/" not in word and not word.startswith("wandb.")]
        for words in (study.declared_by, study.words)
    )
    changes = {"runs_dir": "", "config_dir": None, "declared_by": declared_by, "words": words}
    return study.model_copy(update=changes)


def write_runs(out: Path, study: Study, chosen: Part, extended: Part, runs: Mapping[str, RunResult]) -> None:
    """Write runs.csv and curves.csv of the runs of a study that ran here: of those that have ended."""
    lines = [line_of(runs[name], about) for name, about in planned(study, chosen, extended) if name in runs]
    points = [
        {"name": line["name"], "step": step, "val/loss": loss}
        for line in lines
        for step, loss in runs[line["name"]].curve
    ]
    write_table(
        out / RUNS, ("name", "arm", "roles", "seed", *study.tune, "state", "reason", *COLUMNS[2:]), lines
    )
    write_table(out / CURVES, ("name", "step", "val/loss"), points)


def planned(study: Study, chosen: Part, extended: Part) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each run of a study, with its arm, role, seed and settings."""
    for arm in study.arms:
        for settings, names in zip(study.trials, arm.trials, strict=True):
            for seed, name in zip(study.trial_seeds, names, strict=False):
                yield name, {"arm": arm.title, "roles": "trial", "seed": seed, **settings}
        settings = chosen["arms"].get(arm.title, {}).get("settings", {}) if chosen else {}
        names = compared_runs(arm.title, chosen, extended)
        for seed, name in zip(seeds_of(study, extended), names, strict=False):
            yield name, {"arm": arm.title, "roles": "compared", "seed": seed, **settings}


def line_of(run: RunResult, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": run.name,
        **about,
        "state": "diverged" if run.diverged else "finished",
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
