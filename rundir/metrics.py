"""Write and read metrics.jsonl, the log of a run, from which wandb, plots and comparisons are made."""

import json
import math
import os
import stat
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rundir.folder import Diverged
from rundir.run_files import DECISIVE, ROW
from system.errors import ConfigError
from system.files import jsonable, lines, name_in_errors, parse_json, write_atomically


class Metrics:
    """metrics.jsonl, open inside ``with``: one JSON object per line, flushed so that a kill loses no row."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __enter__(self) -> Self:
        self.stream = self.file.open("a+", encoding="utf-8")
        return self

    def write(self, row: dict[str, Any]) -> None:
        line = json.dumps(jsonable(row), allow_nan=False) + "\n"
        with name_in_errors(self.file):
            self.stream.write(line)
            self.stream.flush()

    def sync(self) -> None:
        """Write the rows to the disk, so that they survive a power failure, too. If someone has removed or
        replaced the file, write it again."""
        opened = os.fstat(self.stream.fileno())
        if not stat.S_ISREG(opened.st_mode):  # os.devnull
            return
        os.fsync(self.stream.fileno())
        with suppress(FileNotFoundError):
            if os.path.samestat(opened, self.file.stat()):
                return
        with name_in_errors(self.file):
            self.stream.seek(0)
            write_atomically(self.file, self.stream.read(), sync=True)
            removed, self.stream = self.stream, self.file.open("a+", encoding="utf-8")
            removed.close()
        print(f"{self.file}: was removed or replaced, and has been written again", flush=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with name_in_errors(self.file):
            try:
                # another error may be that another process has taken over the run, and its file
                if kind is None or issubclass(kind, Diverged):
                    self.sync()
            finally:
                self.stream.close()  # flushes, which fails on a full disk


def rows_before(file: Path, step: int) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl before ``step``: a run that resumes at ``step`` logs the others again.
    Raises ConfigError."""
    rows: list[dict[str, Any]] = []
    invalid: list[bool] = []  # for each row
    try:
        for line in lines(file) if step and file.exists() else ():
            try:
                row = parse_json(line)
                row |= ROW.validate_python(row)  # keeps the order of the keys
                if row["step"] < step:
                    rows.append(row)
                invalid.append(False)
            except (ValueError, TypeError, RecursionError):
                invalid.append(True)
    except ValueError as error:
        raise ConfigError(f"{file.parent}: {error}; fresh=true starts the run over") from None
    if damaged := sum(invalid[:-1]):  # a killed process may have left the last row incomplete
        print(f"{file}: {damaged} damaged row{'s are' if damaged > 1 else ' is'} left out", flush=True)
    if step and not rows:
        print(f"{file}: has no rows before step {step:,}; the run's curves begin there", flush=True)
    return rows


def write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write metrics.jsonl anew, with these rows. Raises OSError."""
    write_atomically(file, "".join(json.dumps(jsonable(row)) + "\n" for row in rows), sync=True)


def last_row(file: Path) -> dict[str, Any]:
    """Return the last row of metrics.jsonl; {} if it is missing or invalid."""
    try:
        [line] = deque(lines(file), maxlen=1)
        return ROW.validate_python(parse_json(line))  # type: ignore[return-value]
    except (OSError, ValueError, RecursionError):
        return {}


def losses(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return step, seconds, validation losses and the latest training loss of the rows that have a validation
    loss, and of the last row."""
    short: list[dict[str, Any]] = []
    for row in rows:
        latest = {"train/loss": short[-1]["train/loss"]} if short and "train/loss" in short[-1] else {}
        keys = ("step", "seconds", "train/loss", *DECISIVE)
        short.append(latest | {key: row[key] for key in keys if key in row})
    return [row for row in short if "val/loss" in row or row is short[-1]]


def best_of(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return step and val/loss of the evaluation after step 0 with the lowest val/loss, or None."""
    evaluated = [row for row in rows if row["step"] > 0 and math.isfinite(row.get("val/loss", math.inf))]
    lowest = min(evaluated, key=lambda row: row["val/loss"], default=None)
    return {key: lowest[key] for key in ("step", "val/loss")} if lowest else None
