"""Publish runs as tables, small enough for a repository, and read them back as if they were run folders.

    runs.csv     a line per run: what differs between runs, and metrics that were measured once, at the end
    shared.json  what is the same in all runs
    curves.csv   losses, gradient norm, learning rate and speed by step; of runs not compared, at evaluations

A column such as config:train.steps or certificate:start:train:future is a path into the files of a run's
folder. A cell is JSON, or text where it is not. Weights, statistics of layers and all that identifies the
machine's owner are left out.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from comparison.files import escape_strings, parse_json, small_text
from comparison.find import SHARED, find_runs
from comparison.load import Run, UnreadableError, ended_run, load, naming_errors
from comparison.roles import by_role
from comparison.run_files import SCHEMAS
from data.errors import UserError
from data.files import write_atomically

TABLE, CURVES_FILE = "runs.csv", "curves.csv"
LARGEST = 2**26  # the most bytes of a table
# metrics of which a figure is drawn, by step
CURVES = "val/loss train/loss train/grad_norm val/batch_stats_gap train/lr train/tokens_per_s".split()
AXES = ("step", "tokens", "seconds")
BY_STEP = (*CURVES, "val/batch_stats_loss")
ENVIRONMENT = (
    "group device gpu precision threads ranks compile deterministic python processor packages git code data "
    "parameters settled overrides plan roles"
).split()
STATUS = ("state", "step", "saved", "reason", "best", "final", "peak_memory")
PRIVATE = "runs_dir", "data.path", "data.cache", "wandb."  # how settings begin that are left out
PRIVATE_ARGUMENTS = *PRIVATE, "hydra."  # how arguments begin that are left out
NEEDED = "data.path", "init_from", "--config-dir"  # arguments without which a command trains something else
FIRST = ("name", "config:norm", "config:placement", "config:seed", "environment:roles", "status:state")


def load_any(folder: Path) -> tuple[list[Run], list[str]]:
    """Return the runs of a folder, one or those that were published, and remarks. Raises UnreadableError."""
    with naming_errors():
        is_table = (folder / SHARED).exists()
    if is_table:
        return read(folder), []
    run, remarks = load(folder)
    return [run], remarks


def load_all(paths: Iterable[str]) -> tuple[list[Run], list[str]]:
    """Return the runs that have ended, in folders or globs, and a line per folder passed over and per remark
    on a run. Raises UnreadableError if a path does not exist."""
    runs: list[Run] = []
    passed_over = []
    for folder in find_runs(paths):
        try:
            loaded, remarks = load_any(folder)
        except UnreadableError as error:
            passed_over.append(f"{folder}: {error}")
            continue
        runs += loaded
        passed_over += [f"{folder}: {remark}" for remark in remarks]
    return runs, passed_over


def publish(runs: Sequence[Run], folder: Path) -> None:
    """Write the tables of runs. Raises OSError; UserError: the folder has other files, a table is large."""
    present = {file.name for file in folder.glob("[!.]*")}  # not .DS_Store
    ours = {TABLE, CURVES_FILE, SHARED} if is_published(folder) else set()
    if others := sorted(present - ours):
        raise UserError(f"{folder}: it has other files, such as {others[0]}; name a folder of its own")
    runs = sorted(runs, key=lambda run: run.name)
    kept = {id(run) for run in by_role(runs).compared}
    kept |= {id(run) for run in runs if any(role["role"] == "compared" for role in run.roles)}
    leaves = [flat(content(run)) | {"name": run.name} for run in runs]
    columns = dict.fromkeys(column for row in leaves for column in row)
    first = leaves[0]
    shared = {c: first[c] for c in columns if c != "name" and all(same(row, first, c) for row in leaves)}
    differing = sorted(columns.keys() - shared, key=order)
    rows = [
        {column: cell(row[column]) for column in differing if column in row} | {"name": row["name"]}
        for row in leaves
    ]
    curves = [row for run in runs for row in curve_rows(run, with_all_steps=id(run) in kept)]
    names = list(dict.fromkeys(name for row in curves for name in row))
    texts = {SHARED: json.dumps(shared, indent=1, sort_keys=True) + "\n"}  # the first: it marks the folder
    for name, columns_of, table in ((TABLE, differing, rows), (CURVES_FILE, names, curves)):
        texts[name] = as_csv(folder / name, columns_of, table)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text)


def is_published(folder: Path) -> bool:
    """Return whether the folder has a shared.json that ``publish`` wrote."""
    try:
        return any(key.startswith("config:") for key in parse_json(small_text(folder / SHARED, LARGEST)))
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def order(column: str) -> tuple[int, str]:
    """Sort names first, then settings, metrics, environment, and certificates last."""
    parts = [*FIRST, "config", "metric", "status", "environment", "certificate"]
    return parts.index(column if column in FIRST else column.partition(":")[0]), column


def content(run: Run) -> dict[str, Any]:
    """Return what is published of a run, but for its curves."""
    environment = {key: run.environment[key] for key in ENVIRONMENT if key in run.environment}
    once = {name: run.last(name) for name in run.metrics if is_measured_once(run, name)}
    config = {key: value for key, value in run.config.items() if not key.startswith(PRIVATE)}
    words = environment.pop("overrides", None)
    if words is not None and not any(word.lstrip("+~").startswith(NEEDED) for word in words):
        public = [word for word in words if not word.lstrip("+~").startswith(PRIVATE_ARGUMENTS)]
        environment["overrides"] = public
    return {
        "config": config,
        "status": {key: run.status[key] for key in STATUS if key in run.status},
        "environment": environment,
        "certificate": run.certificate,
        "metric": once,
    }


def is_measured_once(run: Run, metric: str) -> bool:
    """Return True for metrics such as val/full_loss, which only the last row has."""
    rows, last = run.metrics[metric][0], len(run.axes["step"]) - 1
    return metric.startswith("val/") and metric not in BY_STEP and [*rows] == [last]


def curve_rows(run: Run, with_all_steps: bool) -> Iterator[dict[str, Any]]:
    names = [name for name in BY_STEP if name in run.metrics]
    by_row: dict[int, dict[str, str]] = {}
    for name in names:
        for row, value in zip(*run.metrics[name], strict=True):
            by_row.setdefault(int(row), {})[name] = cell(float(value))
    for row, values in sorted(by_row.items()):
        if with_all_steps or "val/loss" in values:
            position = {axis: f"{run.axes[axis][row]:.12g}" for axis in AXES}
            yield {"name": run.name} | position | values


def read(folder: Path) -> list[Run]:
    """Return the published runs of a folder. Raises UnreadableError."""
    with naming_errors():
        shared = parse_json(small_text(folder / SHARED, LARGEST))
        curves: dict[str, list[dict[str, str]]] = {}
        for row in read_table(folder / CURVES_FILE, ("name", *AXES)):
            curves.setdefault(row["name"], []).append(row)
        runs: dict[str, Run] = {}
        for row in read_table(folder / TABLE, FIRST[:1]):
            name = row.pop("name")
            if not name or Path(name).name != name or name in runs:
                raise UnreadableError(
                    f"damaged: {TABLE}: {name!r} is not the name of a run, or is there twice"
                )
            if both := sorted(shared.keys() & {column for column, text in row.items() if text}):
                raise UnreadableError(f"damaged: {SHARED} and {TABLE} both have {both[0]}")
            leaves = shared | {column: parsed(text) for column, text in row.items() if text}
            runs[name] = run_of(folder / name, nested(escape_strings(leaves)), curves.get(name, []))
        return [*runs.values()]


def run_of(folder: Path, parts: dict[str, Any], curve: Sequence[Mapping[str, str]]) -> Run:
    axes = {axis: np.array([float(row[axis]) for row in curve]) for axis in AXES}
    metrics = {}
    for name in curve[0].keys() - {"name", *AXES} if curve else ():
        rows = [i for i, row in enumerate(curve) if row[name]]
        values = np.array([float(curve[i][name]) for i in rows], np.float64)
        if rows:
            metrics[name] = np.array(rows, np.int32), values
    for name, value in parts.get("metric", {}).items():
        metrics[name] = np.array([len(curve) - 1], np.int32), np.array([value], np.float64)
    status, environment, certificate = (
        SCHEMAS[f"{part}.json"].validate_python(parts[part]) if parts.get(part) else {}
        for part in ("status", "environment", "certificate")
    )
    end = status.get("step")
    if status.get("state") == "finished" and (not curve or axes["step"][-1] != end):
        raise UnreadableError(f"damaged: {CURVES_FILE}: {folder.name} does not reach its step {end}")
    return ended_run(Run(folder, parts["config"], status, environment, certificate, axes, metrics))


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return a flat dict with keys joined by colons; an empty dict is a value."""
    if not (isinstance(value, dict) and value):
        return {path: value}
    leaves = (flat(inner, f"{path}:{key}" if path else key) for key, inner in value.items())
    return {key: leaf for part in leaves for key, leaf in part.items()}


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for path, value in leaves.items():
        *parents, last = path.split(":")
        inner = result
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return result


