"""Compare the arms of a study, or loose runs: which norm is better, by how much, and is it noise?

python compare.py studies/norms                           a study that ablate.py ran: table, verdicts, page
python compare.py runs                                    loose runs, in groups: 95 % intervals, no verdicts
python compare.py runs --where placement=pre              only the runs with this value
python compare.py runs --baseline norm=batchnorm          another baseline than layernorm in pre
python compare.py runs --metric train/loss --out loss     another metric; another folder for the page
python compare.py studies/norms --json                    JSON for programs: see AGENTS.md

It writes a page (index.html) and a table (table.md); docs/ablations.md describes them.
"""

# Read this file from the bottom. It imports neither torch nor a model.

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from cli import programs
from cli.errors import one_line_errors
from data.errors import ConfigError
from study import files, loose, report
from study.table import UNFIT, Table, as_json, candidate, print_rows, terminal

MOST_ROWS = 40  # groups of loose runs that a terminal shows


def key_values(text: str) -> dict[str, str]:
    """Return ``norm=dyt,placement=pre`` as a dict. Raises ArgumentTypeError."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(equals for _, equals, _ in pairs):
        raise argparse.ArgumentTypeError("write KEY=VALUE,…, for example norm=layernorm,placement=pre")
    return {key: value for key, _, value in pairs}


def load(args: argparse.Namespace) -> tuple[Table, Path]:
    """Return the table of a study or of loose runs, and the folder for its page. Raises OSError and
    ConfigError."""
    studies = [path for path in map(Path, args.runs) if (path / "study.json").exists()]
    if not studies:
        table = loose.load(args.runs, args.metric, args.baseline, args.where, args.mixed)
        return table, args.out or Path("report")
    if len(args.runs) > 1:
        raise ConfigError(f"{studies[0]}: is a study; name it alone, without other folders")
    if args.metric != loose.METRIC or args.baseline or args.where or args.mixed:
        options = "--metric --baseline --where --mixed"
        raise ConfigError(f"{studies[0]}: the comparisons of a study are fixed; {options} are for loose runs")
    runs_dir = files.read(studies[0]).runs_dir
    if runs_dir and not Path(runs_dir).is_dir():
        why = f"its runs are in {runs_dir}, which does not exist here"
        raise ConfigError(f"{studies[0]}: {why}; start compare.py where ablate.py was started")
    return report.load(studies[0]), args.out or (studies[0] if runs_dir else Path("report", studies[0].name))


def show(table: Table, folder: Path, console: Console) -> None:
    """Print the table, and write the page."""
    rows = table.rows if table.study else table.rows[:MOST_ROWS]
    print_rows(replace(table, rows=rows), console)
    from study import page  # slow to import, so after the table is printed

    index = page.write(table, folder)
    if left := len(table.rows) - len(rows):
        print(f"{left} more groups are on the page")
    print(f"page: {index}")


def print_verdict(table: Table, arm: str) -> int:
    """Print the verdict on an arm, and warnings on stderr. Return the exit status."""
    if table.study is None:
        command = table.advice[1] if table.advice else "python ablate.py"
        print(f"loose runs give no verdicts; declare a study: {command}")
        return UNFIT
    status, line = candidate(table, arm)
    print(line)
    for warning in table.warnings:
        print(warning, file=sys.stderr)
    return status


def main() -> None:
    parser = programs.parser(__doc__)
    add = parser.add_argument
    add("runs", nargs="*", default=["runs"], help="a study, or folders of runs, or globs; default: runs")
    add("--metric", default=loose.METRIC, help="metric whose last values are compared; default: %(default)s")
    same = "compare each group with the group that has these values and is otherwise the same"
    add("--baseline", metavar="KEY=VALUE,…", type=key_values, help=same)
    add("--where", metavar="KEY=VALUE", action="append", default=[], help="only runs with this value")
    add("--mixed", action="store_true", help="compare runs even if their data, context or length differ")
    add("--out", type=Path, help="folder for the page; default: report, or a study's own folder")
    one_of = parser.add_mutually_exclusive_group().add_argument
    one_of("--json", action="store_true", help="print the comparison as JSON (see AGENTS.md)")
    judged = "a title, or KEY=VALUE,…; exit with 0 if this arm is better, else with 10 to 13 (see AGENTS.md)"
    one_of("--candidate", metavar="ARM", help=judged)
    args = parser.parse_args()
    if args.out and (args.json or args.candidate is not None):
        parser.error("--out: --json and --candidate write no page; leave out --out")
    with one_line_errors():
        table, folder = load(args)
        if args.json:
            print(json.dumps(as_json(table), indent=1, allow_nan=False))
        elif args.candidate is not None:
            sys.exit(print_verdict(table, args.candidate))
        else:
            show(table, folder, terminal())


if __name__ == "__main__":
    main()
