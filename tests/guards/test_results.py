"""The published runs stay: every run, loss and role, and every mean, difference and verdict of their
tables."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from comparison.published import read
from comparison.report import build_report
from tests.conftest import ROOT

DIGESTS = json.loads(Path(__file__).with_name("results.json").read_text(encoding="utf-8"))


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", DIGESTS)
def test_a_published_table_is_what_it_was(name):
    runs = read(ROOT / "results" / name)
    report = build_report(runs)
    of_runs = [
        f"{run.name} {run.status['state']} {run.status.get('final')} {run.status.get('reason')} "
        f"{[role['role'] for role in run.roles]}"
        for run in runs
    ]
    rows = [
        f"{row.title} {row.used} {row.loss.mean:.9f} "
        f"{row.difference and round(row.difference.mean, 9)} {row.outcome}"
        for row in report.rows
    ]
    actual = {"runs": [len(runs), digest(of_runs)], "table": [len(rows), digest(rows)]}
    assert actual == DIGESTS[name]
