"""The role of a run in a fair comparison is the one that its sweep recorded, whatever lies beside it."""

import pytest
import yaml

from comparison.groups import ComparisonError
from comparison.load import load
from comparison.published import publish, read
from comparison.report import build_report
from comparison.roles import by_role
from tests.comparison.runs import FAR, NEAR, fair_runs, role, several

FAIR = (
    "Each group is at its own best settings of 2 tried, chosen by other runs on other seeds and on the other "
    "half of the validation split."
)
OTHERS = "runs of another tuning, or at settings that no trials chose, which are not compared"


@pytest.fixture
def fair(tmp_path):
    base = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    return base + fair_runs(tmp_path / "b", "none", FAR, [1.5, 1.6, 1.71])


def test_runs_at_settings_that_nobody_chose_are_not_compared_and_counted(fair, tmp_path):
    plain = several(
        tmp_path, {"norm=none train.steps=20 optim.learning_rate=1e-3": [1.0, 1.0, 1.0]}, first=10
    )
    report = build_report(fair + plain)
    assert report.summary[1] == FAIR
    assert report.passed_over == [f"{OTHERS}: 3"]
    assert [row.loss.n for row in report.rows] == [3, 3]


def test_seeds_that_are_added_later_are_compared(fair, tmp_path):
    more = several(tmp_path, {f"norm=none train.steps=20 {FAR}": [1.6, 1.7]}, first=13)
    report = build_report(fair + more)
    assert report.summary[1] == FAIR
    assert [row.loss.n for row in report.rows] == [3, 5]


def test_runs_of_other_arms_are_compared_and_named_as_untuned(fair, tmp_path):
    report = build_report(
        fair + several(tmp_path, {"norm=rmsnorm train.steps=20": [2.0, 2.1, 2.2]}, first=10)
    )
    assert "the settings of rmsnorm" in report.summary[1]
    assert "were not tuned" in report.summary[1]


def test_of_two_tunings_with_as_many_settings_the_newer_counts(fair, tmp_path):
    again = [role(name, "none again", written="2026-02-02") for name in ("trial", "compared")]
    trials = {f"norm=none train.steps=10 {each} seed=0": [2.1 - 0.1 * (each == NEAR)] for each in (FAR, NEAR)}
    newer = several(tmp_path / "c", trials, first=2, roles=again[:1])
    newer += several(
        tmp_path / "d", {f"norm=none train.steps=20 {NEAR}": [1.0, 1.1, 1.2]}, 20, roles=again[1:]
    )
    report = build_report(fair + newer)
    assert [row.loss.mean for row in report.rows] == pytest.approx([2.1, 1.1])
    assert report.passed_over == [f"{OTHERS}: 7"]  # four trials and three runs
    roles = by_role(fair + newer)
    assert len(roles.trials) == 4 + 2


@pytest.mark.parametrize("written", ["2025-02-02", "2026-02-02"])
def test_the_tuning_that_tried_more_settings_counts_whichever_is_newer(fair, tmp_path, written):
    again = [role(name, "none again", written=written) for name in ("trial", "compared")]
    trials = {f"norm=none train.steps=10 {NEAR} seed=0": [2.1]}
    fewer = several(tmp_path / "c", trials, first=2, roles=again[:1])
    fewer += several(
        tmp_path / "d", {f"norm=none train.steps=20 {NEAR}": [1.0, 1.1, 1.2]}, 20, roles=again[1:]
    )
    report = build_report(fair + fewer)
    assert report.summary[1] == FAIR
    assert [row.loss.mean for row in report.rows] == pytest.approx([2.1, 1.6033333])
    assert report.passed_over == [f"{OTHERS}: 4"]


