"""Schemas of the files in a run's folder, which are validated when they are read: the folder may be
untrusted.

Torch is not imported here.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, BeforeValidator, ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from data.files import read_or_empty, read_typed

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
    process: Any  # the ID of the process that wrote status.json
    host: str


@with_config(ConfigDict(extra="allow"))
class Data(TypedDict, total=False):
    fingerprint: str
    train_tokens: int


class Plan(TypedDict):
    """What a sweep planned before its first run; written before studies existed."""

    written: str
    arms: list[str]
    arm: str
    seeds: list[int]
    ended_before: list[int]
    baseline: dict[str, str]


class Role(TypedDict):
    """The purpose of a run in a fair sweep, of before there were studies: ``trial`` tries settings,
    ``compared`` trains an arm at its own best settings, ``borrowed`` at the baseline's.

    tuning: the hash of an arm and its trials.
    keys, seeds: the tuned keys, and the seeds of the trials.
    written: when the comparison was launched, ISO 8601.
    """

    role: Literal["trial", "compared", "borrowed"]
    tuning: str
    keys: list[str]
    seeds: list[int]
    written: str


@with_config(ConfigDict(extra="allow"))
class Environment(TypedDict, total=False):
    """See training/environment.py."""

    group: str
    device: str
    gpu: str | None
    precision: str
    ranks: int
    threads: int
    compile: bool
    python: str
    processor: str | None
    packages: dict[str, str]
    git: dict[str, Any] | None
    code: dict[str, str]
    parameters: int
    settled: dict[str, bool | int | float | str]
    data: Data
    overrides: list[str]
    plan: Plan | None
    roles: list[Role]
    earlier: list[dict[str, Any]]


@with_config(ConfigDict(extra="allow"))
class Leaks(TypedDict):
    future: float
    rows: float


@with_config(ConfigDict(extra="allow"))
class Asked(TypedDict):
    cuts: int
    all_cuts: int
    rows: int
    cut_rows: float


@with_config(ConfigDict(extra="allow"))
class AskedByMode(TypedDict, total=False):
    train: Asked
    eval: Asked


@with_config(ConfigDict(extra="allow"))
class Answer(TypedDict):
    """The answer of probe/causality.py about a model; ``asked`` is how much was tested."""

    causal: bool | None
    independent_rows: bool | None
    reason: str | None
    context: int
    train: NotRequired[Leaks]
    eval: NotRequired[Leaks]
    asked: NotRequired[AskedByMode]  # missing in answers of earlier versions


def check_answer(answer: Answer) -> Answer:
    is_clean = answer["causal"] and answer["independent_rows"]
    if not (is_clean or answer["reason"] or {"train", "eval"} <= answer.keys()):
        raise ValueError("gives neither the measured leaks nor why they were not measured")
    return answer


class Certificate(TypedDict):
    start: Annotated[Answer, AfterValidator(check_answer)]
    end: Annotated[Answer, AfterValidator(check_answer)] | None  # with the trained weights


class Wandb(TypedDict):
    id: str
    copied: int


def check_status(status: Status) -> Status:
    if status.get("state") == "finished" and status.get("final") is None:
        raise ValueError("finished, but the final loss is missing")
    if status.get("state") == "diverged" and not {"step", "reason"} <= status.keys():
        raise ValueError("diverged, but the step or reason is missing")
    return status


def with_start(content: Any) -> Any:
    """Return a certificate; files of an earlier version hold the start's answer alone, not nested."""
    return {"start": content, "end": None} if isinstance(content, dict) and "causal" in content else content


SCHEMAS: dict[str, TypeAdapter[Any]] = {
    "status.json": TypeAdapter(Annotated[Status, AfterValidator(check_status)]),
    "environment.json": TypeAdapter(Environment),
    "certificate.json": TypeAdapter(Annotated[Certificate, BeforeValidator(with_start)]),
    "wandb.json": TypeAdapter(Wandb),
}
# Keys of train.* that are not part of a run's identity: they change how the run is watched, and thereby when
# it is called diverged, or the last digits of its numbers.
NOT_IN_IDENTITY = {"eval_every", "eval_windows", "checkpoint_every", "log_every", "threads"}
SELECT, REPORT = "val/select_loss", "val/report_loss"  # the losses on the halves of the validation split


def read_json(file: Path) -> dict[str, Any]:
    """Return the content of a file in a run's folder; empty if it is missing or invalid."""
    return read_or_empty(file, SCHEMAS[file.name])


def read_valid(file: Path) -> dict[str, Any]:
    """Return the content of a file in a run's folder. Raises OSError if it cannot be read, ValueError if it
    is invalid."""
    return read_typed(file, SCHEMAS[file.name])


def answers(certificate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of a run's certificate: at the start and, if it has one, at the end."""
    return [answer for answer in (certificate.get("start"), certificate.get("end")) if answer]


def leaks(certificate: Mapping[str, Any]) -> bool:
    """Return True if a certificate says that logits depend on later tokens or on other rows."""
    return any(False in (answer["causal"], answer["independent_rows"]) for answer in answers(certificate))


def leak_of(leaks: Mapping[str, Any], kind: str) -> float:
    """Return the leak of a ``kind``, future or rows, in a mode of a certificate: as a forward shows it, or
    else the compiled loss, a gradient or, of ``rows``, an earlier batch. NaN if it was not measured."""
    names = [kind, f"{kind}_compiled", f"{kind}_gradient", *["memory"] * (kind == "rows")]
    shown = (leak for name in names if type(leak := leaks.get(name)) is float and leak)
    return next(shown, leaks.get(kind, math.nan))


def leaking_modes(certificate: Mapping[str, Any]) -> list[str]:
    """Return the modes, train and eval, in which a certificate that says so has leaks; both if it does not
    say in which."""
    measured = [(mode, answer.get(mode, {})) for answer in answers(certificate) for mode in ("train", "eval")]
    modes = {mode for mode, sizes in measured if any(type(size) is float and size for size in sizes.values())}
    return sorted(modes or {"train", "eval"}, reverse=True) if leaks(certificate) else []


def causality(certificate: Mapping[str, Any]) -> str:
    """Return what is known of an ended run: "causal", "LEAKS", or what is missing in its certificate."""
    if leaks(certificate):
        return "LEAKS"
    if not certificate:
        return "not tested"
    last = answers(certificate)[-1]  # at the start a run asks only some positions
    if last["reason"] or None in (last["causal"], last["independent_rows"]):
        return "not known"
    if "asked" not in last:
        return "tested at 4 positions"
    asked = [last["asked"].get(mode) for mode in ("train", "eval")]
    for mode in sorted(filter(None, asked), key=lambda mode: int(mode["cuts"])):  # the fewest first
        if mode["cuts"] < mode["all_cuts"]:
            return f"tested at {mode['cuts']:,} of {mode['all_cuts']:,} positions"
    return "causal" if certificate["end"] else "tested at the start only"
