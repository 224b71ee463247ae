"""Read runs back from their folders, without torch. A damaged run is skipped with a line that says why."""

from collections.abc import Collection, Iterable
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from data.files import first_error
from training.run_folder import REPORT, SELECT, has_ended, leaking_losses, read_json, read_rows

LARGEST = 3.5e38  # the largest number of fp32: no loss of a run is larger
LOSSES = ("val/full_loss", REPORT, SELECT, "val/bpb")  # at the end of a run
NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # how training writes such numbers
MOST_VALUES = 6  # most values of a condition that a warning names
MODES = {"train/loss": "training", "val/loss": "evaluation"}  # the mode in which each loss is measured

Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Curve = tuple[tuple[Count, Number], ...]  # step, val/loss


@dataclass(frozen=True, config=ConfigDict(strict=True))
class RunResult:
    """A run that has ended. Raises ValidationError, a ValueError, if a value has the wrong type.

    Attributes:
        folder: None if it is a published run.
        losses: LOSSES and the requested metric at the end; {} if the run diverged.
        leaks: modes in which logits depend on later tokens or other rows of the batch; and "not tested".
        tokens_per_s: median. memory: peak, bytes.
        conditions: what may change its numbers, apart from its settings.
    """

    name: Annotated[str, Field(min_length=1)]
    folder: Path | None
    state: Literal["finished", "diverged"]
    collapsed: bool
    losses: dict[str, Number]
    leaks: list[Literal["training", "evaluation", "not tested"]]
    began: AwareDatetime
    tokens_per_s: Number | None
    memory: Count | None
    curve: Curve
    conditions: dict[str, str]

    @property
    def diverged(self) -> bool:
        return self.state == "diverged"


def read_runs(runs_dir: Path, names: Iterable[str], metric: str) -> tuple[dict[str, RunResult], list[str]]:
    """Return the runs that have ended, by name, and a line for each that is damaged or lacks the metric."""
    runs, skipped = {}, []
    for name in names:
        try:
            if has_ended(runs_dir / name):
                runs[name] = read_run(runs_dir / name, metric)
        except (OSError, ValueError) as error:
            skipped.append(f"{name}: skipped: {error}")
    return runs, skipped


def read_run(folder: Path, metric: str) -> RunResult:
    """Return a run that has ended. Raises OSError and ValueError."""
    status, environment, certificate = (
        read_json(folder / f"{name}.json") for name in ("status", "environment", "certificate")
    )
    rows = read_rows(folder / "metrics.jsonl")
    speeds = [row["train/tokens_per_s"] for row in rows if type(row.get("train/tokens_per_s")) is float]
    curve = [(row["step"], row["val/loss"]) for row in rows if "val/loss" in row]
    try:
        return RunResult(
            name=folder.name,
            folder=folder,
            state=status["state"],
            collapsed=status.get("collapsed", False),
            losses=final_losses(rows, status, metric),
            leaks=leaks(certificate),
            began=datetime.fromisoformat(environment["began"]),
            tokens_per_s=median(speeds) if speeds else None,
            memory=status.get("peak_memory"),
            curve=tuple(point for point in curve if point[1] not in NOT_FINITE),
            conditions=conditions(environment),
        )
    except ValidationError as error:
        raise ValueError(first_error(error)) from None
    except (TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"status, environment or certificate.json is damaged ({error!r})") from None


def final_losses(rows: list[dict[str, Any]], status: dict[str, Any], metric: str) -> dict[str, Any]:
    """Return LOSSES at the end of a run, and the last value of ``metric`` if LOSSES lacks it; {} if the run
    diverged. Raises ValueError if status.json and metrics.jsonl disagree, or if the run has no such
    metric."""
    if status.get("state") == "diverged":
        return {}
    end = rows[-1] if rows else {}
    final, measured = status.get("final"), end.get("val/full_loss")
    if final != measured or "val/loss" not in end:
        raise ValueError(f"status.json says {final}, but metrics.jsonl says {measured}: one was changed")
    losses = {name: end[name] for name in LOSSES if end.get(name) is not None}
    if metric not in losses:
        values = [row[metric] for row in rows if row.get(metric) is not None]
        if not values:
            raise ValueError(f"metrics.jsonl: it has no {metric}")
        losses[metric] = values[-1]
    return losses


def leaks(certificate: dict[str, Any]) -> list[Any]:
    """Return what ``RunResult.leaks`` has."""
    last = certificate["end"] or certificate["start"]
    untested = None in (last["causal"], last["independent_rows"])
    return [MODES[loss] for loss in leaking_losses(certificate)] + ["not tested"] * untested


def conditions(environment: dict[str, Any]) -> dict[str, str]:
    git = environment["git"]
    return {
        "torch": environment["packages"]["torch"],
        "device": environment["device"].partition(":")[0],
        "GPU": str(environment["gpu"]),
        "ranks": str(environment["ranks"]),
        "threads": str(environment["threads"]),
        "compile": str(environment["compile"]).lower(),
        "processor": str(environment["processor"]),
        "commit": git["commit"][:8] + "+changes" * (not git["clean"]) if git else "unknown",
    }


def values_of_conditions(runs: Collection[RunResult]) -> dict[str, list[str]]:
    keys = dict.fromkeys(key for run in runs for key in run.conditions)
    return {key: sorted({run.conditions[key] for run in runs if key in run.conditions}) for key in keys}


def differing(runs: Collection[RunResult]) -> list[str]:
    """Return the conditions that differ between runs, such as ``threads (1, 2)``. Of many values, only the
    first are named."""
    return [
        f"{key} ({', '.join([*values[:MOST_VALUES], *['…'] * (len(values) > MOST_VALUES)])})"
        for key, values in values_of_conditions(runs).items()
        if len(values) > 1
    ]
