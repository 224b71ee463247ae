"""The rule keeps its promise in simulated studies, and rows have verdicts only where they may.

python -m tests.study.test_statistics      prints the whole simulation as Markdown: half a minute
"""

import itertools
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from scipy import stats

from study.files import Arm, Study
from study.runs import RunResult
from study.statistics import EXTENDED, FIRST, has_two_parts, judge, results_of, rows, seeds_needed, steps_to
from study.table import verdict
from tests.conftest import ROOT

WRITTEN = datetime(2026, 11, 29, 10, tzinfo=UTC)
ARMS, SEEDS, STUDIES = (1, 7, 20, 40), (3, 5, 10), 10_000
ERROR = 3 * np.sqrt(0.05 * 0.95 / STUDIES)  # of a simulated share of 5 %
NOISE = {  # kind -> how losses are drawn, and how much noisier the first compared arm is
    "normal": ("normal", 1),
    "t3": ("t3", 1),
    "exponential": ("exponential", 1),
    "normal, one arm 5 ×": ("normal", 5),
    "exponential, one arm 5 ×": ("exponential", 5),
    "lognormal, one arm 5 ×": ("lognormal", 5),
}
BROKEN = {"exponential, one arm 5 ×", "lognormal, one arm 5 ×"}  # docs/ablations.md says so
MODES = ("not extended", "extended", "extended where that helps")


def losses(arms, seeds, noise, rng, studies=STUDIES):
    """Return losses (studies, 1 + arms, seeds) of equal arms, the baseline first."""
    kind, scale = NOISE[noise]
    shape = studies, 1 + arms, seeds
    x = {
        "normal": lambda: rng.standard_normal(shape),
        "t3": lambda: rng.standard_t(3, shape),
        "exponential": lambda: rng.exponential(1, shape) - 1,
        "lognormal": lambda: rng.lognormal(0, 1, shape) - np.exp(0.5),
    }[kind]()
    x[:, 1] *= scale
    return x


def false_verdicts(arms, seeds, noise, matters=0.0):
    """Return, by mode, the share of studies with a false verdict, if all arms are worse by ``matters``.
    A study is extended "where that helps" if its first look has no false verdict; other choices give fewer.
    """
    x = losses(arms, 2 * seeds, noise, np.random.default_rng([arms, seeds]))
    x *= 0.2 if matters else 1.0  # so that the intervals are of the size of matters = 1
    x[:, 1:] += matters
    wrong = ["equivalent", "better"] if matters else ["better", "worse"]
    looks = (FIRST, seeds), (EXTENDED, 2 * seeds)
    first, second = (
        np.isin(judge(x[:, 1:, :n], x[:, :1, :n], arms, matters, share)[3], wrong).any(1)
        for share, n in looks
    )
    return dict(zip(MODES, (each.mean() for each in (first, second, first | second)), strict=True))


def power(arms, seeds, effect, extended=False):
    """Return how often an arm is found that is worse by ``effect`` sds of the paired difference."""
    n, share = (2 * seeds, EXTENDED) if extended else (seeds, FIRST)
    d = np.random.default_rng([arms, n]).standard_normal((STUDIES, n)) + effect
    return (judge(d, np.zeros(n), arms, 0.0, share)[3] == "worse").mean()


@pytest.mark.parametrize("noise", NOISE)
def test_a_study_has_a_false_verdict_in_at_most_5_percent(noise):
    check(7, 5, noise)


@pytest.mark.slow
@pytest.mark.parametrize(("arms", "seeds", "noise"), [*itertools.product(ARMS, SEEDS, NOISE)])
def test_a_study_of_any_size_has_a_false_verdict_in_at_most_5_percent(arms, seeds, noise):
    check(arms, seeds, noise)


def check(arms, seeds, noise):
    most = 0.17 if noise in BROKEN else 0.05
    for matters in (0.0, 1.0):
        assert max(false_verdicts(arms, seeds, noise, matters).values()) <= most + ERROR


def test_differences_are_found():
    assert power(7, 10, 2) > 0.98
    assert power(7, 5, 2) < power(7, 5, 2, extended=True)