def same(row: Mapping[str, Any], other: Mapping[str, Any], column: str) -> bool:
    return column in row and column in other and repr(row[column]) == repr(other[column])


def cell(value: Any) -> str:
    """Return a value as JSON; a string as it is, unless it would be read as another value."""
    if isinstance(value, str):
        return json.dumps(value) if not value or parsed(value) != value else value
    return json.dumps(value)


def parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


def as_csv(file: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if len(stream.getvalue().encode()) > LARGEST:
        raise UserError(f"{file}: would have more than {LARGEST:,} bytes, which is not read; name fewer runs")
    return stream.getvalue()


def read_table(file: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table. Raises OSError, and ValueError if it lacks one of ``columns`` or a cell."""
    reader = csv.DictReader(io.StringIO(small_text(file, LARGEST)))
    try:
        rows = list(reader)
    except csv.Error as error:
        raise ValueError(f"{file.name}: {error}") from None
    if len(names := reader.fieldnames or ()) > len({*names}):
        raise ValueError(f"{file.name}: two columns have the same name")
    if not rows or not {*columns} <= {*names}:
        raise ValueError(f"{file.name}: it has no rows with {', '.join(columns)}")
    if any(None in row or None in row.values() for row in rows):
        raise ValueError(f"{file.name}: a row has more or fewer cells than there are columns")
    return rows
