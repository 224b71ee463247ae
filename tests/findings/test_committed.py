"""Every finding of conf/finding: what it says of itself, its numbers in results/findings, its control."""

import pytest

from findings import render, running
from findings.finding import Finding, every
from findings.judging import Verdict, judge
from tests.conftest import ROOT

FINDINGS = every()
RESULTS = ROOT / "results" / "findings"
UNTRAINED = [name for name, one in FINDINGS.items() if not one.trains]
TRAINED = [name for name, one in FINDINGS.items() if one.trains]


def committed(name: str, finding: Finding) -> running.Result:
    found = running.kept(name, finding, RESULTS)
    assert found, f"{name}: no result under its conditions; python -m findings {name}, then --docs"
    return found


def test_there_are_some_of_both_kinds():
    assert len(UNTRAINED) >= 8
    assert len(TRAINED) >= 12


@pytest.mark.parametrize("name", FINDINGS)
def test_its_verdict_rests_on_three_seeds_at_least_and_on_all_that_it_expects(name):
    finding = FINDINGS[name]
    result = committed(name, finding)
    assert list(result.by_seed) == finding.seeds
    assert len(result.by_seed) >= 3
    asked = {*finding.expected, *finding.inconclusive, *finding.because}
    assert all(asked <= values.keys() for values in result.by_seed.values())
    assert result.rows, "there is nothing to draw"
    assert (result.where.runs > 0) == finding.trains


@pytest.mark.parametrize("name", FINDINGS)
def test_its_control_did_not_pass(name):
    control = FINDINGS[name].as_control()
    assert control.conditions() != FINDINGS[name].conditions()
    judgement = judge(control, committed(f"{name}-control", control).by_seed)
    assert judgement.verdict == Verdict.FAIL or (control.trains and judgement.verdict != Verdict.PASS)


@pytest.mark.parametrize("name", FINDINGS)
def test_it_takes_no_longer_than_it_says_and_at_most_twenty_minutes(name):
    """By what it took when it was measured: two runs at once, after one another."""
    finding, seconds = FINDINGS[name], committed(name, FINDINGS[name]).seconds
    assert (seconds.training / 2 + seconds.measuring) / 60 <= finding.minutes <= 20


def test_the_document_is_made_of_the_results_and_its_pictures_are_there():
    document = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    below = document.partition("<!-- Below is what python -m findings --docs writes. -->\n\n")[2]
    assert below == render.document(render.entries(FINDINGS, [RESULTS]))
    for name in FINDINGS:
        assert f"](findings/{name}.svg)" in document
        assert (ROOT / "docs" / "findings" / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize("name", UNTRAINED)
def test_what_needs_no_training_gives_the_same_numbers_again(name, tmp_path):
    """Of its first three seeds, within what another processor rounds otherwise."""
    before = committed(name, FINDINGS[name]).by_seed
    seeds = FINDINGS[name].seeds[:3]
    again = running.obtain(name, FINDINGS[name].under({}, seeds), tmp_path).by_seed
    for seed in seeds:
        assert again[seed] == pytest.approx(before[seed], rel=0.02, abs=2e-4)


@pytest.mark.parametrize("name", UNTRAINED)
def test_its_control_does_not_pass_when_it_is_run(name, tmp_path):
    control = FINDINGS[name].as_control()
    control = control.under({}, control.seeds[:4])
    assert judge(control, running.obtain(name, control, tmp_path).by_seed).verdict != Verdict.PASS


@pytest.mark.long
@pytest.mark.parametrize("name", TRAINED)
def test_its_control_does_not_pass_when_it_is_trained(name, tmp_path):
    control = FINDINGS[name].as_control()
    assert judge(control, running.obtain(name, control, tmp_path).by_seed).verdict != Verdict.PASS
