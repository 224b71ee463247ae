"""Published claims about normalization, each measured again by one command, with a verdict.

    python -m findings                              list all findings: claim, minutes, verdict
    python -m findings warm_up removable_blocks     measure these two: PASS, FAIL or INCONCLUSIVE
    python -m findings --under 1                    all findings that take at most 1 minute
    python -m findings warm_up model.n_embd=96      under other conditions: any key of train.py
    python -m findings warm_up --control            under conditions in which the claim should fail
    python -m findings --docs                       write results/findings.md, with all measured findings

Earlier measurements are reused. runs/findings has the runs, the numbers, and findings.md with pictures. A
finding is a YAML in conf/finding; put your own into DIR/finding and add --config-dir=DIR.
"""

import argparse
import difflib
import math
import sys
import traceback
from pathlib import Path

from rich.console import Console

from cli import programs
from cli.errors import error_line, one_line_errors
from data.errors import ConfigError, described
from findings.finding import MIN_SEEDS, Finding, load_findings
from training.environment import ROOT

RESULTS = ROOT / "results" / "findings"  # the numbers and pictures of results/findings.md


def select(args: argparse.Namespace, findings: dict[str, Finding]) -> dict[str, Finding]:
    """Return the findings that the user selected, with the user's overrides and seeds. Raises ConfigError."""
    names = [word for word in args.words if "=" not in word]
    overrides = dict(word.split("=", 1) for word in args.words if "=" in word)
    if not names and args.under is None:
        raise ConfigError("no finding is named; name one, or give --under MINUTES")
    for name in names:
        if name not in findings:
            similar = difflib.get_close_matches(name, findings, n=1)
            advice = f"did you mean {similar[0]}?" if similar else "python -m findings lists them"
            raise ConfigError(f"no finding is called {name!r}; {advice}")
    if names and args.under is not None:
        raise ConfigError("--under: cannot be combined with names; leave out one of the two")
    if args.seeds is not None and args.seeds < MIN_SEEDS:
        raise ConfigError(f"--seeds: a verdict needs at least {MIN_SEEDS}, not {args.seeds}")
    limit = math.inf if args.under is None else args.under
    selected = [name for name in names or findings if findings[name].minutes <= limit]
    if not selected:
        raise ConfigError(f"--under: no finding takes {limit:g} minutes or less; give more minutes")
    chosen = {name: findings[name] for name in selected}
    result = {}
    for name, finding in chosen.items():
        try:
            result[name] = finding.with_overrides(overrides, finding.first_seeds(args.seeds or 0))
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    return result


def measure(findings: dict[str, Finding], args: argparse.Namespace, console: Console) -> bool:
    """Measure findings one after another and print their verdicts. If a finding cannot be measured, print the
    reason and continue. Return True if all were measured."""
    # these import torch and scipy.stats, for which --help need not wait
    from findings import judging, render, running

    all_measured = True
    overrides = " ".join(word for word in args.words if "=" in word)
    for number, (name, original) in enumerate(findings.items(), start=1):
        finding, key = (original.as_control(), f"{name}-control") if args.control else (original, name)
        title = f"{name} with {overrides}" if overrides else name
        limit = "" if overrides or args.seeds else f", at most about {finding.minutes:g} min"
        print(f"[{number}/{len(findings)}] {title}{limit}", flush=True)
        try:
            result = running.obtain(key, finding, args.out, args.config_dir)
        except Exception as error:
            if (line := error_line(error)) is None:
                traceback.print_exception(error)
            print(f"error: {name}: {line or described(error)}", file=sys.stderr)
            all_measured = False
            continue
        if args.control:
            print(f"control of {name}, which should not PASS: {finding.control.what}")
        console.print(render.verdict_lines(title, finding, judging.judge(finding, result.by_seed)))
        if args.seeds is not None:
            print("  One number of seeds, chosen before: each further number is another chance to be wrong.")
    return all_measured


def run_command(args: argparse.Namespace, console: Console) -> bool:
    """Measure, list or write findings, as ``args`` say. Return True if all findings were measured."""
    from findings import render

    findings, results = load_findings(args.config_dir), args.out / "results"
    all_measured = True
    if args.words or args.under is not None or args.control or args.seeds is not None:
        all_measured = measure(select(args, findings), args, console)
        measured = [entry for entry in render.entries(findings, [results]) if entry.result]
        if measured:
            render.write_document(measured, args.out / "findings.md", args.out / "pictures")
            print(f"{args.out / 'findings.md'}: all measured findings, with pictures")
    elif not args.docs:
        console.print(render.listing(render.entries(findings, [results, RESULTS])))
        print("Verdicts of findings that were not measured on this machine are from results/findings.md.")
    if args.docs:
        published = load_findings()
        for entry in render.entries(published, [results]):
            for measured_entry in (entry, entry.control):
                if measured_entry and measured_entry.result:
                    file = RESULTS / f"{measured_entry.name}.json"
                    file.write_text(measured_entry.result.model_dump_json(), encoding="utf-8")
        render.write_document(render.entries(published, [RESULTS]), RESULTS.with_suffix(".md"), RESULTS)
        print(RESULTS.with_suffix(".md"))
    return all_measured


def main() -> None:
    parser = programs.parser(__doc__, "findings")
    add = parser.add_argument
    add("words", nargs="*", metavar="NAME", help="names of findings, and overrides such as model.n_embd=96")
    add("--under", type=float, metavar="MINUTES", help="all findings that take at most this many minutes")
    add("--control", action="store_true", help="measure the findings' controls, which must not PASS")
    add("--seeds", type=int, metavar="N", help=f"measure on N seeds, at least {MIN_SEEDS}")
    add("--docs", action="store_true", help="write results/findings.md, with numbers and pictures")
    add("--config-dir", help="a folder with additions to conf/: finding, norm, …")
    add("--out", type=Path, default=Path("runs/findings"), help="default: runs/findings")
    args = parser.parse_intermixed_args()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    with one_line_errors():
        all_measured = run_command(args, console)
    sys.exit(not all_measured)


if __name__ == "__main__":
    main()
