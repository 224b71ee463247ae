"""The command line that all benchmarks share. Nothing to run here."""

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from bench import peer
from bench.measure import BenchError
from bench.report import Bench

Measure = Callable[[Bench, argparse.Namespace], None]
Arguments = Callable[[argparse.ArgumentParser], None]


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; --help says what there is\n")


def at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def program(
    name: str,
    doc: str,
    measure: Measure,
    *,
    rounds: int,
    more: Arguments | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """The benchmark ``name`` as a program: read the command line, measure, write, show. Ends with status 2
    and one line where something is wrong."""
    parser = Parser(
        prog=f"python -m bench.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--peer", type=Path, metavar="FOLDER", help="a checkout of nanoGPT; without: only ours"
    )
    parser.add_argument("--data", type=Path, metavar="FILE", help="tinyshakespeare's text")
    parser.add_argument("--out", type=Path, metavar="FILE", help="of the result; bench/results/… by default")
    parser.add_argument("--rounds", type=at_least_one, default=rounds, help=f"of measurements; {rounds}")
    if more:
        more(parser)
    asked = parser.parse_args(argv)
    try:
        check(asked)
        with tempfile.TemporaryDirectory(prefix="bench-") as work:
            bench = Bench(
                name,
                " ".join(doc.split("\n\n")[0].split()),
                rounds=asked.rounds,
                peer=asked.peer.resolve() if asked.peer else None,
                data=asked.data.resolve() if asked.data else None,
                work=Path(work).resolve(),
                out=asked.out,
            )
            measure(bench, asked)
            bench.save(complete=True)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; what whole rounds there were is in the result's file", file=sys.stderr)
        sys.exit(130)


def check(asked: argparse.Namespace) -> None:
    """What can be told before anything is measured. Raises BenchError."""
    if asked.peer:
        peer.check(asked.peer)
    if asked.data and not asked.data.is_file():
        raise BenchError(f"--data: {asked.data}: no such file; give tinyshakespeare's text")
    if importlib.util.find_spec("torch") is None:
        raise BenchError("torch is not installed; pip install -r requirements.txt")
