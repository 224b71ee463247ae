"""Verdicts follow the plan that the runs carry: the same runs and command always have the same verdicts."""

import itertools

import numpy as np

from comparison import plans
from comparison.load import load
from comparison.report import build_report
from comparison.verdicts import decide
from tests.comparison.runs import several
from tests.helpers.run_folders import made

NORMS = ("layernorm", "rmsnorm", "none", "dyt")
HIDDEN = "no verdict: --where hides runs of it or of its baseline"


def plan_of(norm, seeds=(0, 1, 2), written="2026-01-01", ended_before=(), arms=NORMS) -> dict:
    return {
        "written": written,
        "arms": [*arms],
        "arm": norm,
        "seeds": [*seeds],
        "ended_before": [*ended_before],
        "baseline": {"norm": "layernorm", "placement": "pre"},
    }


def runs_of(folder, seeds=(0, 1, 2), norms=NORMS, plan_seeds=None, **plan):
    """Return runs of ``norms`` that carry a plan: rmsnorm is a little better than layernorm."""
    plan |= {"seeds": [*plan_seeds]} if plan_seeds else {}
    runs = []
    for norm in norms:
        for seed in seeds:
            loss = 2 - 0.1 * (norm == "rmsnorm") + 0.02 * np.random.default_rng([seed, len(norm)]).normal()
            record = plan_of(norm, **plan) if plan.get("seeds", True) else None
            runs.append(load(made(folder, f"norm={norm}", f"seed={seed}", final=loss, plan=record))[0])
    return runs


def verdicts(runs, **options) -> dict[str, str]:
    return {row.title: row.verdict for row in build_report(runs, **options).rows}


def test_the_planned_seeds_are_judged_once_and_more_seeds_are_further_looks(tmp_path):
    planned = runs_of(tmp_path / "a")
    report = build_report(planned)
    rmsnorm = next(row for row in report.rows if row.title == "rmsnorm")
    assert (rmsnorm.planned, report.comparisons) == (3, 3)
    table = [
        [row.group.losses[s] - row.baseline.best_group.losses[s] for s in range(3)] for row in report.rows[1:]
    ]
    decision = decide(np.array([table]), 3, 3)
    words = {"lower": "better", "higher": "worse", "open": "not distinguishable at 3 seeds"}
    assert [row.verdict for row in report.rows[1:]] == [words[verdict] for verdict in decision.verdict[0]]
    later = runs_of(tmp_path / "b", seeds=(3, 4), written="2026-01-02", ended_before=(0, 1, 2))
    assert plans.planned_seeds(planned[3:6] + later[2:4], planned[:3] + later[:2]) == [0, 1, 2]


def test_seeds_that_another_sweep_adds_are_of_the_same_arm(tmp_path):
    """Seeds added by a sweep that tunes no keys have other hashes, but make no further arms."""
    runs = runs_of(tmp_path / "a")
    other = {norm: f"{norm}, by another sweep" for norm in ("layernorm", "rmsnorm")}
    for norm, arm in other.items():
        record = plan_of(norm, (3,), "2026-01-02", (0, 1, 2), other.values()) | {"arm": arm}
        runs.append(load(made(tmp_path / "b", f"norm={norm}", "seed=3", final=2.0, plan=record))[0])
    assert build_report(runs).comparisons == 3


def test_averaging_over_a_key_makes_no_verdict_easier(tmp_path):
    arms = [f"{norm} {depth}" for norm in NORMS for depth in (1, 2)]
    runs = [
        load(
            made(
                tmp_path,
                f"norm={norm}",
                f"model.n_layer={depth}",
                f"seed={seed}",
                final=2 + seed / 10,
                plan=record,
            )
        )[0]
        for norm in NORMS
        for depth in (1, 2)
        for seed in range(3)
        for record in [plan_of(norm, arms=arms) | {"arm": f"{norm} {depth}"}]
    ]
    assert build_report(runs).comparisons == 6
    assert build_report(runs, over=["model.n_layer"]).comparisons == 7


