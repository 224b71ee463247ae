"""The page says that each group is at its own best learning rate only if the runs prove it."""

import pytest

from comparison.report import Report, build_report
from tests.helpers.run_folders import several

TUNED = "tuned=[optim.learning_rate]"
GOOD = "Each group is at its own best learning rate, chosen by other runs on other seeds."
BAD = "Not each group is at its own best learning rate, chosen by other runs on other seeds (confounded): {}."
GRID = {"1e-3": [2.3, 2.3], "3e-3": [2.1, 2.1], "1e-2": [2.2, 2.2]}  # 3e-3 is best
EQUAL = "0.001, 0.003, 0.01 (10 steps, seed 0, 1)"


def runs_of(folder, norm, grid=GRID, rate="3e-3", tuned=TUNED, first=10, steps=10):
    """Return tuning runs of a norm at a grid of rates, and compared runs at one rate."""
    losses = {f"norm={norm} train.steps={steps} optim.learning_rate={r}": ends for r, ends in grid.items()}
    final = f"norm={norm} train.steps=20 optim.learning_rate={rate} {tuned}"
    ends = [2.0, 2.1, 2.2] if norm == "layernorm" else [2.02, 2.07, 2.2]
    return several(folder / "a", losses) + several(folder / "b", {final: ends}, first=first)


def report_of(folder, **arm) -> Report:
    return build_report(runs_of(folder, "layernorm") + runs_of(folder, "none", **arm))


CASES = {
    "every part is verified": ({}, None),
    "the same seeds": (
        {"first": 1},
        "the rate of none was chosen on seeds that are also compared (1)",
    ),
    "an arm without tuning runs": ({"grid": {}, "tuned": ""}, "the rate of none was not tuned"),
    "tuning runs elsewhere": ({"grid": {}}, "the rate of none was chosen by runs that are not here"),
    "another than the best rate": (
        {"rate": "1e-2"},
        "the rate of none is 0.01, but 0.003 was the best of its tuning runs",
    ),
    "only diverged tuning runs": (
        {"grid": {rate: [2.0, None] for rate in GRID}},
        "the rate of none was not chosen: at every rate a tuning run diverged",
    ),
    "fewer rates": (
        {"grid": {"3e-3": [2.1, 2.1]}},
        f"the arms were tuned by unequal trials: {EQUAL} for layernorm, "
        "but 0.003 (10 steps, seed 0, 1) for none",
    ),
    "fewer seeds at one rate": (
        {"grid": GRID | {"1e-2": [2.2]}},
        f"the arms were tuned by unequal trials: {EQUAL} for layernorm, but 0.001, 0.003 (10 steps, "
        "seed 0, 1), 0.01 (10 steps, seed 0) for none",
    ),
    "another length": (
        {"steps": 15},
        f"the arms were tuned by unequal trials: {EQUAL} for layernorm, "
        f"but {EQUAL.replace('10 steps', '15 steps')} for none",
    ),
}


@pytest.mark.parametrize(("arm", "doubt"), CASES.values(), ids=CASES)
def test_what_is_said_of_the_rates_is_what_the_runs_prove(tmp_path, arm, doubt):
    report = report_of(tmp_path, **arm)
    assert report.summary[1] == (BAD.format(doubt) if doubt else GOOD)
    assert {run.config["train.steps"] for run in report.runs} == {20}


def test_a_baseline_at_a_rate_that_nobody_chose_is_named(tmp_path):
    runs = [run for run in runs_of(tmp_path, "layernorm", tuned="") if run.config["train.steps"] == 20]
    report = build_report(runs + runs_of(tmp_path, "none"))
    assert report.summary[1] == BAD.format("the rate of layernorm was not tuned")
    assert report.summary[2] == "6 shorter runs, which chose the rates, are not compared."


@pytest.mark.parametrize(
    ("arm", "sentence"),
    [
        ({}, "12 shorter runs, which chose the rates, are not compared."),
        ({"steps": 20}, "12 runs, which chose the rates, are not compared."),
        ({"rate": "1e-2"}, "12 shorter runs, which differ in rate, length or seed, are not compared."),
    ],
)
def test_tuning_runs_are_called_shorter_if_they_are_and_chose_if_they_did(tmp_path, arm, sentence):
    assert report_of(tmp_path, **arm).summary[2] == sentence


def test_tuning_runs_of_several_lengths_and_two_compared_rates_are_named(tmp_path):
    runs = runs_of(tmp_path / "a", "none") + runs_of(tmp_path / "b", "none", steps=15)[:6]
    assert "the rate of all runs was chosen by runs of several lengths" in build_report(runs).summary[1]
    runs = runs_of(tmp_path / "c", "none") + runs_of(tmp_path / "d", "none", rate="1e-2", first=20)[6:]
    assert "the rate of all runs was chosen by the compared runs" in build_report(runs).summary[1]


def test_the_tuning_runs_are_not_compared_and_their_edges_are_warned_of(tmp_path):
    """In the first stage norm=none seems far better; on new seeds it is not."""
    lower = {rate: [loss - 1 for loss in ends] for rate, ends in GRID.items()}
    report = report_of(tmp_path / "a", grid=lower)
    assert [row.verdict for row in report.rows] == ["baseline", "not distinguishable at 3 seeds"]
    assert len(report.sensitivities) == 2
    assert report.warnings == []
    edge = report_of(tmp_path / "b", grid=GRID | {"1e-2": [2.0, 2.0]}, rate="1e-2")
    words = "none: its best learning rate, 0.01, is the lowest or highest that was tried: a better rate may "
    assert edge.warnings == [f"{words}lie beyond it"]
    cliff = report_of(tmp_path / "c", grid=GRID | {"1e-2": [2.2, 4.0]})
    words = "none: its best learning rate, 0.003, is at the edge of the rates that train: at 0.01 1 of 2 "
    assert cliff.warnings == [f"{words}diverged or collapsed; try 0.0055"]


def test_rates_that_compared_runs_chose_by_unequal_trials_are_confounded(tmp_path):
    losses = {f"optim.learning_rate={rate}": ends for rate, ends in GRID.items()}
    report = build_report(several(tmp_path, losses | {"norm=none": [2.0, 2.1]}))
    assert report.summary[1].endswith(
        "Confounded: the arms were tuned by unequal trials: 0.001, 0.003, 0.01 (1,000 steps, "
        "seed 0, 1) for layernorm, but 0.002 (1,000 steps, seed 0, 1) for none."
    )
