"""Publish runs as tables, which compare.py reads as it reads folders of runs.

    python -m scripts.publish runs --out results/mine                        runs.csv, curves.csv, shared.json
    python -m scripts.publish results/reference --page results/reference.md  a page in Markdown on them

Settings, metrics, certificates and versions are published; weights, statistics and paths are not."""

import io
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cli import programs
from cli.errors import one_line_errors
from comparison.drawing import glance
from comparison.drawing.page import machines
from comparison.drawing.printed import result_table
from comparison.duplicates import unique
from comparison.groups import ComparisonError, join
from comparison.load import Run
from comparison.published import load_all, publish
from comparison.report import Report, build_report
from comparison.roles import by_role
from comparison.table import COSTS, cells, folded, settings
from comparison.write import markdown


def page(runs: Sequence[Run], command: str) -> str:
    """Return a page on a comparison in Markdown: the table, how its settings were chosen, and what they are.
    ``command``: what wrote the page."""
    report = build_report(runs)
    rows = [{c: text for c, text in row.items() if c not in COSTS} for row in cells(report)]
    console = Console(file=io.StringIO(), width=160, highlight=False)
    with console.capture() as printed:
        console.print(result_table(report, folded(report, rows)))
    table = "\n".join(line.rstrip() for line in printed.get().splitlines() if line.strip())
    warnings = "\n".join(f"- {line}" for line in report.warnings)
    title = f"# {report.metric} of {len(report.rows)} arms"
    parts = [
        f"<!-- {command} -->",
        title,
        glance.sentence(report),
        f"```\n{table}\n```",
        provenance(runs, report),
        "Made with: " + "; ".join(machines(report)) + ".",
        warnings,
    ]
    if chosen := settings(report):
        parts.append(markdown(chosen))
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def provenance(runs: Sequence[Run], report: Report) -> str:
    """Return sentences on the compared runs, and on the trials, if there are any."""
    parts = by_role(runs)
    lengths = Counter(run.config["train.steps"] for run in parts.trials)
    listed = " and ".join(f"{count} trials of {steps:,} steps" for steps, count in sorted(lengths.items()))
    steps = max(run.config["train.steps"] for run in report.runs)
    in_table = [run for row in report.rows for run in row.group.runs]
    compared = f"The table compares {len(in_table)} runs of {steps:,} steps, on seeds {seeds(in_table)}."
    if not parts.trials:
        return compared
    trials = f"There were {listed}, on seeds {seeds(parts.trials)}."
    return " ".join([compared, *report.how_chosen[:1], trials])


def seeds(runs: Sequence[Run]) -> str:
    return join(str(seed) for seed in sorted({run.seed for run in runs}))


def shown(path: str) -> str:
    """Return a path that says nothing of this machine: of an absolute one the last part."""
    return Path(path).name if Path(path).is_absolute() else path


def main() -> None:
    parser = programs.parser(__doc__, "scripts.publish")
    parser.add_argument("runs", nargs="+", help="folders of runs, or published runs")
    parser.add_argument("--out", type=Path, help="folder of the tables")
    parser.add_argument("--page", type=Path, help="write a page in Markdown about these runs")
    args = parser.parse_args()
    if not (args.out or args.page):
        parser.error("name --out FOLDER, --page FILE or both")
    with one_line_errors():
        print("reading the runs", file=sys.stderr, flush=True)
        runs, remarks = load_all(args.runs)
        runs, copies = unique(runs)
        for line in [*remarks, *copies]:
            print(f"note: {line}")
        if not runs:
            raise ComparisonError(f"{' '.join(args.runs)}: no run here has ended; train one first")
        if args.out:
            publish(runs, args.out)
            size = sum(file.stat().st_size for file in args.out.iterdir())
            print(f"{args.out}/: {len(runs)} runs, {size / 1e6:.1f} MB; python compare.py {args.out}")
        if args.page:
            words = [*map(shown, args.runs), "--page", shown(str(args.page))]
            command = shlex.join(["python", "-m", "scripts.publish", *words])
            args.page.write_text(page(runs, command), encoding="utf-8")
            print(f"{args.page}: written")


if __name__ == "__main__":
    main()
