"""The page says that each group is at its own best settings only if the runs prove it."""

import itertools
import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparison.report import Report, build_report
from comparison.settings import cost_of_half, tried
from comparison.table import settings
from tests.comparison.runs import FAR, NEAR, fair_runs, role, several

RATE = "optim.learning_rate"
OTHER = "chosen by other runs on other seeds and on the other half of the validation split."
GOOD = f"Each group is at its own best learning rate of 3 tried, {OTHER}"
BAD = "Not each group is at its own best learning rate (confounded): {}."
GRID = {"1e-3": [2.3, 2.3], "3e-3": [2.1, 2.1], "1e-2": [2.2, 2.2]}  # 3e-3 is best
EQUAL = "0.001, 0.003, 0.01 (10 steps, seed 0, 1)"


def runs_of(folder, norm, grid=GRID, rate="3e-3", tuned=True, first=10, steps=10, written="2026-01-01"):
    """Return tuning runs of a norm at a grid of rates, and compared runs at one rate."""
    losses = {f"norm={norm} train.steps={steps} {RATE}={r}": ends for r, ends in grid.items()}
    final = {f"norm={norm} train.steps=20 {RATE}={rate}": [2.0, 2.1, 2.2]}
    if norm != "layernorm":
        final = {words: [2.02, 2.07, 2.2] for words in final}
    trial, compared = (
        [role(name, norm + written, [RATE], written=written)] if tuned else []
        for name in ("trial", "compared")
    )
    trials = several(folder / "a", losses, roles=trial)
    return trials + several(folder / "b", final, first=first, roles=compared)


def report_of(folder, **arm) -> Report:
    return build_report(runs_of(folder, "layernorm") + runs_of(folder, "none", **arm))


