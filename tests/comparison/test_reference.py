"""The published runs are compared fairly, the README says what they say, and nothing tells who made them."""

import csv
import json
import re

import pytest

from comparison.drawing import page as html
from comparison.drawing.glance import crossed, effort
from comparison.published import load_all, read
from comparison.report import build_report
from scripts.publish import page
from tests.conftest import ROOT
from tests.helpers import programs

NAMES = ("reference", "atlas", "atlas_map", "atlas_muon", "atlas_text", "atlas_deep")
REFERENCE, ATLAS, MAP, MUON, TEXT, DEEP = (ROOT / "results" / name for name in NAMES)


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


def test_every_arm_of_the_atlas_has_its_trials_and_was_compared_at_the_best_on_five_seeds():
    report = build_report(read(ATLAS))
    assert report.is_fair
    assert [row.used for row in report.rows if not row.group.diverged] == [[30, 31, 32, 33, 34]] * 40
    assert {len(choice.first_losses) for choice in report.choices} == {12}
    assert {run.environment["processor"] for run in report.runs} == {"AMD EPYC 25 17"}


@pytest.mark.parametrize(
    ("folder", "key", "value"),
    [(MUON, "optim.kind", "muon"), (TEXT, "data.corpus", "text"), (DEEP, "model.n_layer", 12)],
)
def test_under_other_conditions_the_best_arms_have_four_trials_and_were_compared_on_five_seeds(
    folder, key, value
):
    report = build_report(read(folder))
    assert report.is_fair
    assert [row.used for row in report.rows] == [[30, 31, 32, 33, 34]] * 6
    assert {len(choice.first_losses) for choice in report.choices} == {4}
    assert {run.config[key] for run in report.runs} == {value}
    assert {run.environment["processor"] for run in report.runs} == {"AMD EPYC 25 17"}


def test_every_cell_of_the_map_has_four_trials_and_was_compared_at_the_best_on_one_other_seed():
    report = build_report(read(MAP))
    assert report.is_fair
    assert len(crossed(report)) == len(report.runs) == 12 * 9
    assert effort(report) == "4 trials, 1 seed"
    assert {run.seed for run in report.runs} == {30}
    assert {run.environment["processor"] for run in report.runs} == {"AMD EPYC 25 17"}
    assert all(row.outcome in ("baseline", "open", "diverged", "unfit") for row in report.rows)


@pytest.mark.parametrize("folder", [REFERENCE, ATLAS, MAP, MUON, TEXT, DEEP])
def test_the_page_of_a_table_says_what_it_says(folder):
    text = (folder.parent / f"{folder.name}.md").read_text(encoding="utf-8")
    command = text.partition("-->")[0].removeprefix("<!--").strip()
    assert page(load_all([str(folder)])[0], command) == text


@pytest.mark.slow
def test_the_published_page_is_that_of_the_table_of_today():
    """Without the figures' library, which is of a version."""

    def without_scripts(page: str) -> str:
        return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)

    published = (ROOT / "docs" / "atlas.html").read_text(encoding="utf-8")
    assert without_scripts(html.page(build_report(read(ATLAS)))) == without_scripts(published)


@pytest.mark.parametrize("document", ["docs/atlas.md", "docs/ablations.md"])
def test_each_difference_that_a_document_states_is_in_a_table(document):
    """Differences with an interval, to three digits."""
    text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
    text = text.replace("by 0.011", "by -0.011").replace("by 0.088", "by -0.088").replace("−", "-")
    stated = re.findall(r"([+-]?\d\.\d+) ± (\d\.\d+)", text)
    reports = [build_report(read(folder)) for folder in (REFERENCE, ATLAS, MUON, TEXT, DEEP)]
    measured = [row.difference for report in reports for row in report.rows if row.difference]
    three_digits = {(f"{difference.mean:+.3f}", f"{difference.half:.3f}") for difference in measured}
    assert {(f"{float(mean):+.3f}", half) for mean, half in stated} <= three_digits
    assert len(stated) >= 4


def test_the_headline_of_the_readme_is_the_atlas():
    headline = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    rows = {row.title: row.difference for row in build_report(read(ATLAS)).rows}
    for words, arm in (
        ("leaving norms out costs", "none pre"),
        ("BatchNorm, which leaks,", "batchnorm pre"),
        ("DyT", "dyt pre"),
    ):
        [cost] = re.findall(rf"{words} (\d\.\d\d)", headline)
        assert cost == f"{rows[arm].mean:.2f}"


@pytest.mark.parametrize("folder", [REFERENCE, ATLAS, MAP, MUON, TEXT, DEEP])
def test_there_are_no_weights_and_no_paths_of_a_machine(folder):
    assert {file.name for file in folder.iterdir()} == {"runs.csv", "curves.csv", "shared.json"}
    text = "".join(file.read_text() for file in folder.iterdir())
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    shared = json.loads((folder / "shared.json").read_text())
    assert not {"environment:host", "environment:command"} & shared.keys()
