"""A benchmark's measurements: taken in turn, round after round, written after each, shown at the end. Nothing
to run here.

The result is a JSON file: what was compared, machine, versions, date, the raw values of every round, their
medians, and ratios, each the median of the rounds' ratios with their range.
"""

import datetime
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from bench import machine
from bench.measure import BenchError, ratio
from rundir.environment import ROOT
from system.files import write_atomically

FORMAT = 1
QUIET = 2.0  # seconds between lines where the output is no terminal
Measured = Mapping[str, float]  # metric -> value, of one part in one round
Column = tuple[str, str, float]  # metric, its title, and what a value is divided by to be shown


class Bench:
    """What a benchmark's ``measure`` is given.

    Args:
        name: the benchmark's, as in ``python -m bench.<name>``.
        what: what it measures, in a sentence.
        rounds: how often each part is measured.
        peer: a checkout of nanoGPT, or None: then only ours is measured.
        data: tinyshakespeare's text.
        work: an empty folder, which is deleted afterwards.
        out: the JSON file; None: in bench/results, named by benchmark and processor.
    """

    def __init__(
        self,
        name: str,
        what: str,
        *,
        rounds: int,
        peer: Path | None,
        data: Path | None,
        work: Path,
        out: Path | None,
    ) -> None:
        self.name, self.what, self.rounds = name, what, rounds
        self.peer, self.work = peer, work
        self._data = data
        seen = machine.info()
        self.machine, self.versions = machine.machine(seen), machine.versions(seen, peer)
        self.cuda = seen["gpu"] is not None
        results = ROOT / "bench" / "results"
        self.out = out or results / f"{name}-{machine.slug(self.machine)}.json"
        self.date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.raw: dict[str, dict[str, list[float]]] = {}
        self.pairs: list[tuple[str, str, str]] = []  # part, the part it is divided by, metric
        self.settings: dict[str, list[str]] = {}  # part -> what its program was told
        self.found: dict[str, Any] = {}  # what is no number of a round
        self.notes: list[str] = []
        self.console = Console(highlight=False, stderr=True)

    @property
    def data(self) -> Path:
        """Tinyshakespeare's text. Raises BenchError where it was not given."""
        if self._data is None:
            raise BenchError("--data: is needed here; give the file of tinyshakespeare's text")
        return self._data

    def say(self, text: str) -> None:
        self.console.print(Text(text))

    def note(self, text: str) -> None:
        """What the reader of the result should know."""
        if text not in self.notes:
            self.notes.append(text)

    def alternate(self, parts: Mapping[str, Callable[[], Measured]], rounds: int | None = None) -> None:
        """Measure each part in turn, A B A B, so that what else the machine does meets all of them. The file
        is written after each round: what was measured is not lost."""
        rounds = rounds or self.rounds
        columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.description}"))
        terminal = self.console.is_terminal
        with Progress(
            *columns, TimeElapsedColumn(), console=self.console, transient=True, disable=not terminal
        ) as bar:
            task, said = bar.add_task("", total=rounds * len(parts)), -math.inf
            for number in range(1, rounds + 1):
                taken: dict[str, Measured] = {}
                for part, take in parts.items():
                    where = f"{self.name}: round {number} of {rounds}: {part}"
                    bar.update(task, description=where)
                    if not terminal and time.monotonic() - said > QUIET:
                        self.say(where)
                        said = time.monotonic()
                    try:
                        taken[part] = take()
                    except BenchError as error:
                        raise BenchError(f"{part}: {error}") from None
                    bar.advance(task)
                for part, values in taken.items():  # of whole rounds, so that ratios have both sides
                    for metric, value in values.items():
                        self.raw.setdefault(part, {}).setdefault(metric, []).append(float(value))
                self.save(complete=False)

    def compare(self, part: str, baseline: str, *metrics: str) -> None:
        """State the ratio of two parts, where both are measured."""
        self.pairs += [(part, baseline, metric) for metric in metrics]

    def ratios(self) -> list[dict[str, Any]]:
        return [
            {"of": part, "to": baseline, "metric": metric}
            | ratio(self.raw[part][metric], self.raw[baseline][metric])
            for part, baseline, metric in self.pairs
            if metric in self.raw.get(part, {}) and metric in self.raw.get(baseline, {})
        ]

    def result(self, complete: bool) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "bench": self.name,
            "what": self.what,
            "complete": complete,
            "date": self.date,
            "machine": self.machine,
            "versions": self.versions,
            "rounds": self.rounds,
            "settings": self.settings,
            "notes": self.notes,
            "raw": self.raw,
            "medians": {
                part: {metric: median(values) for metric, values in metrics.items()}
                for part, metrics in self.raw.items()
            },
            "ratios": self.ratios(),
            "found": self.found,
        }

    def save(self, complete: bool) -> None:
        """Raises BenchError where the file cannot be written."""
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            content = json.dumps(plain(self.result(complete)), indent=1, allow_nan=False)
            write_atomically(self.out, content + "\n")
        except OSError as error:
            raise BenchError(
                f"--out: {self.out}: {error.strerror}; name a file that can be written"
            ) from None

    def show(self, columns: Sequence[Column]) -> None:
        """A table of medians, with the rounds' range where there are several, and one of ratios."""
        table = Table("median (min-max)", *(title for _, title, _ in columns), box=box.SIMPLE_HEAD)
        for part, metrics in self.raw.items():
            cells = [cell(metrics.get(metric), scale) for metric, _, scale in columns]
            if any(cells):
                table.add_row(Text(part), *cells)
        out = Console(highlight=False, width=None if self.console.is_terminal else 160)
        out.print(table)
        if ratios := self.ratios():
            table = Table("ratio", "to", "of", "median", "min-max", "rounds", box=box.SIMPLE_HEAD)
            for one in ratios:
                spread = f"{one['min']:.3f}-{one['max']:.3f}"
                table.add_row(
                    *(Text(one[key]) for key in ("of", "to", "metric")),
                    f"{one['median']:.3f}",
                    spread,
                    str(one["rounds"]),
                )
            out.print(table)
        for note in self.notes:
            out.print(Text(f"- {note}"))
        out.print(Text(str(self.out)))


def plain(value: Any) -> Any:
    """JSON has no NaN or infinity: they are the strings nan, inf, -inf."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def cell(values: Sequence[float] | None, scale: float) -> str:
    if not values:
        return ""
    low, high = (digits(end / scale) for end in (min(values), max(values)))
    middle = digits(median(values) / scale)
    return middle if len(values) == 1 else f"{middle} ({low}-{high})"


def digits(value: float) -> str:
    """Four, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
