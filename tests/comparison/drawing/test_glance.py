"""The first sentence and the first picture of a report say what its verdicts say."""

import html

import pytest

from comparison.curves import coinciding
from comparison.drawing.glance import crossed, differences, effort, next_step, sentence
from comparison.drawing.page import page
from comparison.drawing.specs import grid
from comparison.report import build_report
from tests.comparison.runs import several
from tests.helpers.run_folders import ARMS

SURE = "The chance that any of these verdicts is false is about 5 %."
NOT_TUNED = "the arms may not be at their own best settings"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return build_report(several(tmp_path_factory.mktemp("runs"), ARMS))


def arms(folder, *names: str):
    return build_report(several(folder, {f"norm={name}": ARMS[f"norm={name}"] for name in names}))


def test_who_is_better_by_how_much_how_sure_and_what_to_doubt(report):
    said = sentence(report)
    best = "rmsnorm (-0.0996 ± 0.0007 nats, 5 seeds) are better than layernorm. Of 6 arms, 2 are better, "
    counts = "1 is worse, 1 is equivalent, 1 is not decided and 1 has diverged"
    doubts = f"batchnorm LEAKS, {NOT_TUNED} and there are 2 warnings below the table"
    assert f" and {best}{counts}. {SURE} But {doubts}." in said
    assert f'<p class="lead">{said}</p>' in page(report)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("layernorm",), "There is nothing to compare: no arm has a baseline."),
        (("layernorm", "dyt"), f"dyt (+0.1004 ± 0.0007 nats, 5 seeds) is worse than layernorm. {SURE}"),
        (("layernorm", "derf"), "derf (-0.0000 ± 0.0002 nats, 5 seeds) is equivalent to layernorm."),
        (("layernorm", "dyt", "derf"), "No arm is better than layernorm. Of 2 arms, 1 is worse and 1 is"),
        (("layernorm", "groupnorm"), f"No arm is shown to be better than layernorm. But {NOT_TUNED}."),
    ],
)
def test_small_comparisons_are_said_in_few_words(tmp_path, names, said):
    assert sentence(arms(tmp_path, *names)).startswith(said)


def test_arms_of_several_baselines_are_better_than_theirs(tmp_path):
    both = {
        f"norm={norm} placement={placement}": ARMS[f"norm={norm}"]
        for norm in ("layernorm", "rmsnorm")
        for placement in ("pre", "post")
    }
    report = build_report(several(tmp_path, both), baseline={"norm": "layernorm"})
    assert " are better than their baselines. " in sentence(report)


def test_the_picture_has_each_arm_sorted_by_difference_with_leaks_and_divergence_marked(report):
    rows = differences(report)
    with_mean = [row for row in rows if row["mean"] is not None]
    assert [row["mean"] for row in with_mean] == sorted(row["mean"] for row in with_mean)
    assert {row["group"] for row in rows} == {norm.removeprefix("norm=") for norm in ARMS} - {"layernorm"}
    marks = {row["group"]: row["mark"] for row in rows if row["mark"]}
    assert marks == {"batchnorm": "LEAKS", "none": "diverged 2 of 5"}
    for row in with_mean:
        assert row["mean"] == pytest.approx(sum(row["seeds"]) / len(row["seeds"]))
        assert row["mark_at"] >= max(row["seeds"])  # right of all ticks
    assert all(row["low"] <= row["mean"] <= row["high"] for row in with_mean)


def test_two_crossed_factors_are_a_map_of_losses_with_leaks_and_divergence_marked(tmp_path):
    cells = {
        f"norm={norm} placement={placement}": losses
        for norm in ("layernorm", "batchnorm")
        for placement, losses in (("pre", [2.0]), ("post", [None]), ("peri", [2.2]))
    }
    report = build_report(several(tmp_path, cells))
    found = {(cell["row"], cell["column"]): (cell["mean"], cell["mark"]) for cell in crossed(report)}
    assert found == {
        ("layernorm", "pre"): (2.0, ""),
        ("layernorm", "post"): (None, "diverged"),
        ("layernorm", "peri"): (2.2, ""),
        ("batchnorm", "pre"): (2.0, "leaks"),
        ("batchnorm", "post"): (None, "diverged, leaks"),
        ("batchnorm", "peri"): (2.2, "leaks"),
    }
    assert effort(report) == "1 seed"
    assert differences(report) == []  # one seed has no interval, and no place on a picture of intervals


def test_a_design_of_one_factor_or_with_most_pairs_missing_has_no_map(report, tmp_path):
    assert crossed(report) == []
    diagonal = [
        f"norm={norm} placement={place}"
        for norm, place in (("layernorm", "pre"), ("none", "post"), ("dyt", "peri"))
    ]
    assert crossed(build_report(several(tmp_path, {cell: [2.0] for cell in diagonal}))) == []


def test_what_to_do_next_is_the_command_for_the_open_arm_that_needs_the_fewest_seeds(tmp_path):
    noisy = {"norm=layernorm": [2.0, 2.1, 1.9], "norm=derf": [2.3, 2.1, 2.2], "norm=dyt": [2.2, 2.3]}
    report = build_report(several(tmp_path / "noisy", noisy))
    assert {row.title: row.missing for row in report.open_rows}["dyt"] == 1  # it has too few pairs
    todo = next_step(report)
    assert todo["words"] == "1 more seed may settle whether dyt differs"
    assert todo["command"].startswith("python train.py -m norm=dyt ")
    assert todo["command"] in html.unescape(page(report))
    assert next_step(arms(tmp_path, "layernorm", "dyt")) is None


def test_curves_on_one_another_are_named():
    curves = {
        "a": (4.0, 3.0, 2.0),
        "b": (4.0, 3.01, 2.01),
        "c": (4.0, 3.1, 2.0),
        "d": (4.0, 3.0, None),
        "e": (4.0, 3.0),
    }
    rows = [
        {"group": g, "step": step, "mean": mean}
        for g, means in curves.items()
        for step, mean in enumerate(means)
    ]
    assert coinciding(rows) == [["a", "b"], ["d", "e"]]
    assert coinciding([]) == []


def test_the_colours_of_a_map_tell_a_collapsed_pair_from_the_others_even_if_most_are_equal():
    rows = [{"row": "a", "column": str(i), "mean": mean} for i, mean in enumerate([2.0, 2.0, 2.0, 3.0])]
    low, high = grid(rows, "loss")["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert (low, high) == (2.0, 3.0)
