"""Schemas of the files in a run's folder, which are validated when they are read: the folder may be
untrusted.

Torch is not imported here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from system.files import read_or_empty, read_typed

Best = TypedDict("Best", {"step": int, "val/loss": float})


@with_config(ConfigDict(extra="allow"))
class Status(TypedDict, total=False):
    state: Literal["running", "finished", "diverged", "interrupted", "failed"]
    step: int
    saved: int | None
    reason: str | None
    best: Best | None
    final: float | None
    peak_memory: int | None


@with_config(ConfigDict(extra="allow"))
class Data(TypedDict, total=False):
    fingerprint: str
    train_tokens: int


@with_config(ConfigDict(extra="allow"))
class Environment(TypedDict, total=False):
    """See rundir/environment.py."""

    group: str
    device: str
    precision: str
    ranks: int
    threads: int
    compile: bool
    python: str
    processor: str | None
    packages: dict[str, str]
    git: dict[str, str] | None
    code: dict[str, str]
    parameters: int
    settled: dict[str, bool | int | float | str]
    data: Data
    overrides: list[str]
    earlier: list[dict[str, Any]]


@with_config(ConfigDict(extra="allow"))
class Leaks(TypedDict):
    future: float
    rows: float


@with_config(ConfigDict(extra="allow"))
class Certificate(TypedDict):
    causal: bool | None
    independent_rows: bool | None
    reason: str | None
    context: int
    train: NotRequired[Leaks]
    eval: NotRequired[Leaks]


class Wandb(TypedDict):
    id: str
    copied: int


def check_status(status: Status) -> Status:
    if status.get("state") == "finished" and status.get("final") is None:
        raise ValueError("finished, but the final loss is missing")
    if status.get("state") == "diverged" and not {"step", "reason"} <= status.keys():
        raise ValueError("diverged, but the step or reason is missing")
    return status


def check_certificate(certificate: Certificate) -> Certificate:
    clean = certificate["causal"] and certificate["independent_rows"]
    if not (clean or certificate["reason"] or {"train", "eval"} <= certificate.keys()):
        raise ValueError("gives neither the measured leaks nor why they were not measured")
    return certificate


SCHEMAS: dict[str, TypeAdapter[Any]] = {
    "status.json": TypeAdapter(Annotated[Status, AfterValidator(check_status)]),
    "environment.json": TypeAdapter(Environment),
    "certificate.json": TypeAdapter(Annotated[Certificate, AfterValidator(check_certificate)]),
    "wandb.json": TypeAdapter(Wandb),
}
# A line of metrics.jsonl.
Row = TypedDict(
    "Row",
    {"step": int, "seconds": float, "val/loss": NotRequired[float], "val/full_loss": NotRequired[float]},
)
ROW = TypeAdapter(with_config(ConfigDict(extra="allow"))(Row))


# Keys of train.* that only watch the run: they change neither its result nor its identity.
NOT_IN_IDENTITY = {"eval_every", "eval_windows", "checkpoint_every", "log_every", "threads"}
DECISIVE = ("val/loss", "val/full_loss")  # a run in which one of these is non-finite has diverged


def read_json(file: Path) -> dict[str, Any]:
    """Return the content of a file in a run's folder; empty if it is missing or invalid."""
    return read_or_empty(file, SCHEMAS[file.name])


def read_valid(file: Path) -> dict[str, Any]:
    """Return the content of a file in a run's folder. Raises OSError if it cannot be read, ValueError if it
    is invalid."""
    return read_typed(file, SCHEMAS[file.name])


def leaks(certificate: Mapping[str, Any]) -> bool:
    """Return True if a certificate says that logits depend on later tokens or on other rows."""
    return certificate.get("causal") is False or certificate.get("independent_rows") is False
