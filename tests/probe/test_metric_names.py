"""Names are selected by patterns, and each is defined in the documentation."""

import re

import pytest

from probe import metric_names, statistics
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("metrics", "sites", "chosen"),
    [
        ("act.rms", "*", "act.rms/00.attn act.rms/00.attn.branch act.rms/01.mlp"),
        ("act.*", "00.*", "act.rms/00.attn act.rms/00.attn.branch act.std/00.mlp"),
        ("act.rms/*.attn grad.norm", "*", "act.rms/00.attn grad.norm/00"),
        ("act.rms", "", ""),
        ("", "*", ""),
    ],
)
def test_a_name_is_selected_if_metric_and_site_match(metrics, sites, chosen):
    names = "act.rms/00.attn act.rms/00.attn.branch act.rms/01.mlp act.std/00.mlp grad.norm/00".split()
    is_wanted = metric_names.selection(metrics.split(), sites.split())
    assert [name for name in names if is_wanted(name)] == chosen.split()


def test_the_moments_and_internals_are_those_that_are_computed():
    assert tuple(statistics.MOMENTS) == metric_names.MOMENTS
    assert tuple(statistics.NORM_INTERNALS) == metric_names.NORM_INTERNALS


def test_every_statistic_has_one_definition_in_the_documentation():
    text = (ROOT / "docs" / "looking.md").read_text(encoding="utf-8")
    defined = re.findall(r"^\| `([a-z]+\.[a-z_0-9]+)` \|", text, flags=re.MULTILINE)
    assert [name for name in defined if not name.startswith(("leak.", "hist."))] == list(
        metric_names.STATISTICS
    )