# ---------------------------------------------------------------------------------------------------
# The rule


def test_the_interval_is_scipys():
    arm, baseline = [2.03, 2.10, 2.01, 2.06], [2.00, 2.05, 1.99, 2.01]
    difference, low, high, outcome = judge(arm, baseline, 7, 0.01)
    d = np.subtract(arm, baseline)
    expected = stats.t.interval(1 - 0.04 / 7, len(d) - 1, d.mean(), stats.sem(d))
    np.testing.assert_allclose((low, high), expected, rtol=1e-12)
    assert (difference, outcome) == (pytest.approx(0.0375), "open")


def test_outcomes():
    for differences, matters, outcome in (
        ([0.1, 0.11, 0.1, 0.11], 0.01, "worse"),
        ([-0.1, -0.11, -0.1, -0.11], 0.01, "better"),
        ([0.001, 0.002, 0.001, 0.002], 0.1, "equivalent"),  # although the interval excludes 0
        ([0.0, 0.0, 0.0, 0.0], 0.0, "open"),  # nothing is equivalent
        ([0.1, -0.1, 0.1, -0.1], 0.01, "open"),
    ):
        assert judge(differences, np.zeros(4), 1, matters)[3] == outcome


def test_the_seeds_that_an_open_arm_needs_decide_it():
    d = np.array([0.03, 0.01, 0.05, -0.01, 0.02])
    n = seeds_needed(d, 7, 0.01)
    for number, outcome in ((n - 1, "open"), (n, "worse")):
        same = np.resize([-1.0, 1.0], number)  # a sample of this size with the same mean and deviation
        same = d.mean() + (same - same.mean()) / same.std(ddof=1) * d.std(ddof=1)
        assert judge(same, np.zeros(number), 7, 0.01)[3] == outcome
    assert seeds_needed(np.array([1.0, -1.0, 1e-3]), 7, 0.01) is None


def test_steps_to_a_loss_lie_on_the_line_between_evaluations():
    curve = ((0, 4.0), (100, 3.0), (200, 2.0))
    assert [steps_to(goal, curve) for goal in (5.0, 3.0, 2.25, 1.0)] == [0.0, 100.0, 175.0, None]


def test_the_lines_of_the_documents_recompute_an_interval(capsys):
    page = (ROOT / "docs/ablations.md").read_text(encoding="utf-8")
    [code], [said] = re.findall(r"```python\n(.*?)```", page, re.DOTALL), re.findall(r"prints `(.*?)`", page)
    exec(code)
    assert capsys.readouterr().out.strip() == said
    assert len(code.splitlines()) == 12


# ---------------------------------------------------------------------------------------------------
# Rows

BASE, OTHER = "norm=layernorm placement=pre", "norm=rmsnorm placement=pre"


def a_study(*titles, seeds=4, **changes):
    """Return a study of these arms, the first of which is the baseline."""
    titles = titles or (BASE, OTHER)
    trials = [[] for _ in changes.get("trials", ())]
    arms = [Arm(title=each, overrides=each.split(), same_as=[], group="", trials=trials) for each in titles]
    keys = {
        "schema": 1,
        "name": "norms",
        "written": WRITTEN.isoformat(),
        "torch": "2.13.0",
        "declared_by": ["study=norms"],
        "runs_dir": "runs",
        "baseline": titles[0],
        "metric": "val/full_loss",
        "matters": 0.01,
        "verdicts": True,
        "tune": {},
        "seeds": [*range(10, 10 + seeds)],
        "further_seeds": [*range(90, 90 + seeds)],
        "comparisons": len(titles) - 1,
        "arms": arms,
        **dict.fromkeys(("git", "config_dir", "precision", "tokens")),
        **{key: [] for key in ("words", "by", "trials", "trial_seeds")},
    }
    return Study(**keys | changes)


