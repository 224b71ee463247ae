"""The published runs are there to be compared: settings and metrics, no weights, nothing of who made them."""

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

REFERENCE = ROOT / "results" / "reference"
RUNS = sorted(REFERENCE.iterdir())


def test_they_are_compared_with_a_verdict_for_every_group(tmp_path):
    command = [sys.executable, str(ROOT / "compare.py"), str(REFERENCE), "--out", "report"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "passed over" not in done.stdout
    table = (tmp_path / "report" / "table.md").read_text()
    assert table.count("baseline") == 1
    assert table.count("worse") == 5
    assert "Each at its own best learning rate, chosen by other runs on other seeds." in done.stdout


def test_the_readmes_table_is_theirs(tmp_path):
    subprocess.run(
        [sys.executable, str(ROOT / "compare.py"), str(REFERENCE), "--out", "report"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=120,
    )
    readme = " ".join((ROOT / "README.md").read_text().split())
    for line in (tmp_path / "report" / "table.md").read_text().splitlines()[2:]:
        norm, placement, rate, seeds, loss, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        assert f"{norm} {placement} {rate} {seeds} {loss}" in readme


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_there_are_no_weights_and_no_paths_of_a_machine(run):
    files = {file.name for file in run.iterdir()}
    assert files == {"config.yaml", "metrics.jsonl", "status.json", "certificate.json", "environment.json"}
    environment = json.loads((run / "environment.json").read_text())
    said = [*environment["command"], *environment["overrides"]]
    assert not [word for word in said if "/" in word]
    assert not any("/" in line for line in (run / "config.yaml").read_text().split() if line.startswith("/"))