def test_a_plan_that_was_written_after_a_look_is_no_plan(tmp_path):
    runs = runs_of(tmp_path, seeds=(3, 4, 5), ended_before=(0, 1, 2))
    assert plans.planned_seeds(runs[:3], runs[3:6]) == []
    assert {row.planned for row in build_report(runs).rows} == {0}
    new_arm = runs_of(tmp_path / "new", seeds=(3, 4, 5), norms=("rmsnorm",))
    assert plans.planned_seeds(new_arm, runs[:3]) == [0, 1, 2]  # none of its pairs had ended


def test_hidden_arms_count_and_another_baseline_makes_it_all_pairs(tmp_path):
    runs = runs_of(tmp_path)
    two = [run for run in runs if run.config["norm"] in ("layernorm", "rmsnorm")]
    assert build_report(two).comparisons == build_report(runs).comparisons == 3
    assert build_report(two, baseline={"norm": "rmsnorm"}).comparisons == 6
    again = runs_of(tmp_path / "again", seeds=(3, 4), written="2026-01-02", arms=(*NORMS, "derf"))
    assert build_report(two + again[:4]).comparisons == 4  # a later plan has one arm more
    without = [run for run in runs if run.config["norm"] != "layernorm"]  # so that another is the baseline
    assert build_report(without).comparisons == 6


DIFFERENCES = {  # with these five arms, rmsnorm's small variance counts as luck
    "layernorm": [0, 0, 0],
    "rmsnorm": [-0.12, -0.1, -0.11],
    "none": [-0.04, 0.03, 0.04],
    "dyt": [0.02, -0.12, 0.05],
    "derf": [-0.02, -0.06, 0.03],
    "scalenorm": [0.03, -0.05, 0.12],
}


def test_hiding_arms_does_not_change_a_verdict(tmp_path):
    runs = []
    for norm, differences in DIFFERENCES.items():
        for seed, difference in enumerate(differences):
            record = plan_of(norm, arms=[*DIFFERENCES])
            folder = made(tmp_path, f"norm={norm}", f"seed={seed}", final=2 + difference, plan=record)
            runs.append(load(folder)[0])
    alone, all_arms = build_report(runs[:6]), build_report(runs)
    selected = build_report(runs, where=["norm=layernorm,rmsnorm"])
    assert [row.title for row in selected.rows] == ["layernorm", "rmsnorm"]
    [judged] = [row for row in all_arms.rows if row.title == "rmsnorm"]
    assert alone.rows[1].verdict == "better" != judged.verdict
    assert selected.rows[1].verdict == judged.verdict
    assert selected.rows[1].difference == judged.difference


def test_seeds_that_were_selected_after_a_look_have_no_verdict(tmp_path):
    runs = runs_of(tmp_path, seeds=range(5))
    assert not verdicts(runs)["none"].startswith("no verdict")
    shown = build_report(runs, where=["seed=0,1,2"]).rows[1]
    assert (shown.verdict, shown.outcome) == (HIDDEN, "unfit")


def test_a_rate_of_the_baseline_that_was_selected_after_a_look_leaves_no_verdict(tmp_path):
    """Hiding the baseline's better rate once made an arm of one rate look better."""
    losses = {"norm=layernorm optim.learning_rate=1e-3": [2.5, 2.51, 2.52]}
    losses |= {"norm=layernorm optim.learning_rate=3e-3": [2.0, 2.01, 2.02]}
    losses |= {"norm=none optim.learning_rate=1e-3": [2.4, 2.411, 2.42]}
    runs = several(tmp_path, losses, plan=plan_of("all", arms=["all"]))
    shown = verdicts(runs, where=["optim.learning_rate=1e-3"])
    assert shown["none"] == HIDDEN


def test_a_rate_that_was_selected_after_a_look_has_no_verdict(tmp_path):
    runs = []
    for norm, rate in itertools.product(("layernorm", "none"), ("1e-3", "3e-3")):
        for seed in range(3):
            loss = 2 + 0.001 * seed**2 * (norm == "none") + 0.3 * (norm == "none") + 0.1 * (rate == "1e-3")
            words = f"norm={norm} optim.learning_rate={rate} seed={seed}".split()
            runs.append(load(made(tmp_path, *words, final=loss, plan=plan_of(norm)))[0])
    assert verdicts(runs)["none"] == "no verdict: the compared runs chose the rates"
    for rate in ("1e-3", "3e-3"):
        shown = verdicts(runs, where=[f"optim.learning_rate={rate}"])
        assert shown["none"].startswith("no verdict: ")
    alone = [run for run in runs if run.config["optim.learning_rate"] == 1e-3]
    assert verdicts(alone)["none"] == "worse"


