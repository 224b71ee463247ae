"""The published runs are compared fairly, the README says what they say, and nothing tells who made them."""

import csv
import json
import re

import pytest

from comparison.published import load_all
from scripts.publish import page
from tests.conftest import ROOT
from tests.helpers import programs

REFERENCE = ROOT / "results" / "reference"


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    done = programs.succeed("compare.py", REFERENCE, cwd=tmp_path_factory.mktemp("compared"))
    return " ".join(done.stdout.split())


def test_each_arm_is_at_its_own_settings_and_has_a_verdict(printed):
    assert "passed over" not in printed
    chosen = "chosen by other runs on other seeds and on the other half of the validation split."
    assert f"Each group is at its own best settings of 16 tried, {chosen}" in printed
    assert "no verdict:" not in printed


def test_every_arm_had_16_trials_and_five_compared_seeds():
    with (REFERENCE / "runs.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    arms = {(row["config:norm"], row["config:placement"]) for row in rows}
    assert len(arms) == 8
    for arm in arms:
        runs = [row for row in rows if (row["config:norm"], row["config:placement"]) == arm]
        seeds: dict[str, list[int]] = {"trial": [], "compared": [], "borrowed": []}
        for row in runs:
            for role in json.loads(row["environment:roles"]):
                seeds[role["role"]].append(int(row["config:seed"]))
        assert sorted(seeds["trial"]) == [0] * 16 + [1] * 4
        assert sorted(seeds["compared"]) == [30, 31, 32, 33, 34]


def test_their_page_says_what_they_say():
    text = (ROOT / "results/reference.md").read_text(encoding="utf-8")
    command = text.partition("-->")[0].removeprefix("<!--").strip()
    assert page(load_all([str(REFERENCE)])[0], command) == text


def test_there_are_no_weights_and_no_paths_of_a_machine():
    assert {file.name for file in REFERENCE.iterdir()} == {"runs.csv", "curves.csv", "shared.json"}
    text = "".join(file.read_text() for file in REFERENCE.iterdir())
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    assert (
        not {"environment:host", "environment:command"}
        & json.loads((REFERENCE / "shared.json").read_text()).keys()
    )