def test_compared_runs_of_another_tuning_at_the_same_settings_are_more_seeds_and_its_trials_are_not(
    fair, tmp_path
):
    other = [role(name, "none, one setting") for name in ("trial", "compared")]
    settings = f"norm=none train.steps=20 {FAR}"
    more = several(tmp_path / "c", {settings: [1.6, 1.7]}, first=13, roles=other[1:])
    more += several(tmp_path / "d", {settings: [1.0]}, first=2, roles=other[:1])
    report = build_report(fair + more)
    assert [row.loss.n for row in report.rows] == [3, 5]
    assert report.passed_over == [f"{OTHERS}: 1"]


def test_published_runs_and_folders_of_an_arm_are_one_arm(fair, tmp_path):
    publish(fair, tmp_path / "published")
    more = []
    for run in several(tmp_path / "more", {f"norm=none train.steps=20 {FAR}": [1.6, 1.7]}, first=13):
        file = run.folder / "config.yaml"  # a run's own file has its keys in the order of the schema
        reverse = dict(reversed(yaml.safe_load(file.read_text()).items()))
        file.write_text(yaml.safe_dump(reverse, sort_keys=False))
        more.append(load(run.folder)[0])
    report = build_report(read(tmp_path / "published") + more)
    assert report.summary[1] == FAIR
    assert [row.loss.n for row in report.rows] == [3, 5]


def test_compared_runs_of_one_arm_at_two_settings_of_one_rate_are_two_rows(tmp_path):
    """The settings were once hidden behind the same word, and the runs of one of them were lost."""
    base = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    runs = base + fair_runs(tmp_path / "b", "none", NEAR, [1.5, 1.6, 1.7])
    twin = f"norm=none train.steps=20 {NEAR.replace('gpt2', 'xavier')}"
    runs += several(tmp_path / "c", {twin: [1.4, 1.5]}, first=10, roles=[role("compared", "none")])
    report = build_report(runs)
    assert sum(len(row.family.runs) for row in report.rows) == len(report.runs) == 8
    verdicts = {row.title: row.verdict for row in report.rows}
    assert verdicts["none init=tuned"] == "no verdict: its differences are nearly all the same"
    assert verdicts["none init=xavier"] == "no baseline with the same other settings"


def test_trials_of_arms_without_a_compared_run_are_counted_apart(fair, tmp_path):
    trials = fair_runs(tmp_path / "c", "rmsnorm", FAR, [])
    assert build_report(fair + trials).passed_over == ["trials of tunings that have no compared run yet: 4"]


def test_borrowed_settings_may_later_be_the_arms_own(tmp_path):
    base = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    first = fair_runs(tmp_path / "b", "none", FAR, [1.5, 1.6, 1.71], borrowed=[1.4, 1.5, 1.6])
    again = {name: role(name, "again", written="2026-02-02") for name in ("trial", "compared")}
    for run in first:
        if run.roles[0]["role"] == "borrowed":
            run.environment["roles"].append(again["compared"])
    tried = {f"norm=none train.steps=10 {NEAR}": [1.0], f"norm=none train.steps=10 {FAR}": [1.1]}
    trials = several(tmp_path / "c", tried, 5, roles=[again["trial"]])
    report = build_report(base + first + trials)
    assert [row.loss.mean for row in report.rows] == pytest.approx([2.1, 1.5])


def test_trials_of_other_code_did_not_choose(fair):
    for run in fair:
        if run.config["norm"] == "none" and run.roles[0]["role"] == "trial":
            run.environment["roles"] = [role("trial", "none, before an edit")]
    assert "the settings of none were chosen by runs that are not here" in build_report(fair).summary[1]


def test_an_arm_that_diverged_at_every_setting_has_a_row_and_a_warning(tmp_path):
    base = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    trial = [role("trial", "none")]
    runs = several(
        tmp_path / "b", {f"norm=none train.steps=10 {s}": [None] for s in (FAR, NEAR)}, roles=trial
    )
    runs += several(tmp_path / "c", {f"norm=none train.steps=20 {NEAR}": [None, 2.0]}, roles=trial)
    compared = {f"norm=none train.steps=20 {NEAR}": [None, 2.1, None]}
    report = build_report(
        base + runs + several(tmp_path / "d", compared, 10, roles=[role("compared", "none")])
    )
    assert report.summary[1] == FAIR
    assert [row.verdict for row in report.rows] == ["baseline", "diverged 2 of 3"]
    warning = "none: each setting in its last round has a diverged trial; the chosen one has 1"
    assert warning in report.warnings


