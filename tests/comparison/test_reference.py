"""The published runs can be compared; they have no weights and nothing about who made them."""

import json

import pytest

from tests.conftest import ROOT
from tests.helpers import programs

REFERENCE = ROOT / "results" / "reference"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Return what compare.py prints, and its table."""
    folder = tmp_path_factory.mktemp("compared")
    done = programs.succeed("compare.py", REFERENCE, cwd=folder)
    return done.stdout, (folder / "report" / "table.md").read_text()


def test_they_are_compared_with_a_verdict_for_every_group(compared):
    printed, table = compared
    assert "passed over" not in printed
    assert "were chosen on text on which val/full_loss is measured" in " ".join(printed.split())
    assert (table.count("baseline"), table.count("worse")) == (1, 5)


def test_the_table_of_the_readme_is_theirs(compared):
    readme = " ".join((ROOT / "README.md").read_text().split())
    for line in compared[1].splitlines()[2:]:
        norm, placement, rate, seeds, loss, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        assert f"{norm} {placement} {rate} {seeds} {loss}" in readme


@pytest.mark.parametrize("run", sorted(REFERENCE.iterdir()), ids=lambda run: run.name)
def test_there_are_no_weights_and_no_paths_of_a_machine(run):
    files = {file.name for file in run.iterdir()}
    assert files == {"config.yaml", "metrics.jsonl", "status.json", "certificate.json", "environment.json"}
    environment = json.loads((run / "environment.json").read_text())
    words = [*environment["command"], *environment["overrides"]]
    assert not [word for word in words if "/" in word]
    assert not any("/" in line for line in (run / "config.yaml").read_text().split() if line.startswith("/"))