CASES = {
    "every part is verified": ({}, None),
    "the same seeds": (
        {"first": 1},
        "the settings of none were chosen on seeds that are also compared (1)",
    ),
    "an arm without tuning runs": ({"grid": {}, "tuned": False}, "the settings of none were not tuned"),
    "tuning runs elsewhere": ({"grid": {}}, "the settings of none were chosen by runs that are not here"),
    "another than the best rate": (
        {"rate": "1e-2"},
        "the settings of none are 0.01, but 0.003 was the best of its trials",
    ),
    "fewer rates": (
        {"grid": {"3e-3": [2.1, 2.1]}},
        f"the arms were tuned by unequal trials: {EQUAL} for layernorm, "
        "but 0.003 (10 steps, seed 0, 1) for none",
    ),
    "fewer seeds at one rate": (
        {"grid": GRID | {"1e-2": [2.2]}},
        "the settings of none were chosen by later trials, but not of the best of the earlier ones; "
        f"the arms were tuned by unequal trials: {EQUAL} for layernorm, but 0.001, 0.003, 0.01 (10 steps, "
        "seed 0), 0.001, 0.003 (10 steps, seed 0, 1) for none",
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
    runs = runs_of(tmp_path, "layernorm", grid={}, tuned=False)
    report = build_report(runs + runs_of(tmp_path, "none"))
    assert report.summary[1] == BAD.format("the settings of layernorm were not tuned")
    assert report.summary[2] == "6 shorter runs, which chose the settings, are not compared."


@pytest.mark.parametrize(
    ("arm", "sentence"),
    [
        ({}, "12 shorter runs, which chose the settings, are not compared."),
        ({"steps": 20}, "12 runs, which chose the settings, are not compared."),
        ({"rate": "1e-2"}, "12 shorter other runs of these arms are not compared."),
    ],
)
def test_tuning_runs_are_called_shorter_if_they_are_and_chose_if_they_did(tmp_path, arm, sentence):
    assert report_of(tmp_path, **arm).summary[2] == sentence


def test_longer_trials_must_be_those_of_the_best_of_the_shorter_ones(tmp_path):
    first = runs_of(tmp_path / "a", "none")
    best, worst = ({rate: GRID[rate]} for rate in ("3e-3", "1e-3"))
    good = build_report(first + runs_of(tmp_path / "b", "none", grid=best, steps=15)[:2])
    assert good.summary[1] == GOOD
    runs = first + runs_of(tmp_path / "c", "none", grid=worst, steps=15)[:2]
    doubt = "the settings of all runs were chosen by later trials, but not of the best of the earlier ones"
    assert doubt in build_report(runs).summary[1]


def test_rounds_may_have_more_seeds_in_place_of_more_steps(tmp_path):
    """All settings on seed 0, and the best also on seed 1; 1e-3 is third on seed 0, but best on seed 1."""
    grid = {"1e-3": [2.3], "3e-3": [2.1, 2.2], "1e-2": [2.2, 2.25]}
    base = runs_of(tmp_path / "b", "layernorm", grid=grid)
    assert build_report(base + runs_of(tmp_path / "a", "none", grid=grid)).summary[1] == GOOD
    worse = {"1e-3": [2.3, 1.9], "3e-3": [2.1, 2.2], "1e-2": [2.2]}
    doubts = build_report(base + runs_of(tmp_path / "c", "none", grid=worse)).summary[1]
    assert "the settings of none are 0.003, but 0.001 was the best of its trials" in doubts
    assert "were chosen by later trials, but not of the best of the earlier ones" in doubts


def test_two_compared_settings_are_named(tmp_path):
    runs = runs_of(tmp_path / "c", "none") + runs_of(tmp_path / "d", "none", rate="1e-2", first=20)[6:]
    assert "the settings of all runs were chosen by the compared runs" in build_report(runs).summary[1]


@pytest.mark.parametrize("metric", [None, "val/full_loss", "val/report_loss", "train/loss"])
def test_settings_are_not_chosen_on_the_text_on_which_they_are_compared(tmp_path, metric):
    report = build_report(runs_of(tmp_path / "a", "layernorm") + runs_of(tmp_path / "b", "none"), metric)
    assert report.metric == (metric or "val/report_loss")
    doubt = "the settings of layernorm, none were chosen on text on which val/full_loss is measured"
    assert (doubt in report.summary[1]) == (metric == "val/full_loss")


def test_runs_without_the_halves_are_compared_on_the_whole_split_and_the_doubt_is_named(tmp_path):
    losses = {f"norm=none train.steps=10 {RATE}={rate}": ends for rate, ends in GRID.items()}
    final = {f"norm=none train.steps=20 {RATE}=3e-3": [2.0, 2.1]}
    trial, compared = ([role(name, "none", [RATE])] for name in ("trial", "compared"))
    runs = several(tmp_path, losses, halves=False, roles=trial)
    report = build_report(runs + several(tmp_path, final, first=10, halves=False, roles=compared))
    assert report.metric == "val/full_loss"
    doubt = "the settings of all runs were chosen on text on which val/full_loss is measured"
    assert report.summary[1] == BAD.format(doubt)


def test_arms_at_settings_of_several_keys_are_compared_and_the_settings_are_shown(tmp_path):
    base = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    own, borrowed = [1.5, 1.6, 1.71], [2.5, 2.6, 2.73]
    report = build_report(base + fair_runs(tmp_path / "b", "none", FAR, own, borrowed))
    assert report.summary[1] == GOOD.replace("learning rate of 3", "settings of 2")
    assert report.keys == ["norm", "optim.learning_rate"]
    assert [row.title for row in report.rows] == ["layernorm", "none"]
    assert [row.verdict for row in report.rows] == ["baseline", "better"]
    first, second = settings(report)
    assert (first["learning_rate"], first["init"], first["own − baseline's"]) == ("0.003", "gpt2", "—")
    assert (second["learning_rate"], second["init"]) == ("0.01", "xavier")
    assert second["at the baseline's settings"] == "2.6100 ± 0.2865"
    assert second["own − baseline's"] == "-1.0067 ± 0.0287"
    line = "none: its optim.learning_rate, 0.01, is the highest tried: a better one may lie beyond it"
    assert line in report.warnings


@given(st.lists(st.floats(0, 10), min_size=2, max_size=7))
def test_what_half_the_trials_would_cost_is_the_mean_over_all_halves(losses):
    halves = [*itertools.combinations(losses, len(losses) // 2)]
    assert cost_of_half(losses) == pytest.approx(fmean(map(min, halves)) - min(losses), abs=1e-9)


def test_what_half_the_trials_would_cost_is_in_the_table(tmp_path):
    base = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    runs = base + fair_runs(tmp_path / "b", "none", NEAR, [1.5, 1.6, 1.71], worst=None)
    first, second = settings(build_report(runs))
    assert (first["half the trials"], second["half the trials"]) == ("+0.050", "+0.000")  # a diverged trial
    assert math.isnan(cost_of_half([2.0]))
    assert math.isnan(cost_of_half([math.inf, math.inf]))


def test_every_setting_of_the_first_trials_is_drawn_the_best_arm_first(tmp_path):
    base = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2], worst=None)
    runs = base + fair_runs(tmp_path / "b", "none", FAR, [1.5, 1.6, 1.71])
    rows = tried(build_report(runs).choices)
    assert [(row["group"], row["loss"], row["outcome"]) for row in rows] == [
        ("layernorm", None, "diverged"),
        ("layernorm", 2.0, "chosen"),
        ("none", 2.0, "chosen"),
        ("none", 2.1, "other"),
    ]
    assert rows[1]["settings"] == "learning_rate 0.003, init gpt2"


@pytest.mark.parametrize("worst", [None, 4.1])
def test_a_value_beyond_which_every_trial_diverged_or_collapsed_is_at_the_edge(tmp_path, worst):
    base = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    report = build_report(base + fair_runs(tmp_path / "b", "none", NEAR, [1.5, 1.6, 1.71], worst=worst))
    words = "its optim.learning_rate, 0.003, is the highest that works: the only trial at a higher one"
    lines = [line for line in report.warnings if "works" in line]
    assert lines == [f"none: {words} diverged or collapsed"]


def test_an_arm_at_the_baselines_settings_needs_no_other_runs(tmp_path):
    base = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    runs = base + fair_runs(tmp_path / "b", "none", NEAR, [1.5, 1.6, 1.71])
    assert "at the baseline's settings" not in settings(build_report(runs))[1]  # nothing was borrowed
    runs += fair_runs(tmp_path / "c", "rmsnorm", FAR, [1.5, 1.6, 1.71], borrowed=[1.5, 1.6, 1.7])
    assert settings(build_report(runs))[1]["at the baseline's settings"] == "the same"


def test_a_run_that_diverged_at_the_baselines_settings_is_counted(tmp_path):
    base = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    own, borrowed = [1.5, 1.6, 1.71], [2.5, None, 2.73]
    report = build_report(base + fair_runs(tmp_path / "b", "none", FAR, own, borrowed))
    second = settings(report)[1]
    assert (second["at the baseline's settings"], second["own − baseline's"]) == ("1 of 3 diverged", "—")


def test_arms_with_other_trials_are_named_also_if_they_are_as_many(tmp_path):
    base = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2])
    other = fair_runs(tmp_path / "b", "none", NEAR, [1.5, 1.6, 1.7], worse=FAR.replace("1e-2", "2e-2"))
    doubt = (
        "the arms were tuned by unequal trials: 2 (10 steps, seed 0), 1 (20 steps, seed 0, 1) for layernorm"
    )
    assert doubt in build_report(base + other).summary[1]


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