def test_while_only_trials_have_ended_nothing_is_compared(tmp_path):
    trials = [run for run in fair_runs(tmp_path, "none", FAR, []) if run.roles[0]["role"] == "trial"]
    with pytest.raises(ComparisonError, match="all of these runs are trials, which chose settings; wait for"):
        build_report(trials)


def test_a_command_for_more_seeds_leaves_out_those_of_the_trials(tmp_path):
    runs = []
    for norm, ends in (("layernorm", [2.0, 2.3, 2.1]), ("none", [2.1, 2.2, 2.2])):
        compared = [role("compared", norm, seeds=(13, 14))]
        runs += several(tmp_path, {f"norm={norm} train.steps=20 {NEAR}": ends}, first=10, roles=compared)
    [command] = [row.command for row in build_report(runs).rows if row.command]
    assert "seed=15" in command
    assert not {"13", "14"} & {*command.partition("seed=")[2].split()[0].split(",")}


def test_hidden_arms_have_no_part_in_what_is_said_of_the_trials(fair):
    report = build_report(fair, where=["norm=none"])
    assert [row.title for row in report.rows] == ["all runs"]
    assert report.summary[2].startswith("4 ")


def test_a_key_that_one_sweep_tuned_and_by_which_the_arms_of_another_differ_keeps_these_apart(tmp_path):
    def arm(norm, init, keys, ends):
        tuning = f"{norm} {init} {len(keys)}"
        at = f"norm={norm} model.init={init} train.steps=20 optim.weight_decay=0.{len(keys)}"
        trials = several(tmp_path / tuning / "t", {at: [2.0]}, roles=[role("trial", tuning, keys, (0,))])
        own = [role("compared", tuning, keys, (0,))]
        return trials + several(tmp_path / tuning / "c", {at: ends}, first=10, roles=own)

    rate, both = ("optim.learning_rate",), ("optim.learning_rate", "model.init")
    runs = arm("layernorm", "gpt2", rate, [2.0, 2.1, 2.2]) + arm("layernorm", "xavier", rate, [2.4, 2.5, 2.7])
    assert len(build_report(runs).rows) == 2
    runs += arm("layernorm", "xavier", both, [2.0, 2.1, 2.2]) + arm("none", "gpt2", both, [2.5, 2.6, 2.8])
    report = build_report(runs)
    assert {row.title: row.loss.mean for row in report.rows} == pytest.approx(
        {
            "layernorm weight_decay=0.1": 2.1,
            "layernorm init=xavier weight_decay=0.1": 2.5333,
            "layernorm init=tuned weight_decay=0.2": 2.1,
            "none init=tuned weight_decay=0.2": 2.6333,
        },
        abs=1e-3,
    )
    assert report.passed_over == []
    none = next(row for row in report.rows if row.title.startswith("none"))
    assert none.baseline.keys["model.init"] == "tuned"


@pytest.mark.parametrize("key", ["optim.learning_rate=1e-3", "model.init=xavier"])
def test_plain_runs_of_another_norm_at_two_settings_leave_the_verdicts_on_fair_arms(fair, tmp_path, key):
    [before] = [row for row in build_report(fair).rows if row.outcome != "baseline"]
    plain = {"norm=dyt train.steps=20": [2.3, 2.4, 2.5], f"norm=dyt train.steps=20 {key}": [2.4, 2.5, 2.6]}
    report = build_report(fair + several(tmp_path / "plain", plain, first=10))
    [after] = [row for row in report.rows if row.title.startswith("none")]
    assert before.difference == after.difference
    assert after.baseline.keys["norm"] == "layernorm"
    assert "no baseline" not in after.verdict
