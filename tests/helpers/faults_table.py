"""The page that ``make test-faults`` prints, in Markdown: figures that tests record (record_property), and
the outcomes of the tests of each file."""

import datetime
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from bench.harness import machine, torch_info
from rundir.environment import git_state


def markdown(reports: Iterable[pytest.TestReport], seconds: float) -> str:
    """Return the page. If several tests record a figure, the page has the largest value."""
    figures: dict[str, Any] = {}
    outcomes: Counter[tuple[str, str]] = Counter()  # of (file, outcome)
    for report in reports:
        for name, value in report.user_properties if report.when == "call" else ():
            figures[name] = max(value, figures.get(name, value))
        if report.when == "call" or report.outcome != "passed":
            outcomes[report.nodeid.split("::")[0], report.outcome] += 1
    rows = [f"| {name} | {figures[name]} |" for name in sorted(figures, key=natural)]
    counts = {
        file: [outcomes[file, kind] for kind in OUTCOMES] for file in sorted({file for file, _ in outcomes})
    }
    count_rows = [f"| {file} | {' | '.join(map(str, numbers))} |" for file, numbers in counts.items()]
    return PAGE.format(
        machine=described_machine(),
        minutes=f"{seconds / 60:.0f}",
        figures="\n".join(rows),
        outcomes=" | ".join(OUTCOMES),
        counts="\n".join(count_rows),
    )


PAGE = """\
# Faults, in numbers

What `make test-faults` measures of programs that are killed, files that are damaged, disks that are full,
command lines that are wrong and files from strangers. What is promised is in docs/runs.md, under "Nothing
lost, nothing let in", and in SECURITY.md. The letter and number before a figure only sort them.

{machine} {minutes} minutes.

| figure | |
|---|---|
{figures}

| tests | {outcomes} |
|---|---|---|---|
{counts}
"""
OUTCOMES = ("passed", "failed", "skipped")


def natural(name: str) -> list[tuple[str, int]]:
    """Return a sort key that puts R2 before R10."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]


def described_machine() -> str:
    about = machine()
    generation = " ".join(filter(None, about["family_model"]))
    commit = (git_state() or {}).get("commit", "unknown")[:7]
    return (
        f"{datetime.date.today()}, commit {commit}: {about['processor']} (family and model {generation}), "
        f"{about['cores']} cores, {about['memory_bytes'] / 2**30:.0f} GiB, {about['system']}, "
        f"torch {torch_info()['torch']}."
    )
