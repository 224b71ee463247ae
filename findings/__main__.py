"""Published claims about normalization, each measured again by one command, with a verdict.

    python -m findings                              list them: the claim, the time it takes, what was found
    python -m findings warm_up removable_blocks     measure these: PASS, FAIL or INCONCLUSIVE
    python -m findings --under 1                    all that take less than so many minutes
    python -m findings warm_up model.n_embd=96      under other conditions: any key of train.py
    python -m findings warm_up --control            where the claim should not come true
    python -m findings --docs                       docs/findings.md, of all that is measured

What was measured before is read back. runs/findings has the runs, the numbers and the page, index.html. A
finding is a YAML in conf/finding; yours may be in the folder finding of a --config-dir.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from rich.console import Console

from cli import app, messages
from cli.schema import RunConfig
from comparison.figures import save
from findings import finding, render, running
from findings.figure import picture
from findings.finding import Finding
from findings.judging import FEWEST, judge
from findings.web_page import page
from rundir.environment import ROOT
from system import signals
from system.errors import ConfigError

RESULTS = ROOT / "results" / "findings"  # that docs/findings.md is made of
MARK = "<!-- Below is what python -m findings --docs writes. -->\n\n"


def chosen(asked: argparse.Namespace, every: dict[str, Finding]) -> dict[str, Finding]:
    """The findings that are asked for, under the conditions that are. Raises ConfigError."""
    names = [word for word in asked.what if "=" not in word]
    overrides = dict(word.split("=", 1) for word in asked.what if "=" in word)
    if not names and asked.under is None:
        raise ConfigError("of which finding? Name one, or give --under MINUTES")
    if asked.seeds is not None and asked.seeds < FEWEST:
        raise ConfigError(
            f"--seeds: {asked.seeds} give no interval that a verdict could rest on; give 3 or more"
        )
    found = {name: finding.named(name, every) for name in names} or every
    if asked.under is not None:
        found = {name: one for name, one in found.items() if one.minutes <= asked.under}
    if not found:
        raise ConfigError(f"--under: none of them takes {asked.under:g} minutes or less")
    seeds = list(range(asked.seeds)) if asked.seeds else None
    return {name: one.under(overrides, seeds) for name, one in found.items()}


def measure(found: dict[str, Finding], asked: argparse.Namespace, console: Console) -> bool:
    """Measure them one after another and say what comes out; one that cannot be is named, the others go on.
    Returns whether all could be."""
    complete = True
    other = " ".join(word for word in asked.what if "=" in word)
    for number, (name, plain) in enumerate(found.items(), start=1):
        one, kept_as = (plain.as_control(), f"{name}-control") if asked.control else (plain, name)
        title = f"{name} with {other}" if other else name
        print(f"[{number}/{len(found)}] {title}, at most about {one.minutes:g} min", flush=True)
        try:
            result = running.obtain(kept_as, one, asked.out, asked.config_dir)
        except Exception as error:
            messages.report(error, app.known_keys(RunConfig), prefix=name)
            complete = False
            continue
        if asked.control:
            print(f"control of {name}, which should not PASS: {one.control.what}")
        console.print(render.in_terminal(title, one, judge(one, result.by_seed)))
    return complete


def write_docs(folder: Path) -> None:
    """docs/findings.md below its introduction, its pictures, and the results that it is made of: those in
    ``folder``, and those that were there before."""
    pictures = ROOT / "docs" / "findings"
    for made in (pictures, RESULTS):
        made.mkdir(exist_ok=True)
    every = finding.every()
    for name, one in every.items():
        for of, its in ((name, one), (f"{name}-control", one.as_control())):
            if file := running.newest(of, its, folder):
                shutil.copyfile(file, RESULTS / f"{of}.json")
    known = render.entries(every, [RESULTS])
    for entry in known:
        if entry.result:
            save(picture(entry.finding, entry.result.rows), pictures / f"{entry.name}.svg")
    document = ROOT / "docs" / "findings.md"
    introduction, mark, _ = document.read_text(encoding="utf-8").partition(MARK)
    document.write_text(introduction + mark + render.document(known), encoding="utf-8")
    print(document)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="*", help="names of findings, and overrides as model.n_embd=96")
    parser.add_argument("--under", type=float, metavar="MINUTES", help="those that take less")
    parser.add_argument("--control", action="store_true", help="their controls, which must not PASS")
    parser.add_argument("--seeds", type=int, metavar="N", help="on seeds 0 to N − 1 instead")
    parser.add_argument("--docs", action="store_true", help="write docs/findings.md, and results/findings")
    parser.add_argument("--config-dir", help="a folder with more of conf/: finding, norm, …")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/findings"), help="runs, results and page; runs/findings"
    )
    asked = parser.parse_intermixed_args()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with signals.ending():
            complete = work(asked, console)
    except BrokenPipeError:
        messages.exit_quietly()
    except Exception as error:
        messages.report(error, app.known_keys(RunConfig))
        sys.exit(1)
    sys.exit(0 if complete else 1)


def work(asked: argparse.Namespace, console: Console) -> bool:
    """Do what is asked. Returns whether all of it could be."""
    every, results = finding.every(asked.config_dir), asked.out / "results"
    complete = True
    if asked.what or asked.under is not None or asked.control or asked.seeds is not None:
        complete = measure(chosen(asked, every), asked, console)
    elif not asked.docs:
        console.print(render.listing(render.entries(every, [results, RESULTS])))
        print("Where nothing was measured here the verdicts are those of docs/findings.md.")
    if asked.docs:
        write_docs(results)
    known = render.entries(every, [results])
    if any(entry.result for entry in known):
        (asked.out / "index.html").write_text(page(known), encoding="utf-8")
        print(f"{asked.out / 'index.html'}: open it in a browser")
    return complete


if __name__ == "__main__":
    main()
