"""Every finding of conf/finding: its numbers in results/findings, its verdict, its control."""

import pytest

from findings import render, running
from findings.__main__ import RESULTS
from findings.finding import MIN_SEEDS, Finding, load_findings
from findings.judging import Verdict, judge
from tests.conftest import daily

FINDINGS = load_findings()
UNTRAINED = [name for name, finding in FINDINGS.items() if not finding.trains]
TRAINED = [name for name, finding in FINDINGS.items() if finding.trains]


def committed(name: str, finding: Finding) -> running.Result:
    result = running.find_result(name, finding, RESULTS)
    assert result, f"{name}: no result under its conditions; python -m findings {name}, then --docs"
    return result


@pytest.mark.parametrize("name", FINDINGS)
def test_its_verdict_rests_on_three_seeds_at_least_and_on_everything_it_expects(name):
    """Also: a finding takes no longer than its ``minutes``. It was measured with two runs at once."""
    finding = FINDINGS[name]
    result = committed(name, finding)
    assert list(result.by_seed) == finding.seeds
    assert len(result.by_seed) >= MIN_SEEDS
    assert all({*finding.quantities()} <= values.keys() for values in result.by_seed.values())
    assert result.rows, "there are no points to draw"
    assert (result.provenance.runs > 0) == finding.trains
    assert (result.seconds.training / 2 + result.seconds.measuring) / 60 <= finding.minutes


@pytest.mark.parametrize("name", FINDINGS)
def test_its_control_did_not_pass(name):
    control = FINDINGS[name].as_control()
    assert control.conditions() != FINDINGS[name].conditions()
    judgement = judge(control, committed(f"{name}-control", control).by_seed)
    assert judgement.verdict == Verdict.FAIL or (control.trains and judgement.verdict != Verdict.PASS)


def test_the_document_and_its_pictures_are_made_of_the_results():
    document = RESULTS.with_suffix(".md").read_text(encoding="utf-8")
    assert document == render.document(render.entries(FINDINGS, [RESULTS]), "findings")
    for name in FINDINGS:
        assert f"](findings/{name}.svg)" in document
        assert (RESULTS / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.slow
@pytest.mark.parametrize("name", daily(UNTRAINED, lambda number: number % 2 == 0, others="long"))
def test_measured_again_without_training_it_and_its_control_have_the_same_numbers(name, tmp_path):
    """The first seed is measured; tolerances allow for the rounding of other processors."""
    for title, finding in {name: FINDINGS[name], f"{name}-control": FINDINGS[name].as_control()}.items():
        [seed] = first = finding.seeds[:1]
        values = running.obtain(name, finding.with_overrides({}, first), tmp_path / title).by_seed[seed]
        assert values == pytest.approx(committed(title, finding).by_seed[seed], rel=0.02, abs=2e-4)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", TRAINED)
def test_its_control_does_not_pass_when_it_is_trained(name, tmp_path):
    control = FINDINGS[name].as_control()
    assert judge(control, running.obtain(name, control, tmp_path).by_seed).verdict != Verdict.PASS
