"""Names are selected by patterns, and each is defined in the documentation."""

import re

import pytest

from probe import metric_names, statistics
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("metrics", "sites", "name", "chosen"),
    [
        (["act.rms"], ["*"], "act.rms/00.attn", True),
        (["act.rms"], ["*"], "act.rms/00.attn.pre.in", True),
        (["act.rms"], ["*"], "act.std/00.attn", False),
        (["act.*"], ["*"], "act.std/00.attn", True),
        (["*"], ["*"], "grad.norm/00", True),
        (["act.rms/*.attn"], ["*"], "act.rms/00.attn", True),
        (["act.rms/*.attn"], ["*"], "act.rms/00.attn.branch", False),
        (["act.rms/*.attn"], ["*"], "act.rms/00.mlp", False),
        (["act.rms"], ["00.*"], "act.rms/00.mlp", True),
        (["act.rms"], ["00.*"], "act.rms/01.mlp", False),
        (["act.rms"], [], "act.rms/01.mlp", False),
        ([], ["*"], "act.rms/01.mlp", False),
    ],
)
def test_a_name_is_selected_if_metric_and_site_match(metrics, sites, name, chosen):
    assert metric_names.selection(metrics, sites)(name) is chosen


def test_the_moments_and_internals_are_those_that_are_computed():
    assert tuple(statistics.MOMENTS) == metric_names.MOMENTS
    assert tuple(statistics.NORM_INTERNALS) == metric_names.NORM_INTERNALS


def test_every_statistic_has_one_definition_in_the_documentation():
    text = (ROOT / "docs" / "looking.md").read_text(encoding="utf-8")
    defined = re.findall(r"^\| `([a-z]+\.[a-z_0-9]+)` \|", text, flags=re.MULTILINE)
    assert [name for name in defined if not name.startswith(("leak.", "hist."))] == list(
        metric_names.STATISTICS
    )
