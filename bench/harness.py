"""The harness of all benchmarks: command line, alternating rounds, tables, and the result as a JSON file.

A result holds the machine, versions, date, command lines, the raw values of every round, their medians, and
ratios of two variants (median and range over rounds). It holds no path and no host name.
"""

import argparse
import datetime
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from bench.child import BenchError, run
from bench.page import RESULTS, section
from cli import programs
from data.files import jsonable, write_atomically
from study.launch import cores
from training.environment import ROOT, cpuinfo, git_state, processor

Measured = Mapping[str, float]  # metric -> value of one variant in one round
Variants = dict[str, Callable[[], Measured]]
TORCH = """
import json, torch
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "gpu": gpu}))
"""


class Bench:
    """A running benchmark: ``what`` describes it, ``work`` is an empty folder that is deleted at the end."""

    def __init__(self, name: str, what: str, options: argparse.Namespace, work: Path) -> None:
        self.name, self.what, self.work = name, what, work
        self.rounds: int = options.rounds
        self.peer: Path | None = options.peer and options.peer.resolve()
        self.data: Path | None = options.data and options.data.resolve()
        self.machine = machine()
        self.versions: dict[str, Any] = {
            "python": platform.python_version(),
            "torch": torch_info()["torch"],
            "ours": git_state(),
            "peer": None,  # set by bench.nanogpt
        }
        self.cuda = self.machine["gpu"] is not None
        self.out: Path = options.out or RESULTS / f"{name}-{slug(self.machine)}.json"
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)  # fails here, and not after a round
        except OSError as error:
            raise BenchError(f"--out: {self.out.parent}: {error.strerror}; name another file") from None
        self.date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.raw: dict[str, dict[str, list[float]]] = {}
        self.pairs: list[tuple[str, str, str]] = []  # variant, baseline, metric
        self.variant: str | None = None  # the variant being measured; None while data or models are prepared
        self.settings: dict[str, list[str]] = {}  # variant -> the command line of its program
        self.notes: list[str] = []

    def text(self) -> Path:
        """Return the file of tinyshakespeare's text. Raises BenchError without a valid --data."""
        if self.data is None or not self.data.is_file():
            raise BenchError(f"--data: {self.data or 'file'} is missing; give tinyshakespeare's text")
        return self.data

    def folder(self) -> Path:
        """Return a new folder in ``work``."""
        return Path(tempfile.mkdtemp(dir=self.work))

    def note(self, text: str) -> None:
        """Add a sentence for the reader of the result, once."""
        if text not in self.notes:
            self.notes.append(text)

    def record(self, arguments: Sequence[str]) -> None:
        """Keep the first command line of the variant being measured as the settings of that variant."""
        if self.variant:
            self.settings.setdefault(self.variant, list(arguments))

    def compare(self, variant: str, baseline: str, *metrics: str) -> None:
        """Report the ratio variant / baseline of each metric that both variants have."""
        self.pairs += [(variant, baseline, metric) for metric in metrics]

    def alternate(self, variants: Mapping[str, Callable[[], Measured]]) -> None:
        """Measure the variants in turn, A B A B, so that other load on the machine slows all of them.

        Each round ends by writing the file. Raises BenchError with the name of the variant that failed.
        """
        for number in range(1, self.rounds + 1):
            measured: dict[str, Measured] = {}
            for variant, measure in variants.items():
                print(f"{self.name}: round {number} of {self.rounds}: {variant}", file=sys.stderr, flush=True)
                self.variant = variant
                try:
                    measured[variant] = measure()
                except BenchError as error:
                    raise BenchError(f"{variant}: {error}") from None
            for variant, values in measured.items():  # only complete rounds: a ratio needs both variants
                for metric, value in values.items():
                    self.raw.setdefault(variant, {}).setdefault(metric, []).append(float(value))
            self.save(complete=False)
        self.variant = None

    def ratios(self) -> list[dict[str, Any]]:
        """Return, per pair, the median and range of value / baseline over rounds."""
        ratios = []
        for variant, baseline, metric in self.pairs:
            values, bases = (self.raw.get(name, {}).get(metric, []) for name in (variant, baseline))
            if quotients := [value / base for value, base in zip(values, bases, strict=False)]:
                spread = {"median": median(quotients), "min": min(quotients), "max": max(quotients)}
                ratio = {"of": variant, "to": baseline, "metric": metric} | spread
                ratios.append(ratio | {"rounds": len(quotients)})
        return ratios

    def result(self, complete: bool) -> dict[str, Any]:
        keys = ("what", "date", "machine", "versions", "rounds", "settings", "notes", "raw")
        medians = {variant: {key: median(row[key]) for key in row} for variant, row in self.raw.items()}
        facts: dict[str, Any] = {"format": 1, "bench": self.name, "complete": complete}
        facts |= {key: getattr(self, key) for key in keys}
        return facts | {"medians": medians, "ratios": self.ratios()}

    def save(self, complete: bool) -> None:
        """Write the JSON file. Raises BenchError if it cannot be written."""
        try:
            write_atomically(self.out, json.dumps(jsonable(self.result(complete)), indent=1) + "\n")
        except OSError as error:
            raise BenchError(f"--out: {self.out}: {error.strerror}; name another file") from None


@cache
def torch_info() -> dict[str, Any]:
    """Return torch's version, threads and GPU, from a child process: importing torch here would make the peak
    memory that ``child.run`` measures too large."""
    return dict(json.loads(run([sys.executable, "-c", TORCH], ROOT).lines[-1][1]))


def machine() -> dict[str, Any]:
    """Return a description of this machine; family and model distinguish processors of one name."""
    return {
        "processor": processor(),
        "family_model": [cpuinfo("cpu family"), cpuinfo("model")],  # x86 only
        "cores": cores(),
        "threads": torch_info()["threads"],  # torch's default, for train.py and for nanoGPT
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": torch_info()["gpu"],
        "system": platform.system(),
    }


def slug(machine: Mapping[str, Any]) -> str:
    """Return the GPU's name, or else the processor's, as a part of a file name."""
    name = machine["gpu"] or " ".join([machine["processor"], *filter(None, machine["family_model"])])
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def parser(name: str, doc: str, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks share."""
    parser = programs.parser(doc, f"bench.{name}")
    parser.add_argument("--peer", type=Path, metavar="CHECKOUT", help="of nanoGPT; default: only ours")
    parser.add_argument("--data", type=Path, metavar="TEXT", help="the file of tinyshakespeare's text")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: bench/results/NAME-MACHINE.json")
    parser.add_argument("--rounds", type=programs.positive, default=rounds, help=f"default: {rounds}")
    return parser


def main(parser: argparse.ArgumentParser, measure: Callable[[Bench, argparse.Namespace], None]) -> None:
    """Run a benchmark: measure, save, print. Exit with status 2 and one line if it cannot be measured."""
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as work:
            what = " ".join(str(parser.description).split())
            bench = Bench(parser.prog.rpartition(".")[2], what, options, Path(work).resolve())
            measure(bench, options)
            bench.save(complete=True)
    except BenchError as error:
        parser.exit(2, f"error: {error}\n")
    except KeyboardInterrupt:
        print("interrupted; the result file has the complete rounds, if there are any", file=sys.stderr)
        sys.exit(130)
    print("\n".join([*section(bench.name, bench.result(complete=True)), str(bench.out)]))
