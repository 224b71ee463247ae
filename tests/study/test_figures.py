"""Figures of files have all labels, whole in any usual font."""

import re
from dataclasses import replace

import pytest

from study import figures
from study.statistics import by_key
from tests.helpers.browser import browser, needs_browser  # noqa: F401 a fixture
from tests.study.test_statistics import BASE, OTHER, WORSE, a_study, judged
from tests.study.test_table import ARMS, a_table

LONG = "norm=batchnorm_position placement=layernorm_scaling model.embedding_norm=same"
FONTS = ("700 DejaVu Sans", "400 DejaVu Sans Mono", "400 Verdana, sans-serif")
CUT = """
const all = document.querySelector("svg").getBoundingClientRect()
return [...document.querySelectorAll("text")].filter(text => {
  const box = text.getBoundingClientRect()
  return box.left < all.left || box.right > all.right || box.top < all.top || box.bottom > all.bottom
}).map(text => text.textContent)"""
OVERLAPPING = """
const texts = [...document.querySelectorAll(".role-mark text")]
  .map(text => [text.textContent, text.getBoundingClientRect()])
const beside = (p, q) => p.left + 1 < q.right && q.left + 1 < p.right
const meet = (p, q) => beside(p, q) && p.top + 4 < q.bottom && q.top + 4 < p.bottom
return texts.flatMap(([a, p], i) => texts.slice(i + 1).filter(([, q]) => meet(p, q)).map(([b]) => [a, b]))"""


def forest():
    return figures.forest(a_table(WORSE | {LONG: [2.1, 2.2, 2.0, 2.1]}))


def settings():
    tried = [({"optim.learning_rate": rate}, 2.0 + rate) for rate in (0.001, 0.01)]
    table = a_table(row_changes={OTHER: {"settings": tried[0][0]}})
    return figures.settings(replace(table, trials={OTHER: [*tried, ({"optim.learning_rate": 0.1}, None)]}))


def grid(worst=None):
    norms, places = ("layernorm", "batchnorm_position", "none"), ("pre", "post", "layernorm_scaling")
    losses = {f"norm={norm} placement={each}": [2.0 + len(norm) / 100] for norm in norms for each in places}
    losses["norm=none placement=post"] = [worst]
    del losses["norm=none placement=pre"]
    study = a_study(*losses, seeds=1, verdicts=False)
    study.arms[-1].same_as.append("norm=none placement=pre")  # the same model
    return figures.grid(replace(a_table(WORSE), study=study, rows=[*judged(study, losses).values()]))


def words(chart):
    return re.findall(r"<text[^>]*>([^<]+)</text>|<tspan[^>]*>([^<]+)</tspan>", figures.svg(chart))


def said(chart):
    return {one or other for one, other in words(chart)}


def test_a_forest_has_a_row_an_arm_that_is_compared():
    text = said(forest())
    assert {"rmsnorm pre", "+0.100  worse", "Difference in validation loss from layernorm pre"} <= text
    assert "batchnorm_position layernorm_scaling model.embedding_norm=same" in text
    assert "layernorm pre" not in text


def test_leaks_are_on_a_forest():
    assert any("LEAKS in evaluation and training" in each for each in said(figures.forest(a_table())))


def test_settings_are_those_that_ended():
    chart = settings().to_dict()
    assert "rmsnorm pre" in said(settings())
    assert [each["chosen"] for each in chart["data"]["values"]] == [True, False]


def test_a_map_has_all_cells_and_those_of_arms_that_are_the_same():
    text = said(grid())
    assert {
        "diverged",
        "2.090",
        "2.180",
        "batchnorm_position",
        "Validation loss by norm and placement",
    } <= text
    records = grid().to_dict()["hconcat"][1]["layer"][1]["data"]["values"]
    assert len(records) == 9


def test_an_outlier_has_the_colour_of_the_worst_other_loss():
    [color] = [layer["encoding"]["color"] for layer in grid(9.0).to_dict()["hconcat"][1]["layer"]
               if "color" in layer["encoding"]]  # fmt: skip
    assert color["scale"]["domain"] == [2.04, 2.18]
    assert color["scale"]["clamp"]


def test_a_fence_leaves_out_outliers_alone():
    assert figures.fence([1.0, 1.1, 1.2, 1.3, 9.0]) == (1.0, 1.3)
    assert figures.fence([1.0, 2.0]) == (1.0, 2.0)
    assert figures.fence([1.0]) == (1.0, 1.0)


def test_keys_of_a_map_and_of_a_line():
    grid = a_table({f"norm={n} placement={p}": [2.0] * 4 for n in "abc" for p in "xyz"}, verdicts=False)
    assert figures.grid_keys(grid) == ("norm", "placement")
    assert figures.number_key(grid) is None
    line = a_table({f"norm={n} placement=pre train.grad_accum={k}": [2.0] * 4 for n in "ab" for k in (1, 4)})
    assert figures.grid_keys(line) is None
    assert figures.number_key(line) == "train.grad_accum"
    assert figures.number_key(a_table(ARMS)) is None
    assert by_key(BASE.split()).keys() == {"norm", "placement"}


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("chart", [forest, settings, grid])
@pytest.mark.parametrize("font", FONTS)
def test_no_label_is_cut_nor_runs_into_the_plot_in_a_wide_font(browser, tmp_path, chart, font):
    weight, family = font.split(" ", 1)
    style = f"text {{font-family: {family} !important; font-weight: {weight} !important}}"
    file = tmp_path / "figure.html"
    file.write_text(f"<style>{style}</style>{figures.svg(chart())}", encoding="utf-8")
    browser.get(file.as_uri())
    assert browser.execute_script(CUT) == []
    assert browser.execute_script(OVERLAPPING) == []
