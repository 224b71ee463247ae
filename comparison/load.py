"""Run folders, read back: plain files, without torch and without the code that wrote them.

What cannot be read is named and passed over, so that one broken folder does not hide the others.
"""

import glob
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
import orjson
import yaml
from numpy.typing import NDArray
from pydantic import (
    ConfigDict,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from rundir.schema import WATCHING, parsed
from system.files import first_error, harmless, lines, small_text
from system.terminal import escaped

try:
    from yaml import CSafeLoader as Loader
except ImportError:  # libyaml is not everywhere; it is ten times as fast
    from yaml import SafeLoader as Loader  # type: ignore[assignment]

# Keys that say where and how a run was watched, not what it is.
NOT_COMPARED = {"runs_dir", "device", "compile", "fresh", "tuned", "data.path", "data.cache", "data.verify"}
NOT_COMPARED |= {f"train.{key}" for key in WATCHING}
Scalar = bool | int | float | str | None
VALUES: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Scalar | tuple[Scalar, ...]])  # by dotted key
Counted = TypedDict(
    "Counted",
    {
        "norm": str,
        "placement": str,
        "seed": int,
        "optim.learning_rate": FiniteFloat,
        "train.steps": NonNegativeInt,
        "train.batch_size": PositiveInt,
        "train.eval_windows": PositiveInt,
        "model.block_size": PositiveInt,
        "tuned": NotRequired[tuple[str, ...] | None],
    },
)
COUNTED = TypeAdapter(with_config(ConfigDict(extra="allow"))(Counted))  # of them, what is counted with
LARGEST = 2**18  # bytes of a config
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
        return escaped(self.folder.name)

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
    try:
        if depth == 0 or any(
            (folder / name).exists() for name in ("metrics.jsonl", "status.json", "config.yaml")
        ):
            return [folder]
        children = [c for c in sorted(folder.iterdir()) if c.is_dir() and not c.name.startswith(".")]
    except PermissionError:  # which is said when it is loaded
        return [folder]
    return [run for child in children for run in inside(child, depth - 1)] or [folder]


def load(folder: Path) -> tuple[Run, list[str]]:
    """A run that has ended, and what is to be said of it.

    Raises:
        UnreadableError: it is no run, has not ended, or was made by a version that wrote too little.
    """
    try:
        if not (folder / "metrics.jsonl").exists():
            raise UnreadableError("no run: there is no metrics.jsonl in it")
        config: dict[str, Any] = VALUES.validate_python(flat(harmless(read_yaml(folder / "config.yaml"))))
        config |= COUNTED.validate_python(config)
        status, environment = (parsed(folder / name) for name in ("status.json", "environment.json"))
        state = status["state"]
        if state not in ("finished", "diverged"):
            raise UnreadableError(f"{state} at step {status.get('step')} of {config.get('train.steps')}")
        config["precision"] = environment["precision"]
        if weights := environment.get("init_from"):
            config["init_from"] = f"{Path(str(config['init_from'])).name} {weights[:8]}"
        config["tokens"] = environment["data"]["fingerprint"][:8]
        for key in ("group", "device", "threads", "compile", "processor", "python"):
            environment[key]
        environment["packages"]["torch"]
        proof = folder / "certificate.json"
        certificate = parsed(proof) if proof.exists() else {}
        axes, metrics, said = read_metrics(folder / "metrics.jsonl")
        if state == "finished" and "val/full_loss" not in metrics:
            raise UnreadableError("damaged: it has finished, but has no val/full_loss")
        run = Run(folder, config, status, environment, certificate, axes, metrics)
    except ValidationError as error:
        raise UnreadableError(f"damaged: config.yaml: {first_error(error)}") from None
    except (OSError, ValueError, ArithmeticError, RecursionError, yaml.YAMLError) as error:
        raise UnreadableError(f"damaged: {' '.join(str(error).split())}") from None
    except (LookupError, TypeError, AttributeError) as error:
        raise UnreadableError(f"of another version: {type(error).__name__} {error}") from None
    return run, said


def read_yaml(file: Path) -> Any:
    """The content of a config. It has no aliases, of which some lines can stand for more than fits into
    memory, and is nowhere deep, which the C library answers by a crash."""
    text = small_text(file, LARGEST)
    depth = 0
    for event in yaml.parse(text, Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > 20:
            raise ValueError(f"{file.name} is not as our configs are")
    return Loader(text).get_single_data()


def read_metrics(file: Path) -> tuple[Axes, Metrics, list[str]]:
    """The axes and metrics of a run, finished or not, and what is to be said: which lines are no rows.

    Raises:
        OSError: there is no such file.
        ValueError: a metric is no number.
    """
    said: list[str] = []
    no_rows = 0
    axes: dict[str, list[float]] = {"step": [], "tokens": [], "seconds": []}
    # Rows with the same metrics together: a table each, which is much faster than a number at a time.
    tables: dict[tuple[str, ...], tuple[list[int], list[list[Any]]]] = {}
    for number, line in enumerate(lines(file), 1):
        try:
            row = orjson.loads(line)
            here = [float(row.pop(axis)) for axis in axes]
            if not all(map(math.isfinite, here)):
                raise ValueError
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            no_rows += 1
            if no_rows <= 3:
                said.append(f"{file.name}: line {number} is no row and is passed over")
            continue
        for axis, value in zip(axes, here, strict=True):
            axes[axis].append(value)
        if dict in map(type, row.values()):  # histograms
            row = {name: value for name, value in row.items() if not isinstance(value, dict)}
        rows, values = tables.setdefault(tuple(row), ([], []))
        rows.append(len(axes["step"]) - 1)
        values.append(list(row.values()))
    if no_rows > 3:
        said.append(f"{file.name}: {no_rows - 3:,} more lines are no rows")
    columns: dict[str, list[tuple[list[int], Floats]]] = {}
    for names, (rows, values) in tables.items():
        table = np.array(values, np.float64)  # NaN and Infinity, which are strings there, too
        if table.ndim != 2:
            raise ValueError(f"{file.name}: what stands for {', '.join(names)} is no number")
        for column, name in enumerate(names):
            columns.setdefault(escaped(name), []).append((rows, table[:, column]))
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