def test_a_rate_inside_those_of_the_first_round_is_not_at_an_edge_of_the_last(tmp_path):
    base = fair_rates(tmp_path / "a", "layernorm")
    report = build_report(base + fair_rates(tmp_path / "b", "none"))
    assert not any("lowest or highest" in line for line in report.warnings)


def fair_rates(folder, norm):
    """Return runs of an arm whose rate alone was tuned: four rates, and then the best two for longer."""
    keys = ("optim.learning_rate",)
    losses = {"1e-3": 2.3, "2e-3": 2.1, "4e-3": 2.0, "8e-3": 2.4}
    first = {f"norm={norm} train.steps=10 optim.learning_rate={r}": [loss] for r, loss in losses.items()}
    last = {f"norm={norm} train.steps=20 optim.learning_rate={r}": [losses[r]] for r in ("2e-3", "4e-3")}
    compared = {f"norm={norm} train.steps=20 optim.learning_rate=4e-3": [2.0, 2.1, 2.2]}
    return [
        *several(folder / "t", first | last, roles=[role("trial", norm, keys, (0,))]),
        *several(folder / "c", compared, first=10, roles=[role("compared", norm, keys, (0,))]),
    ]


def test_rates_that_compared_runs_chose_by_unequal_trials_are_confounded(tmp_path):
    losses = {f"optim.learning_rate={rate}": ends for rate, ends in GRID.items()}
    report = build_report(several(tmp_path, losses | {"norm=none": [2.0, 2.1]}))
    assert report.summary[1].endswith(
        "Confounded: the arms were tuned by unequal trials: 0.001, 0.003, 0.01 (1,000 steps, "
        "seed 0, 1) for layernorm, but 0.002 (1,000 steps, seed 0, 1) for none."
    )


def test_a_key_that_another_sweep_tuned_makes_no_trials_unequal(tmp_path):
    arms = {"layernorm model.init=gpt2": "a", "layernorm model.init=xavier": "b"}
    runs = [run for words, name in arms.items() for run in runs_of(tmp_path / name, words)]
    assert build_report(runs).is_fair
    runs += fair_runs(tmp_path / "c", "none", NEAR, [2.0, 2.1, 2.2])  # model.init is tuned, too
    shown = build_report(runs, where=["norm=layernorm"])
    assert shown.is_fair, shown.how_chosen
    assert not build_report(runs).is_fair