def test_seeds_are_looked_at_in_the_order_in_which_they_were_planned(tmp_path):
    first = runs_of(tmp_path / "a", seeds=(7, 8, 9), norms=("none",), written="2026-01-01", ended_before=(5,))
    second = runs_of(
        tmp_path / "b", seeds=(1, 2), norms=("none",), written="2026-01-02", ended_before=(5, 7, 8, 9)
    )
    alone = [load(made(tmp_path / f"c{seed}", "norm=none", f"seed={seed}", plan=None))[0] for seed in (5, 0)]
    assert plans.in_order([0, 1, 2, 5, 7, 8, 9], [*first, *second, *alone]) == [5, 7, 8, 9, 1, 2, 0]


def test_what_is_missing_of_a_plan_is_named(tmp_path):
    runs = runs_of(tmp_path, seeds=(0, 1)) + runs_of(tmp_path / "more", seeds=(9, 10), written="2026-01-03")
    without_seed_0 = [run for run in runs if run.seed != 0 or run.config["norm"] != "none"]
    assert verdicts(without_seed_0)["none"] == "no verdict: 1 of the 3 planned seeds"


def test_an_arm_of_many_seeds_or_without_overrides_has_a_command_for_more(tmp_path):
    noisy = [2.0 + 0.3 * ((7 * seed) % 5 - 2) * (-1) ** seed for seed in range(20)]
    runs = several(tmp_path, {"norm=none": noisy, "": [2.0 + 0.01 * seed for seed in range(20)]})
    for run in runs:
        if run.config["norm"] == "layernorm":
            run.environment["overrides"] = []  # as after a plain python train.py
    [row] = [row for row in build_report(runs).rows if row.outcome == "open"]
    assert row.verdict == "not distinguishable at 20 seeds"
    assert "seed=20,21,22,23,24" in row.command
    assert row.command.count("python train.py -m") == 2


def test_a_command_for_more_seeds_has_the_planned_seeds_that_are_missing(tmp_path):
    report = build_report(runs_of(tmp_path, seeds=(30, 31, 33, 34), plan_seeds=range(30, 35)))
    for row in report.rows[1:]:
        assert row.verdict == "no verdict: 4 of the 5 planned seeds"
        assert "seed=32 " in f"{row.command} "
        assert row.missing == 1


def test_a_large_plan_has_a_command_for_its_missing_seeds(tmp_path):
    runs = runs_of(tmp_path, seeds=range(52), norms=("layernorm", "none"), plan_seeds=range(55))
    [row] = [row for row in build_report(runs).rows if row.outcome == "open"]
    assert row.verdict == "no verdict: 52 of the 55 planned seeds"
    assert row.command.endswith("seed=52,53,54")


def test_seeds_that_ended_without_a_value_are_replaced(tmp_path):
    runs = several(tmp_path, {"norm=none": [2.0, 2.3, 2.1], "": [2.0, 2.1, 2.2]})
    for run in runs:
        if run.seed == 2:
            run.metrics.pop("val/full_loss")
    [row] = [row for row in build_report(runs).rows if row.outcome == "open"]
    assert row.verdict == "no verdict: 2 common seeds"
    assert row.command.count("seed=3") == 2


def test_seeds_and_rates_of_runs_without_a_plan_cannot_be_selected_after_a_look_either(tmp_path):
    losses = {"norm=layernorm": [2.0, 2.01, 2.02, 2.0], "norm=none": [2.3, 2.311, 2.32, 1.0]}
    runs = several(tmp_path / "a", losses)
    assert verdicts(runs, where=["seed=0,1,2"])["none"] == HIDDEN
    assert verdicts(runs, where=["norm=layernorm,none"])["none"] == verdicts(runs)["none"]
    others = {"norm=none optim.learning_rate=1e-3": [1.0, 1.01, 1.02, 1.0]}
    assert (
        verdicts([*runs, *several(tmp_path / "b", others)], where=["optim.learning_rate=2e-3"])["none"]
        == HIDDEN
    )
