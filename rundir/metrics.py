"""What a run writes down while it goes: metrics.jsonl, the source of truth, and a copy of it in wandb."""

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rundir.schema import DECISIVE, ROW
from system.errors import ConfigError
from system.files import jsonable, lines, naming, write_atomically


class Metrics:
    """metrics.jsonl: one JSON object a line, flushed, so that what was logged survives the process."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.stream = file.open("a", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        line = json.dumps(jsonable(row), allow_nan=False) + "\n"
        with naming(self.file):
            self.stream.write(line)
            self.stream.flush()

    def sync(self) -> None:
        """Make what was written survive a power failure, too."""
        os.fsync(self.stream.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with naming(self.file):  # what a full disk did not take is tried again
            self.stream.close()


def cut(file: Path, step: int) -> list[dict[str, Any]]:
    """Drop the rows of metrics.jsonl from ``step`` on, as a run that goes on there writes them again. Returns
    the rows that stay."""
    rows = []
    try:
        for line in lines(file) if file.exists() else ():
            with suppress(
                ValueError, TypeError, RecursionError
            ):  # a line in whose middle the process ended, or no row
                row = json.loads(line)
                row |= ROW.validate_python(row)  # in its own order
                if row["step"] < step:
                    rows.append(row)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}; fresh=true starts the run over") from None
    write_atomically(file, "".join(json.dumps(jsonable(row)) + "\n" for row in rows), sync=True)
    return rows


def losses(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the rows that have a loss of the validation split, and of the last one, that and when it was."""
    short = [{key: row[key] for key in ("step", "seconds", *DECISIVE) if key in row} for row in rows]
    return [row for row in short if "val/loss" in row or row is short[-1]]


def best_of(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Step and val/loss of the evaluation with the lowest, but for step 0's; None where there is none."""
    evaluated = [row for row in rows if row["step"] > 0 and math.isfinite(row.get("val/loss", math.inf))]
    lowest = min(evaluated, key=lambda row: row["val/loss"], default=None)
    return {key: lowest[key] for key in ("step", "val/loss")} if lowest else None
