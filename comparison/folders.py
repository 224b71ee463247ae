"""Run folders, read back: plain files, without torch and without the code that wrote them.

What cannot be read is named and passed over, so that one broken folder does not hide the others.
"""

import glob
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import yaml
from numpy.typing import NDArray

try:
    from yaml import CSafeLoader as Loader
except ImportError:  # libyaml is not everywhere; it is ten times as fast
    from yaml import SafeLoader as Loader  # type: ignore[assignment]

# Keys that say where and how a run was watched, not what it is.
WATCHING = {
    *("runs_dir", "device", "compile", "fresh", "tuned", "data.path", "data.cache", "data.verify"),
    *("train.eval_every", "train.eval_windows", "train.checkpoint_every", "train.log_every", "train.threads"),
}
Floats = NDArray[np.float64]
Axes = dict[str, Floats]  # step, tokens, seconds: of each row of metrics.jsonl
Metrics = dict[str, tuple[NDArray[np.int32], Floats]]  # name -> its rows, its values


class UnreadableError(Exception):
    """Not a run, or not one that can be read."""


@dataclass
class Run:
    """A run that has ended, finished or diverged."""

    folder: Path
    config: dict[str, Any]  # key with dots -> value
    status: dict[str, Any]
    environment: dict[str, Any]
    certificate: dict[str, Any]
    axes: Axes = field(repr=False)
    metrics: Metrics = field(repr=False)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def group(self) -> str:
        """The same for runs that differ in their seed alone."""
        return str(self.environment["group"])

    @property
    def diverged(self) -> bool:
        return bool(self.status["state"] == "diverged")

    @property
    def leaks(self) -> bool:
        return self.certificate.get("causal") is False or self.certificate.get("independent_rows") is False

    def last(self, metric: str) -> float:
        """The last value of a metric; NaN where there is none."""
        return float(self.metrics[metric][1][-1]) if metric in self.metrics else math.nan

    def curve(self, metric: str) -> tuple[Floats, Floats]:
        """Steps and values, those that are finite."""
        rows, values = self.metrics.get(metric, (np.zeros(0, np.int32), np.zeros(0)))
        finite = np.isfinite(values)
        return self.axes["step"][rows[finite]], values[finite]


def found(paths: Iterable[str]) -> list[Path]:
    """The run folders that paths or globs name: runs, or folders with runs somewhere in them. A folder that
    has none is among them, to be named as such.

    Raises:
        UnreadableError: there is no such path.
    """
    folders: list[Path] = []
    for path in paths:
        matches = sorted(glob.glob(path)) or [path]
        if not Path(matches[0]).is_dir():
            raise UnreadableError(
                f"{path}: there is no such folder; train runs first, or name the folder they are in"
            )
        folders += [run for match in matches if Path(match).is_dir() for run in inside(Path(match))]
    return list(dict.fromkeys(folders))


def inside(folder: Path, depth: int = 3) -> list[Path]:
    """The runs in a folder, or the folder itself, where it is one, or has none in it."""
    if depth == 0 or any(
        (folder / name).exists() for name in ("metrics.jsonl", "status.json", "config.yaml")
    ):
        return [folder]
    children = (c for c in sorted(folder.iterdir()) if c.is_dir() and not c.name.startswith("."))
    return [run for child in children for run in inside(child, depth - 1)] or [folder]


def load(folder: Path) -> tuple[Run, list[str]]:
    """A run that has ended, and what is to be said of it.

    Raises:
        UnreadableError: it is no run, has not ended, or was made by a version that wrote too little.
    """
    if not (folder / "metrics.jsonl").exists():
        raise UnreadableError("no run: there is no metrics.jsonl in it")
    try:
        config = flat(Loader((folder / "config.yaml").read_text(encoding="utf-8")).get_single_data())
        status, environment = (read(folder / name) for name in ("status.json", "environment.json"))
        state = status["state"]
        if state not in ("finished", "diverged"):
            raise UnreadableError(f"{state} at step {status.get('step')} of {config.get('train.steps')}")
        config["precision"] = environment["precision"]
        config["tokens"] = environment["data"]["fingerprint"][:8]
        for key in ("group", "device", "threads", "compile", "processor", "python"):
            environment[key]
        environment["packages"]["torch"]
        for key in ("seed", "optim.learning_rate", "train.steps", "train.batch_size", "model.block_size"):
            config[key] + 0  # a number
        certificate = read(folder / "certificate.json") if (folder / "certificate.json").exists() else {}
        axes, metrics, said = read_metrics(folder / "metrics.jsonl")
        if state == "finished" and "val/full_loss" not in metrics:
            raise UnreadableError("damaged: it has finished, but has no val/full_loss")
        run = Run(folder, config, status, environment, certificate, axes, metrics)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UnreadableError(f"damaged: {' '.join(str(error).split())}") from None
    except (LookupError, TypeError, AttributeError) as error:
        raise UnreadableError(f"of another version: {type(error).__name__} {error}") from None
    return run, said


def read(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} is no object")
    return content


def read_metrics(file: Path) -> tuple[Axes, Metrics, list[str]]:
    """The axes and metrics of a run, finished or not, and what is to be said: which lines are no rows.

    Raises:
        OSError: there is no such file.
        ValueError: a metric is no number.
    """
    said: list[str] = []
    axes: dict[str, list[float]] = {"step": [], "tokens": [], "seconds": []}
    # Rows with the same metrics together: a table each, which is much faster than a number at a time.
    tables: dict[tuple[str, ...], tuple[list[int], list[list[Any]]]] = {}
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = orjson.loads(line)
                here = [float(row.pop(axis)) for axis in axes]
            except (ValueError, LookupError, TypeError, AttributeError):
                said.append(f"{file.name}: line {number} is no row and is passed over")
                continue
            for axis, value in zip(axes, here, strict=True):
                axes[axis].append(value)
            if dict in map(type, row.values()):  # histograms
                row = {name: value for name, value in row.items() if not isinstance(value, dict)}
            rows, values = tables.setdefault(tuple(row), ([], []))
            rows.append(len(axes["step"]) - 1)
            values.append(list(row.values()))
    columns: dict[str, list[tuple[list[int], Floats]]] = {}
    for names, (rows, values) in tables.items():
        table = np.array(values, np.float64)  # NaN and Infinity, which are strings there, too
        for column, name in enumerate(names):
            columns.setdefault(name, []).append((rows, table[:, column]))
    metrics = {}
    for name, parts in columns.items():
        index = np.concatenate([np.array(rows, np.int32) for rows, _ in parts])
        order = index.argsort(kind="stable")
        metrics[name] = index[order], np.concatenate([values for _, values in parts])[order]
    return {axis: np.array(values) for axis, values in axes.items()}, metrics, said


def flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as one with dots; a norm's or placement's own name is its group's: ``norm``."""
    keys: dict[str, Any] = {}
    for key, value in nested.items():
        if key == "_name_":
            keys[prefix.rstrip(".")] = value
        elif isinstance(value, dict):
            keys |= flat(value, f"{prefix}{key}.")
        else:
            keys[prefix + key] = value
    return keys
