"""Read run folders back: plain files, without torch and without the code that wrote them.

An unreadable folder is reported and passed over, so that it does not hide the other folders.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import ConfigDict, FiniteFloat, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from pydantic import with_config as configured
from pydantic_core import from_json
from typing_extensions import TypedDict

from comparison import run_files
from comparison.files import escape_strings, lines, parse_json, small_text
from data.errors import UserError
from data.files import first_error

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast, if installed
# Keys that say where a run was trained and how it was watched, not what was trained.
NOT_COMPARED = {f"train.{key}" for key in run_files.NOT_IN_IDENTITY}
NOT_COMPARED |= {*"runs_dir device distributed compile deterministic fresh".split()}
NOT_COMPARED |= {*"data.path data.cache data.verify tuned settings_of".split()}  # the last two: removed
ENVIRONMENT = (
    "group device precision threads compile processor python torch fingerprint".split()
)  # keys that a run must have
LARGEST = 2**18  # the most bytes of a config
Scalar = bool | int | float | str | None
VALUES: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Scalar | tuple[Scalar, ...]])  # by dotted key
Required = TypedDict(
    "Required",
    {
        "norm": str,
        "placement": str,
        "seed": int,
        "optim.learning_rate": FiniteFloat,
        "train.steps": NonNegativeInt,
        "train.batch_size": PositiveInt,
        "train.eval_windows": PositiveInt,
        "model.block_size": PositiveInt,
    },
)
REQUIRED = TypeAdapter(configured(ConfigDict(extra="allow"))(Required))
Config = dict[str, Any]  # by dotted key
Floats = NDArray[np.float64]
Axes = dict[str, Floats]  # step, tokens and seconds -> its value in each row of metrics.jsonl
Metrics = dict[str, tuple[NDArray[np.int32], Floats]]  # name -> row numbers, values


class UnreadableError(UserError):
    """A folder that is not a run, or a run that cannot be read."""


@dataclass
class Run:
    """A run that has ended: finished or diverged."""

    folder: Path
    config: Config
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
        """The hash that is the same for runs that differ only in their seed."""
        return str(self.environment["group"])

    @property
    def roles(self) -> list[run_files.Role]:
        """The roles of the run in fair comparisons; empty outside of them."""
        return self.environment.get("roles") or []

    @property
    def vocab_size(self) -> int | None:
        """The number of tokens; None in runs of earlier versions."""
        size = self.environment["data"].get("vocab_size")
        return size if isinstance(size, int) else None

    @property
    def diverged(self) -> bool:
        return bool(self.status["state"] == "diverged")

    @property
    def leaks(self) -> bool:
        return run_files.leaks(self.certificate)

    @property
    def leaking_modes(self) -> list[str]:
        """The modes, "train" and "eval", in which the run's logits leak."""
        return run_files.leaking_modes(self.certificate)

    @property
    def causality(self) -> str:
        """ "causal", "LEAKS", or how far this was tested."""
        return run_files.causality(self.certificate)

    def last(self, metric: str) -> float:
        """The last value of a metric; NaN if the run does not have it."""
        return float(self.metrics[metric][1][-1]) if metric in self.metrics else math.nan

    def curve(self, metric: str) -> tuple[Floats, Floats]:
        """Steps and values of a metric, without the non-finite values."""
        rows, values = self.metrics.get(metric, (np.zeros(0, np.int32), np.zeros(0)))
        finite = np.isfinite(values)
        return self.axes["step"][rows[finite]], values[finite]


def load(folder: Path) -> tuple[Run, list[str]]:
    """Return a run that has ended, and remarks on it. Raises UnreadableError."""
    with naming_errors():
        if not (folder / "metrics.jsonl").exists():
            raise UnreadableError("not a run: it has no metrics.jsonl")
        config, environment = read_settings(folder)
        status = run_files.read_valid(folder / "status.json")
        certificate_file = folder / "certificate.json"
        certificate = run_files.read_valid(certificate_file) if certificate_file.exists() else {}
        axes, metrics, remarks = read_metrics(folder / "metrics.jsonl")
        return ended_run(Run(folder, config, status, environment, certificate, axes, metrics)), remarks


@contextmanager
def naming_errors() -> Iterator[None]:
    """Context manager: raise an UnreadableError in place of any error that invalid content may cause."""
    try:
        yield
    except UnreadableError:
        raise
    except ValidationError as error:
        raise UnreadableError(f"damaged: config.yaml: {first_error(error)}") from None
    except (OSError, ValueError, ArithmeticError, RecursionError, yaml.YAMLError) as error:
        raise UnreadableError(f"damaged: {' '.join(str(error).split())}") from None
    except (LookupError, TypeError, AttributeError) as error:
        raise UnreadableError(f"written by another version: {type(error).__name__} {error}") from None