def a_run(loss, **changes):
    """Return a run that ended at ``loss``; None: it diverged."""
    losses = {} if loss is None else {"val/full_loss": loss, "val/report_loss": loss, "val/bpb": 2 * loss}
    curve = ((0, 4.0), (100, loss or 4.0))
    began = WRITTEN + timedelta(seconds=1)
    state = "diverged" if loss is None else "finished"
    run = RunResult("a", None, state, False, losses, [], began, 1000.0, 2**30, curve, {"threads": "1"})
    return replace(run, **changes)


def judged(study, losses, /, extended=None, **changes):
    """Return the rows of a study by title, given each arm's losses by seed. ``changes``: of its last run."""
    runs, names = {}, {}
    for title, values in losses.items():
        names[title] = [f"{title} {number}" for number in range(len(values))]
        runs |= {name: a_run(value) for name, value in zip(names[title], values, strict=True)}
    last = [*runs][-1]
    runs[last] = replace(runs[last], **changes)
    n = len(study.seeds)
    chosen = {"arms": {title: {"runs": each[:n], "settings": {}} for title, each in names.items()}}
    if extended:
        extended = {
            "seeds": study.further_seeds,
            "runs": {title: each[n:] for title, each in names.items()},
        }
    return {
        row.title: row for row in rows(study, chosen, extended, results_of(study, chosen, extended, runs))
    }


WORSE = {BASE: [2.0, 2.1, 1.9, 2.0], OTHER: [2.1, 2.2, 2.001, 2.1]}


def test_an_arm_gets_its_verdict():
    table = judged(a_study(), WORSE)
    row = table[OTHER]
    assert (row.outcome, row.reason, row.baseline) == ("worse", None, BASE)
    assert row.low < row.difference < row.high
    assert row.losses == {10: 2.1, 11: 2.2, 12: 2.001, 13: 2.1}
    assert row.bpb == pytest.approx(2 * row.mean)
    assert table[BASE].difference is table[BASE].outcome is table[BASE].reason is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"began": WRITTEN - timedelta(seconds=1)}, "began before the study"),
        ({"leaks": ["evaluation", "training"]}, "it leaks"),
        ({"leaks": ["not tested"]}, "causality not tested"),
        ({"state": "diverged", "losses": {}}, "a seed diverged"),
    ],
)
def test_a_flaw_of_an_arm_or_of_its_baseline_leaves_no_verdict(changes, reason):
    row = judged(a_study(), WORSE, **changes)[OTHER]
    assert (row.outcome, row.low, row.reason) == (None, None, reason)
    assert (row.difference is None) == row.diverged == ("diverged" in reason)
    swapped = {OTHER: WORSE[OTHER], BASE: WORSE[BASE]}
    row = judged(a_study(), swapped, **changes)[OTHER]
    assert (row.outcome, row.low, row.reason) == (None, None, f"its baseline: {reason}")


def test_a_leak_in_training_is_marked_and_the_verdict_stands():
    row = judged(a_study(), WORSE, leaks=["training"])[OTHER]
    assert (row.outcome, row.leaks) == ("worse", ["training"])


def test_two_seeds_or_a_missing_one_give_a_number_and_no_verdict():
    few = {title: values[:2] for title, values in WORSE.items()}
    row = judged(a_study(seeds=2), few)[OTHER]
    assert (row.outcome, row.low, row.reason) == (None, None, "fewer than 3 pairs")
    row = judged(a_study(), WORSE | {OTHER: WORSE[OTHER][:3]})[OTHER]
    assert (row.outcome, row.reason, row.difference > 0) == (None, "unfinished", True)


def test_before_settings_are_chosen_nothing_is_judged_and_an_arm_without_usable_ones_says_so():
    nothing = {title: {} for title in WORSE}
    assert {row.reason for row in rows(a_study(), None, None, nothing)} == {"unfinished"}
    for verdicts in (True, False):
        chosen = {"arms": {OTHER: {"runs": [], "settings": None, "reason": "no usable setting"}}}
        base, row = rows(a_study(verdicts=verdicts), chosen, None, nothing)
        assert (base.reason, verdict(row)) == ("unfinished", "no usable setting")


