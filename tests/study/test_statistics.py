"""The rule keeps its promise in simulated studies, and rows have verdicts only where they may.

python -m tests.study.test_statistics      prints the whole simulation as Markdown: half a minute
"""

import itertools
import re
from datetime import timedelta

import numpy as np
import pytest
from scipy import stats

from study.statistics import EXTENDED, FIRST, has_two_parts, judge, rows, seeds_needed, steps_to
from study.table import verdict
from tests.conftest import ROOT, daily
from tests.helpers.studies import BASE, OTHER, WORSE, WRITTEN, a_study, a_table

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


@pytest.mark.parametrize(("arms", "seeds"), daily([(7, 5), (1, 3), (40, 3), (1, 10), (40, 10)]))
@pytest.mark.parametrize("noise", NOISE)
def test_a_study_has_a_false_verdict_in_at_most_5_percent(arms, seeds, noise):
    most = 0.17 if noise in BROKEN else 0.05
    for matters in (0.0, 1.0):
        assert max(false_verdicts(arms, seeds, noise, matters).values()) <= most + ERROR


def test_differences_are_found():
    assert power(7, 10, 2) > 0.98
    assert power(7, 5, 2) < power(7, 5, 2, extended=True)


def simulation():
    """Yield the lines of the whole simulation."""
    yield f"# The rule of study/statistics.py, simulated\n\n{STUDIES:,} studies a cell, ± {ERROR:.3f}"
    yield "\n## Share of studies with a false verdict\n"
    columns = [f"{case}, {mode}" for case in ("all equal", "all worse by exactly matters") for mode in MODES]
    yield f"| noise | compared arms | seeds | {' | '.join(columns)} |"
    yield "|---" * 9 + "|"
    for noise, arms, seeds in itertools.product(NOISE, ARMS, SEEDS):
        found = [x for matters in (0.0, 1.0) for x in false_verdicts(arms, seeds, noise, matters).values()]
        yield f"| {noise} | {arms} | {seeds} | {' | '.join(f'{each:.3f}' for each in found)} |"
    yield "\n## How often a difference is found; sd: of the paired difference; normal noise\n"
    yield "| compared arms | seeds | 1 sd | 2 sd | 3 sd | extended: 1 sd | 2 sd | 3 sd |"
    yield "|---" * 8 + "|"
    for arms, seeds in itertools.product(ARMS, SEEDS):
        found = [power(arms, seeds, effect, extended) for extended in (False, True) for effect in (1, 2, 3)]
        yield f"| {arms} | {seeds} | {' | '.join(f'{each:.0%}' for each in found)} |"


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


def test_normal_noise_is_rarely_taken_for_two_parts_and_two_parts_are_found():
    rng = np.random.default_rng(0)
    for n in (5, 10):
        normal = rng.normal(2, 0.01, (400, n))
        assert np.mean([has_two_parts(losses) for losses in normal]) < 0.03
        assert np.mean([has_two_parts(losses) for losses in normal + np.arange(n) // (n - 1)]) > 0.9
    assert not has_two_parts([2.0, 2.0, 2.0, 3.0])  # too few
    assert not has_two_parts([2.0] * 5)


# ---------------------------------------------------------------------------------------------------
# Rows


def judged(losses, **options):
    """Return the rows of a study by title, given each arm's losses by seed."""
    return {row.title: row for row in a_table(losses, **options).rows}


def test_an_arm_gets_its_verdict():
    table = judged(WORSE)
    row = table[OTHER]
    assert (row.outcome, row.reason, row.baseline) == ("worse", None, BASE)
    assert row.low < row.difference < row.high
    assert row.losses == {10: 2.1, 11: 2.2, 12: 2.001, 13: 2.1}
    assert row.bpb == pytest.approx(2 * row.mean)
    assert table[BASE].difference is table[BASE].outcome is table[BASE].reason is None


def test_a_flaw_of_an_arm_or_of_its_baseline_leaves_no_verdict():
    for changes, reason in (
        ({"began": WRITTEN - timedelta(seconds=1)}, "began before the study"),
        ({"leaks": ["evaluation", "training"]}, "it leaks"),
        ({"leaks": ["not tested"]}, "causality not tested"),
        ({"state": "diverged", "losses": {}}, "a seed diverged"),
    ):
        for flawed, before in ((OTHER, ""), (BASE, "its baseline: ")):
            row = judged(WORSE, changes={flawed: changes})[OTHER]
            assert (row.outcome, row.low, row.reason) == (None, None, before + reason)
    row = judged(WORSE, changes={OTHER: {"leaks": ["training"]}})[OTHER]  # marked; the verdict stands
    assert (row.outcome, row.leaks) == ("worse", ["training"])


def test_too_few_seeds_a_missing_one_and_a_map_give_numbers_and_no_verdict():
    row = judged({title: values[:2] for title, values in WORSE.items()}, seeds=2)[OTHER]
    assert (row.outcome, row.low, row.reason) == (None, None, "fewer than 3 pairs")
    missing = WORSE | {OTHER: WORSE[OTHER][:3]}
    row = judged(missing)[OTHER]
    assert (row.outcome, row.reason, row.difference > 0) == (None, "unfinished", True)
    row = judged(WORSE, verdicts=False)[OTHER]
    assert (row.outcome, row.reason) == (None, "no verdicts in this study")
    assert row.low < row.difference < row.high
    assert verdict(judged(missing, verdicts=False)[OTHER]) == "3 of 4 finished"


def test_before_settings_are_chosen_nothing_is_judged_and_an_arm_without_usable_ones_says_so():
    nothing = {title: {} for title in WORSE}
    assert {row.reason for row in rows(a_study(), None, None, nothing)} == {"unfinished"}
    for verdicts in (True, False):
        chosen = {"arms": {OTHER: {"runs": [], "settings": None, "reason": "no usable setting"}}}
        base, row = rows(a_study(verdicts=verdicts), chosen, None, nothing)
        assert (base.reason, verdict(row)) == ("unfinished", "no usable setting")


def test_an_extension_judges_all_seeds_anew_at_a_stricter_level():
    twice = {title: values * 2 for title, values in WORSE.items()}
    row = judged(twice)[OTHER]
    assert len(row.seeds) == 8
    low = judge(twice[OTHER], twice[BASE], 1, 0.01, EXTENDED)[1]
    assert (row.outcome, row.low) == ("worse", low)
    assert judged(twice | {OTHER: WORSE[OTHER]})[OTHER].reason == "unfinished"


def test_each_value_of_by_has_its_own_baseline():
    titles = [f"{title} model.n_layer={n}" for n in (2, 4) for title in (BASE, OTHER)]
    losses = dict(zip(titles, (WORSE[BASE], WORSE[OTHER], WORSE[OTHER], WORSE[BASE]), strict=True))
    table = judged(losses, by=["model.n_layer"], comparisons=2)
    assert [row.outcome for row in table.values()] == [None, "worse", None, "better"]
    assert [row.baseline for row in table.values()] == [None, titles[0], None, titles[2]]


def test_the_steps_to_the_baselines_loss_are_averaged_over_seeds():
    table = judged({BASE: [2.0] * 3 + [3.0], OTHER: [2.0] * 4})
    assert table[OTHER].steps_to_baseline == pytest.approx((100 + 100 + 100 + 50) / 4)
    assert judged(WORSE)[OTHER].steps_to_baseline is None  # it never gets there


if __name__ == "__main__":
    for line in simulation():
        print(line, flush=True)
