"""Compare runs: which norm at which placement is better, by how much, and is the difference noise?

python compare.py studies/norms                         the table of a study that ablate.py ran
python compare.py runs                                  a table of runs, and report/index.html
python compare.py runs --where placement=pre            only the runs with this value
python compare.py runs --baseline norm=batchnorm        a baseline other than pre-norm layernorm
python compare.py runs --over model.n_layer             average over the values of a key
python compare.py runs/A runs/B                         the step at which two runs begin to differ
"""

# Read this file from the bottom. compare.py imports neither torch nor a model.

import argparse
import json
import math
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cli import programs
from cli.errors import one_line_errors
from comparison.comparable import IncomparableError
from comparison.drawing import printed
from comparison.drawing.glance import sentence
from comparison.groups import ComparisonError, key_values
from comparison.load import UnreadableError, load
from comparison.published import load_all
from comparison.report import Report, build_report
from comparison.verdicts import MATTERS
from data.errors import ConfigError

PERIOD = 5.0  # seconds between two readings of --watch


def baseline(text: str) -> dict[str, str]:
    """Return the values of keys. Raises argparse's error."""
    try:
        return key_values(text)
    except ComparisonError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def nats(text: str) -> float:
    """Return a difference of losses. Raises argparse's error."""
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError("give a number of nats, 0 or more")
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError("give a number of seconds, up to a day")
    return value


def load_report(args: argparse.Namespace) -> Report:
    runs, passed_over = load_all(args.runs)
    if not runs:
        why = f"; {passed_over[0]}" if passed_over else ""
        more = f" (and {len(passed_over) - 1} more)" if len(passed_over) > 1 else ""
        raise ComparisonError(f"{' '.join(args.runs)}: no run here has ended{why}{more}; train one first")
    report = build_report(runs, args.metric, args.baseline, args.over, args.mixed, args.matters, args.where)
    report.passed_over = [*passed_over, *report.passed_over]
    return report


def compare(args: argparse.Namespace, console: Console) -> None:
    report = load_report(args)
    console.print(printed.render(report, console.width), crop=False)
    from comparison.write import write_report  # slow to import, so not before the table is printed

    for line in write_report(report, args.out or Path("report")):
        print(line, flush=True)
    answer = sentence(report, warnings_at="above")
    console.print(Text(f"\n{answer}", "bold"))


def print_json(args: argparse.Namespace, console: Console) -> None:
    from comparison import machine

    data = machine.comparison(load_report(args))
    print(json.dumps(data, indent=1, allow_nan=False))


def judge(args: argparse.Namespace, console: Console) -> None:
    """Print the verdict on one arm, and on stderr what may make it unfair and what was passed over; exit with
    the verdict's status."""
    from comparison import machine

    try:
        report = load_report(args)
        status, line = machine.status_of(report, args.candidate)
        doubt = [*([] if report.is_fair else report.how_chosen[:1]), *report.warnings, *report.passed_over]
    except IncomparableError as error:
        status, line, doubt = machine.ExitStatus.UNFIT, str(error), []
    print(line)
    for unfair in doubt:
        print(unfair, file=sys.stderr)
    sys.exit(status)


def show_study(args: argparse.Namespace, console: Console) -> None:
    """Print a study: its table, its JSON, or the verdict on one arm, with whose status the program ends."""
    from study import report, table

    shown = report.load(Path(args.runs[0]))
    if args.json:
        print(json.dumps(table.as_json(shown), indent=1, allow_nan=False))
    elif args.candidate is not None:
        status, line = table.candidate(shown, args.candidate)
        print(line)
        for warning in shown.warnings:
            print(warning, file=sys.stderr)
        sys.exit(status)
    else:
        table.print_rows(shown, console)


def compare_two(args: argparse.Namespace, console: Console) -> None:
    from comparison import two_runs

    runs = []
    for path in args.runs:
        try:
            runs.append(load(Path(path))[0])
        except UnreadableError as error:
            raise UnreadableError(f"{path}: {error}") from None
    console.print(two_runs.render(*runs))


def watch(args: argparse.Namespace, console: Console) -> None:
    """Print the table again whenever it changes, until Ctrl-C."""
    shown = ""
    while True:
        with console.capture() as captured:
            try:
                report = load_report(args)
                console.print(printed.render(report, console.width), crop=False)
            except (ComparisonError, UnreadableError) as error:  # for example, no run has ended yet
                console.print(Text(str(error)))
        if captured.get() != shown:
            shown = captured.get()
            console.clear()
            print(shown, end="", flush=True)
        time.sleep(max(0.1, PERIOD if args.every is None else args.every))


def main() -> None:
    parser = programs.parser(__doc__)
    add = parser.add_argument
    add("runs", nargs="*", default=["runs"], help="folders of runs, or globs; default: runs")
    losses = "val/full_loss, or val/report_loss if the settings were tuned"
    add("--metric", help=f"compare this metric's last value; default: {losses}")
    same = "compare with these values, all other keys being equal"
    add("--baseline", metavar="KEY=VALUE,…", type=baseline, default={}, help=same)
    add("--over", metavar="KEY", action="append", default=[], help="average over a key's values")
    add("--where", metavar="KEY=VALUE", action="append", default=[], help="only runs with this value")
    smallest = f"smallest loss difference that matters; default: {MATTERS}"
    add("--matters", type=nats, default=MATTERS, metavar="NATS", help=smallest)
    add("--mixed", action="store_true", help="compare runs even if data, length or evaluation differ")
    add("--out", type=Path, help="folder of the report; default: report")
    one_of = parser.add_mutually_exclusive_group().add_argument
    one_of("--json", action="store_true", help="print the comparison as JSON: docs/programs.md")
    judged = "a title, or KEY=VALUE,…: exit with 0 if it is better, else 10 to 13: docs/programs.md"
    one_of("--candidate", metavar="ARM", help=judged)
    one_of("--watch", action="store_true", help="print the table whenever it changes, until Ctrl-C")
    add("--every", type=seconds, metavar="SECONDS", help=f"period of --watch; default: {PERIOD}")
    args = parser.parse_args()
    is_judged = args.candidate is not None
    if args.out and (args.json or is_judged or args.watch):
        parser.error("--out: only a comparison without --json, --candidate and --watch writes a report")
    if args.every is not None and not args.watch:
        parser.error("--every: is the period of --watch; give both")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    options = args.metric, args.baseline, args.over, args.where, args.mixed, args.out, args.matters != MATTERS
    with one_line_errors():
        if len(args.runs) == 1 and (Path(args.runs[0]) / "study.json").exists():
            if any(options) or args.watch:
                raise ConfigError(f"{args.runs[0]}: a study is compared as declared; leave options out")
            show_study(args, console)
            return
        are_runs = all((Path(path) / "metrics.jsonl").exists() for path in args.runs)
        are_two_runs = len(args.runs) == 2 and are_runs and not any(options)
        one_report = compare_two if are_two_runs else compare
        action = print_json if args.json else judge if is_judged else watch if args.watch else one_report
        action(args, console)


if __name__ == "__main__":
    main()
