"""Compare runs: which norm, where, by how much, and is it noise?

    python compare.py runs                                  table, and report/index.html
    python compare.py runs --where placement=pre            some of them
    python compare.py runs --baseline norm=batchnorm        against another than layernorm in pre
    python compare.py runs --over model.n_layer             the mean over its values
    python compare.py runs/A runs/B                         two runs: where they part

Read it from the bottom. Torch is not needed, nor a network.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from comparison import groups, load
from comparison.groups import ComparisonError
from comparison.load import Run, UnreadableError
from comparison.report import Report, reported
from system.terminal import escaped


def runs_of(paths: Sequence[str], conditions: Sequence[str]) -> tuple[list[Run], list[str]]:
    """The runs that have ended and fulfil all conditions, and what was passed over, each with the reason."""
    found: dict[str, Run] = {}
    passed_over = []
    for folder in load.found(paths):
        try:
            run, said = load.load(folder)
        except UnreadableError as error:
            passed_over.append(f"{folder}: {error}")
            continue
        if run.name in found:
            passed_over.append(f"{folder}: the same run as {found[run.name].folder}")
            continue
        found[run.name] = run
        passed_over += [f"{folder}: {line}" for line in said]
    runs = list(found.values())
    for condition in conditions:
        runs = groups.chosen(runs, condition)
    return runs, passed_over


def compared(asked: argparse.Namespace) -> Report:
    runs, passed_over = runs_of(asked.runs, asked.where)
    if not runs:
        why = f"; {passed_over[0]}" if passed_over else ""
        more = f" (and {len(passed_over) - 1} more)" if len(passed_over) > 1 else ""
        raise ComparisonError(f"{' '.join(asked.runs)}: no run there has ended{why}{more}; train some first")
    baseline = dict(part.split("=", 1) for part in asked.baseline.split(",")) if asked.baseline else None
    report = reported(runs, asked.metric, baseline, asked.over, asked.mixed)
    report.passed_over = [*map(escaped, passed_over)]
    return report


def compare(asked: argparse.Namespace, console: Console) -> None:
    if len(asked.runs) == 2 and all((Path(path) / "metrics.jsonl").exists() for path in asked.runs):
        from comparison.two_runs import in_terminal as side_by_side

        console.print(side_by_side(*map(loaded, asked.runs)))
        return
    from comparison.table import in_terminal

    report = compared(asked)
    console.print(in_terminal(report))
    from comparison import write

    for line in write.write(report, asked.out):
        print(line, flush=True)


def loaded(path: str) -> Run:
    """A run that was named by itself. Raises UnreadableError."""
    try:
        return load.load(Path(path))[0]
    except UnreadableError as error:
        raise UnreadableError(f"{path}: {error}") from None


def watch(asked: argparse.Namespace, console: Console) -> None:
    """The table, printed anew as runs end, until Ctrl-C."""
    from rich.text import Text

    from comparison.table import in_terminal

    before = ""
    while True:
        try:
            table = in_terminal(compared(asked))
        except ComparisonError as error:  # no run has ended yet, say
            table = Text(escaped(str(error)))
        with console.capture() as printed:
            console.print(table)
        if printed.get() != before:
            before = printed.get()
            console.clear()
            console.print(table)
            sys.stdout.flush()
        time.sleep(max(0.1, asked.every))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog=__doc__.split("\n\n")[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="*", default=["runs"], help="folders of runs, or globs; else runs")
    parser.add_argument(
        "--metric", default="val/full_loss", help="the quantity: its last value; val/full_loss"
    )
    parser.add_argument("--baseline", metavar="KEY=VALUE,…", help="compare with these, all else being equal")
    parser.add_argument("--over", metavar="KEY", action="append", default=[], help="average over a key")
    parser.add_argument("--where", metavar="KEY=VALUE", action="append", default=[], help="only these runs")
    parser.add_argument("--mixed", action="store_true", help="also what has other data, lengths, evaluations")
    parser.add_argument("--out", type=Path, default=Path("report"), help="the report's folder; report")
    parser.add_argument("--watch", action="store_true", help="the table, again and again, until Ctrl-C")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="with --watch; 5")
    asked = parser.parse_args()
    if asked.baseline and not all("=" in part for part in asked.baseline.split(",")):
        parser.error("--baseline: write KEY=VALUE, as norm=layernorm,placement=pre")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    try:
        if asked.watch:
            watch(asked, console)
        else:
            compare(asked, console)
    except (ComparisonError, UnreadableError) as error:
        sys.exit(f"error: {escaped(str(error))}")
    except BrokenPipeError:  # whoever read our output has gone: | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        where = escaped(str(error.filename))
        sys.exit(f"error: {where}: {error.strerror}; check the path, its permissions and free space")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