def ended_run(run: Run) -> Run:
    """Return a run, its config validated, if it has ended and has what every comparison needs. Raises
    UnreadableError, ValidationError."""
    run.config = valid(run.config)
    state = run.status["state"]
    if state not in ("finished", "diverged"):
        raise UnreadableError(f"{state} at step {run.status.get('step')} of {run.config.get('train.steps')}")
    recorded = run.environment | run.environment["packages"] | run.environment.get("data", {})
    if missing := [key for key in ENVIRONMENT if key not in recorded]:
        raise UnreadableError(f"written by another version: environment.json has no {missing[0]}")
    if state == "finished" and "val/full_loss" not in run.metrics:
        raise UnreadableError("damaged: it has finished, but has no val/full_loss")
    return run


def read_settings(folder: Path) -> tuple[Config, dict[str, Any]]:
    """Return a run's settings by dotted key, with the fingerprint of its tokens, and its environment."""
    config = flatten(escape_strings(read_yaml(folder / "config.yaml")))
    environment = run_files.read_valid(folder / "environment.json")
    config["precision"] = environment["precision"]
    if digest := environment.get("init_from"):
        config["init_from"] = f"{Path(str(config['init_from'])).name} {digest[:8]}"
    config["tokens"] = environment["data"]["fingerprint"][:8]
    return config, environment


def valid(config: Config) -> Config:
    """Return a config with values of the right types. Raises ValidationError."""
    return (values := VALUES.validate_python(config)) | REQUIRED.validate_python(values)


def read_yaml(file: Path) -> Any:
    """Return the content of a config. Raises ValueError for aliases, a few lines of which can expand to more
    than fits into memory, and for deep nesting, at which the C library crashes."""
    text = small_text(file, LARGEST)
    depth = 0
    for event in yaml.parse(text, Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > 20:
            raise ValueError(f"{file.name}: it has aliases or is nested too deeply")
    return Loader(text).get_single_data()


def read_metrics(file: Path) -> tuple[Axes, Metrics, list[str]]:
    """Return the axes and metrics of a run, which may still be running, and remarks on invalid lines: those
    whose step is no whole number or comes again, and those with true or false. Raises OSError, and ValueError
    if a metric is not a number."""
    axes: dict[str, list[float]] = {"step": [], "tokens": [], "seconds": []}
    columns: dict[str, tuple[list[int], list[Any]]] = defaultdict(lambda: ([], []))
    invalid = []
    for number, line in enumerate(lines(file), 1):
        try:
            row = from_json(line, allow_inf_nan=False)
            if line.count(b'":') != len(row):  # a histogram, or a key twice
                row = parse_json(line)
            is_plain = type(row["step"]) is int and bool not in map(type, row.values())
            position = [float(row.pop(axis)) for axis in axes]
            if not (is_plain and math.isfinite(sum(position)) and min(position) >= 0):
                raise ValueError
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            invalid.append(f"line {number} is not a row")
            continue
        if axes["step"] and position[0] <= axes["step"][-1]:
            invalid.append(f"line {number} does not come after step {axes['step'][-1]:,.0f}")
            continue
        index = len(axes["step"])
        for axis, value in zip(axes, position, strict=True):
            axes[axis].append(value)
        for name, value in row.items():
            if type(value) is not dict:  # a dict is a histogram
                rows, values = columns[name]
                rows.append(index)
                values.append(value)
    remarks = [f"{file.name}: {line} and is passed over" for line in invalid[:3]]
    if len(invalid) > 3:
        remarks.append(f"{file.name}: {len(invalid) - 3:,} more lines are passed over")
    metrics = {}
    for name, (rows, values) in columns.items():
        numbers = np.array(values, np.float64)  # np.array also parses the strings NaN and Infinity
        if numbers.ndim != 1:
            raise ValueError(f"{file.name}: a value of {name} is not a number")
        metrics[name] = np.array(rows, np.int32), numbers
    return {axis: np.array(values) for axis, values in axes.items()}, metrics, remarks


def flatten(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a flat dict with keys joined by dots; a norm or placement has its ``_name_`` as value."""
    keys: dict[str, Any] = {}
    for key, value in nested.items():
        if key == "_name_":
            keys[prefix.rstrip(".")] = value
        elif isinstance(value, dict):
            keys |= flatten(value, f"{prefix}{key}.")
        else:
            keys[prefix + key] = value
    return keys