def test_a_map_has_intervals_and_no_verdicts():
    row = judged(a_study(verdicts=False), WORSE)[OTHER]
    assert (row.outcome, row.reason) == (None, "no verdicts in this study")
    assert row.low < row.difference < row.high
    row = judged(a_study(verdicts=False), WORSE | {OTHER: WORSE[OTHER][:3]})[OTHER]
    assert (row.reason, verdict(row)) == ("unfinished", "3 of 4 finished")


def test_an_extension_judges_all_seeds_anew_at_a_stricter_level():
    study = a_study()
    once = {title: values + values for title, values in WORSE.items()}
    row = judged(study, once, extended=True)[OTHER]
    assert row.seeds == study.seeds + study.further_seeds
    low = judge(once[OTHER], once[BASE], 1, 0.01, EXTENDED)[1]
    assert (row.outcome, row.low) == ("worse", low)
    assert judged(study, WORSE, extended=True)[OTHER].reason == "unfinished"


def test_each_value_of_by_has_its_own_baseline():
    titles = [f"{title} model.n_layer={n}" for n in (2, 4) for title in (BASE, OTHER)]
    study = a_study(*titles, by=["model.n_layer"], comparisons=2)
    losses = dict(zip(titles, (WORSE[BASE], WORSE[OTHER], WORSE[OTHER], WORSE[BASE]), strict=True))
    table = judged(study, losses)
    assert [row.outcome for row in table.values()] == [None, "worse", None, "better"]
    assert [row.baseline for row in table.values()] == [None, titles[0], None, titles[2]]


def test_the_steps_to_the_baselines_loss_are_averaged_over_seeds():
    table = judged(a_study(), {BASE: [2.0] * 3 + [3.0], OTHER: [2.0] * 3 + [2.0]})
    assert table[OTHER].steps_to_baseline == pytest.approx((100 + 100 + 100 + 50) / 4)
    assert judged(a_study(), WORSE)[OTHER].steps_to_baseline is None  # it never gets there


# ---------------------------------------------------------------------------------------------------


def simulation():
    """Yield the lines of the whole simulation."""
    yield f"# The rule of study/statistics.py, simulated\n\n{STUDIES:,} studies a cell, ± {ERROR:.3f}"
    yield "\n## Share of studies with a false verdict\n"
    columns = [f"{case}, {mode}" for case in ("all equal", "all worse by exactly matters") for mode in MODES]
    yield f"| noise | compared arms | seeds | {' | '.join(columns)} |"
    yield "|---" * 9 + "|"
    for noise, arms, seeds in itertools.product(NOISE, ARMS, SEEDS):
        found = [
            share for matters in (0.0, 1.0) for share in false_verdicts(arms, seeds, noise, matters).values()
        ]
        yield f"| {noise} | {arms} | {seeds} | {' | '.join(f'{each:.3f}' for each in found)} |"
    yield "\n## How often a difference is found; sd: of the paired difference; normal noise\n"
    yield "| compared arms | seeds | 1 sd | 2 sd | 3 sd | extended: 1 sd | 2 sd | 3 sd |"
    yield "|---" * 8 + "|"
    for arms, seeds in itertools.product(ARMS, SEEDS):
        found = [power(arms, seeds, effect, extended) for extended in (False, True) for effect in (1, 2, 3)]
        yield f"| {arms} | {seeds} | {' | '.join(f'{each:.0%}' for each in found)} |"


def test_normal_noise_is_rarely_taken_for_two_parts_and_two_parts_are_found():
    rng = np.random.default_rng(0)
    for n in (5, 10):
        normal = rng.normal(2, 0.01, (2000, n))
        heaps = rng.normal(2, 0.01, (2000, n)) + np.arange(n) // (n - 1)
        assert np.mean([has_two_parts(losses) for losses in normal]) < 0.025
        assert np.mean([has_two_parts(losses) for losses in heaps]) > 0.9
    assert not has_two_parts([2.0, 2.0, 2.0, 3.0])  # too few
    assert not has_two_parts([2.0] * 5)


if __name__ == "__main__":
    for line in simulation():
        print(line, flush=True)
