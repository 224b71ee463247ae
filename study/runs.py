"""Read runs back: plain files, without torch. A damaged run is skipped, which a line says."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from data.files import first_error
from training.run_folder import REPORT, SELECT, has_ended, leaking_losses, read_json, read_rows

LARGEST = 3.5e38  # the largest number of fp32: no loss of a run is larger
MOST_VALUES = 6  # of a condition that differs, in a warning
MODES = {"train/loss": "training", "val/loss": "evaluation"}  # in which a loss is measured


def moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("it has no time zone")
    return text


Count = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(ge=0, le=LARGEST)]
Number = Finite | Literal["NaN", "Infinity", "-Infinity"]  # as training.log writes them
Curve = tuple[tuple[int, float], ...]  # step, val/loss
Content = TypeVar("Content", bound="File")


class File(BaseModel):
    """What a comparison reads of a file in a run's folder; other keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Status(File):
    state: Literal["finished", "diverged"]
    final: Number | None = None
    peak_memory: Count | None = None
    collapsed: bool = False


class Values(File):
    """A row of metrics.jsonl."""

    step: Count
    val_loss: Number | None = Field(None, alias="val/loss")
    tokens_per_s: Number | None = Field(None, alias="train/tokens_per_s")


class End(File):
    """The last row of metrics.jsonl in a finished run; a text of one window has no halves."""

    loss: Finite = Field(alias="val/loss")
    full_loss: Finite = Field(alias="val/full_loss")
    report_loss: Finite | None = Field(None, alias=REPORT)
    select_loss: Finite | None = Field(None, alias=SELECT)
    bpb: Finite = Field(alias="val/bpb")


class Value(File):
    """Of any metric."""

    value: float = Field(ge=-LARGEST, le=LARGEST)


class Answer(File):
    causal: bool | None
    independent_rows: bool | None
    train: dict[str, Number] = {}
    eval: dict[str, Number] = {}


class Certificate(File):
    start: Answer
    end: Answer | None


class Git(File):
    commit: str
    clean: bool


class Environment(File):
    began: Annotated[str, AfterValidator(moment)]
    packages: dict[str, str]
    device: str
    gpu: str | None
    ranks: Count
    threads: Count
    compile: bool
    processor: str | None
    git: Git | None


@dataclass(frozen=True)
class RunResult:
    """A run that has ended.

    Attributes:
        folder: None: a published run.
        losses: val/full_loss, val/report_loss, val/select_loss, val/bpb, and the metric that was asked for;
            empty if it diverged.
        leaks: "training", "evaluation", "not tested".
        tokens_per_s: median. memory: peak, bytes.
        conditions: what may change its numbers beside its settings.
    """

    name: str
    folder: Path | None
    diverged: bool
    losses: dict[str, float]
    collapsed: bool
    leaks: list[str]
    began: datetime
    tokens_per_s: float | None
    memory: int | None
    curve: Curve
    conditions: dict[str, str]


def read_runs(runs_dir: Path, names: Iterable[str], metric: str) -> tuple[dict[str, RunResult], list[str]]:
    """Return the runs that have ended, by name, and a line for each that is damaged or lacks ``metric``."""
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
    files = {name: read_json(folder / f"{name}.json") for name in ("status", "environment", "certificate")}
    status = checked(Status, files["status"], "status.json")
    environment = checked(Environment, files["environment"], "environment.json")
    certificate = checked(Certificate, files["certificate"], "certificate.json")
    rows = read_rows(folder / "metrics.jsonl")
    values = [checked(Values, row, "metrics.jsonl") for row in rows]
    losses = {} if status.state == "diverged" else final_losses(rows, status, metric)
    speeds = [row.tokens_per_s for row in values if isinstance(row.tokens_per_s, float)]
    return RunResult(
        name=folder.name,
        folder=folder,
        diverged=status.state == "diverged",
        losses=losses,
        collapsed=status.collapsed,
        leaks=leaks(files["certificate"], certificate),
        began=datetime.fromisoformat(environment.began),
        tokens_per_s=median(speeds) if speeds else None,
        memory=status.peak_memory,
        curve=tuple((row.step, row.val_loss) for row in values if isinstance(row.val_loss, float)),
        conditions=conditions(environment),
    )


def checked(kind: type[Content], content: dict[str, Any], file: str) -> Content:
    """Return the content of a file. Raises ValueError, which names the file."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ValueError(f"{file}: {first_error(error)}") from None


def final_losses(rows: list[dict[str, Any]], status: Status, metric: str) -> dict[str, float]:
    """Return the losses at the end of a finished run, and the last value of another ``metric``. Raises
    ValueError if the files do not agree on the end, or if there is no such metric."""
    end = checked(End, rows[-1] if rows else {}, "metrics.jsonl")
    if status.final != end.full_loss:
        raise ValueError(f"status.json says {status.final}, metrics.jsonl {end.full_loss}: one was changed")
    halves = {REPORT: end.report_loss, SELECT: end.select_loss}
    losses = {"val/full_loss": end.full_loss, "val/bpb": end.bpb} | halves
    present = {name: loss for name, loss in losses.items() if loss is not None}
    if metric not in present:
        values = [row[metric] for row in rows if row.get(metric) is not None]
        if not values:
            raise ValueError(f"metrics.jsonl: it has no {metric}")
        present[metric] = checked(Value, {"value": values[-1]}, f"metrics.jsonl: {metric}").value
    return present


def leaks(plain: dict[str, Any], certificate: Certificate) -> list[str]:
    modes = [MODES[loss] for loss in leaking_losses(plain)]
    last = certificate.end or certificate.start
    return modes + ["not tested"] * (None in (last.causal, last.independent_rows))


def conditions(environment: Environment) -> dict[str, str]:
    git = environment.git
    return {
        "torch": environment.packages.get("torch", "?"),
        "device": environment.device.partition(":")[0],
        "GPU": str(environment.gpu),
        "ranks": str(environment.ranks),
        "threads": str(environment.threads),
        "compile": str(environment.compile).lower(),
        "processor": str(environment.processor),
        "commit": git.commit[:8] + "+changes" * (not git.clean) if git else "unknown",
    }


def differing(runs: Collection[RunResult]) -> list[str]:
    """Return the conditions that differ between runs: ``threads (1, 2)``; of many values, the first ones."""
    pairs = [*dict.fromkeys(pair for run in runs for pair in run.conditions.items())]
    values = {key: sorted(value for other, value in pairs if other == key) for key, _ in pairs}
    return [
        f"{key} ({', '.join([*each[:MOST_VALUES], *['…'] * (len(each) > MOST_VALUES)])})"
        for key, each in values.items()
        if len(each) > 1
    ]
