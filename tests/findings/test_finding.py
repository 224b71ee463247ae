"""A verdict depends on where an interval lies, not a point. Every published finding has its numbers."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from data.errors import ConfigError
from findings.document import PAGE, RESULTS, document
from findings.finding import Expected, interval, judge, load_finding, load_findings, read_result
from tests.conftest import ROOT

NUMBERS = st.lists(st.floats(-10, 10), min_size=3, max_size=8)
ENDS = st.tuples(st.floats(-10, 10), st.floats(-10, 10)).map(sorted)
GOOD, BAD, WIDE = [1, 1.1, 0.9], [-1, -1.1, -0.9], [-1.0, 0.0, 1.0]
ABOVE_0 = Expected(above=0, why="")


def verdict(expected: Expected, **values: list[float]) -> str:
    """Return the verdict on quantities that have these values in each seed."""
    rows = zip(*values.values(), strict=True)
    by_seed = {seed: dict(zip(values, row, strict=True)) for seed, row in enumerate(rows)}
    return judge(dict.fromkeys(values, expected), by_seed)[0]


@given(NUMBERS.filter(lambda values: len({*values}) > 1))
def test_the_interval_is_the_one_that_scipy_gives(values):
    theirs = ttest_1samp(values, 0).confidence_interval(0.95)
    assert interval(values)[1:] == pytest.approx((theirs.low, theirs.high))


@given(NUMBERS, ENDS)
def test_it_passes_where_the_interval_lies_inside_and_fails_where_it_lies_outside(values, ends):
    (low, high), (_, start, end) = ends, interval(values)
    inside, outside = low <= start and end <= high, end < low or start > high
    expected = Expected(above=low, below=high, why="")
    alone, of_two = verdict(expected, x=values), verdict(expected, x=values, y=values)
    assert alone == ("PASS" if inside else "FAIL" if outside else "INCONCLUSIVE")
    assert (of_two == "PASS") == (alone == "PASS")
    assert of_two != "FAIL" or alone == "FAIL"  # of several, a wider interval has to lie outside


def test_all_quantities_must_pass_and_one_that_fails_is_enough():
    for values, expected in (
        ({"x": GOOD, "y": GOOD}, "PASS"),
        ({"x": GOOD, "y": WIDE}, "INCONCLUSIVE"),
        ({"x": GOOD, "y": BAD}, "FAIL"),
        ({"x": BAD, "y": WIDE}, "FAIL"),
        ({"x": [0, 0, 0]}, "FAIL"),  # a tie confirms no direction
        ({"x": [1, 1, math.nan]}, "INCONCLUSIVE"),
        ({"x": [1, 1, math.inf]}, "INCONCLUSIVE"),
    ):
        assert verdict(ABOVE_0, **values) == expected
    zero = Expected(above=0, below=0, why="")  # can be expected
    assert verdict(zero, x=[0, 0, 0]) == "PASS"
    assert verdict(zero, x=[1e-9, 1e-9, 1e-9]) == "FAIL"


def test_a_mistake_in_a_yaml_is_one_line_with_its_place(tmp_path):
    file = tmp_path / "mine.yaml"
    plain = yaml.safe_load((ROOT / "conf/finding/batch_spread.yaml").read_text())
    for change, error in (
        ({"seeds": [0]}, "seeds: invalid value"),
        ({"clam": "A norm helps."}, "clam: unknown key; did you mean claim?"),
        ({"expected": {"x": {"why": ""}}}, "expected.*neither above nor below is given"),
        ({"measure": "function"}, "measure"),
    ):
        file.write_text(yaml.safe_dump(plain | change))
        with pytest.raises(ConfigError, match=rf"mine\.yaml: {error}"):
            load_finding(file)


def test_every_published_finding_was_decided_by_its_seeds_and_has_a_picture():
    for name, finding in load_findings().items():
        result = read_result(finding, RESULTS / f"{name}.json")
        assert result, name
        assert [*map(int, result["by_seed"])] == finding.seeds
        assert judge(finding.expected, result["by_seed"])[0] in ("PASS", "FAIL")
        assert not {*finding.seeds} & {*finding.tuning_seeds}  # what chose a rate is not measured
        assert (RESULTS / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")


def test_docs_findings_is_made_of_the_results():
    assert PAGE.read_text(encoding="utf-8") == document(), "python -m findings --docs"
