"""Small files of a run: plain data, written whole or not at all, and looked at before it is believed: a run's
folder may be a stranger's."""

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from plain.terminal import escaped

LARGEST = 2**20  # bytes of a file; ours have some thousand
LONGEST = 2**24  # bytes of a line of metrics.jsonl, which may have many histograms
Process = tuple[int, float]  # its number, and when it began: training/system.py

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
    """See training/environment.py."""

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


@with_config(ConfigDict(extra="allow"))
class Job(TypedDict, total=False):
    """What training/records.py keeps of a job of a sweep."""

    launcher: Process
    process: Process
    state: Literal["waiting", "running", "ended"]
    error: str


class ClusterJob(TypedDict):
    job: str


def has_its_end(status: Status) -> Status:
    if status.get("state") == "finished" and status.get("final") is None:
        raise ValueError("it has finished, but has no loss")
    if status.get("state") == "diverged" and not {"step", "reason"} <= status.keys():
        raise ValueError("it has diverged, but does not say where")
    return status


def has_its_numbers(certificate: Certificate) -> Certificate:
    clean = certificate["causal"] and certificate["independent_rows"]
    if not (clean or certificate["reason"] or {"train", "eval"} <= certificate.keys()):
        raise ValueError("it says neither what leaks nor why that cannot be told")
    return certificate


KINDS: dict[str, TypeAdapter[Any]] = {
    "status.json": TypeAdapter(Annotated[Status, AfterValidator(has_its_end)]),
    "environment.json": TypeAdapter(Environment),
    "certificate.json": TypeAdapter(Annotated[Certificate, AfterValidator(has_its_numbers)]),
    "wandb.json": TypeAdapter(Wandb),
    "job.json": TypeAdapter(Job),
    "slurm.json": TypeAdapter(ClusterJob),
}
# A line of metrics.jsonl.
Row = TypedDict(
    "Row",
    {"step": int, "seconds": float, "val/loss": NotRequired[float], "val/full_loss": NotRequired[float]},
)
ROW = TypeAdapter(with_config(ConfigDict(extra="allow"))(Row))


def read_json(file: Path) -> dict[str, Any]:
    """The file's content, or nothing where there is no such file, or it is not of its kind."""
    try:
        return parsed(file)
    except (OSError, ValueError):
        return {}


def parsed(file: Path) -> dict[str, Any]:
    """The file's content, its texts escaped. Raises OSError, and ValueError where it is damaged or not of its
    kind."""
    try:
        content = json.loads(small_text(file, LARGEST))
        return dict(harmless(KINDS[file.name].validate_python(content)))
    except ValidationError as error:
        raise ValueError(f"{file.name}: {first_of(error)}") from None
    except RecursionError:
        raise ValueError(f"{file.name}: nested too deeply") from None


def first_of(error: ValidationError) -> str:
    """What pydantic complains of first."""
    first = error.errors()[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))


def small_text(file: Path, largest: int) -> str:
    """Raises OSError, and ValueError where it is no file, larger than that many bytes, or no UTF-8."""
    if not file.is_file():  # what is a pipe or a device may have no end
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    with file.open("rb") as stream:
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"{file.name}: more than {largest:,} bytes")
    return content.decode("utf-8")


def lines(file: Path) -> Iterator[bytes]:
    """Those of a file that may be large. Raises OSError, and ValueError at one that is too long."""
    if not file.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    with file.open("rb") as stream:
        while line := stream.readline(LONGEST):
            if len(line) == LONGEST:
                raise ValueError(f"{file.name}: a line of more than {LONGEST:,} bytes")
            yield line


def harmless(value: Any) -> Any:
    """Plain data with the control characters of its texts escaped. Raises ValueError at a whole number that
    none of ours is, as it has no float."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("a whole number of more than 63 bits")
    if isinstance(value, dict):
        return {harmless(key): harmless(inner) for key, inner in value.items()}
    return type(value)(map(harmless, value)) if isinstance(value, list | tuple) else value


def jsonable(value: Any) -> Any:
    """JSON has no NaN or infinity: they are the strings NaN, Infinity, -Infinity."""
    if isinstance(value, dict):
        return {key: jsonable(inner) for key, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """An OSError in here says which file it is about; that of a full disk does not by itself."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def write_atomically(file: Path, text: str, sync: bool = False) -> None:
    """Readers see the old content or the new, never a part; with ``sync``, after a power failure, too."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with naming(file), temporary.open("x", encoding="utf-8") as stream:  # x follows no link
            stream.write(text)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
