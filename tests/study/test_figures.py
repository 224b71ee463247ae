"""The charts of a page show what is in its table."""

import re

from study import figures
from tests.helpers.studies import WORSE, a_table


def a_map(worst=None):
    """Return the map of three norms in three places, of which an arm is the same model as another one."""
    norms, places = ("layernorm", "batchnorm_position", "none"), ("pre", "post", "layernorm_scaling")
    losses = {f"norm={norm} placement={each}": [2.0 + len(norm) / 100] for norm in norms for each in places}
    losses["norm=none placement=post"] = [worst]
    del losses["norm=none placement=pre"]
    table = a_table(losses, seeds=1, verdicts=False)
    table.study.arms[-1].same_as.append("norm=none placement=pre")
    return figures.grid(table)


def test_a_map_has_all_cells_and_those_of_arms_that_are_the_same():
    chart = a_map()
    assert len(chart.to_dict()["data"]["values"]) == 9
    words = {*re.findall(r">([^<]+)</text>", figures.svg(chart))}
    assert {"diverged", "2.090", "2.180", "batchnorm_position", "layernorm_scaling"} <= words


def test_outliers_are_left_out_and_have_the_colour_of_the_worst_other_loss():
    assert figures.fence([1.0, 1.1, 1.2, 1.3, 9.0]) == (1.0, 1.3)
    assert figures.fence([1.0, 2.0]) == (1.0, 2.0)
    scale = a_map(9.0).to_dict()["layer"][0]["encoding"]["color"]["scale"]
    assert (scale["domain"], scale["clamp"]) == ([2.04, 2.18], True)


def test_keys_of_a_map_and_of_a_line():
    table = a_table({f"norm={n} placement={p}": [2.0] * 4 for n in "abc" for p in "xyz"}, verdicts=False)
    assert (figures.grid_keys(table), figures.number_key(table)) == (("norm", "placement"), None)
    table = a_table({f"norm={n} placement=pre train.grad_accum={k}": [2.0] * 4 for n in "ab" for k in (1, 4)})
    assert (figures.grid_keys(table), figures.number_key(table)) == (None, "train.grad_accum")
    assert figures.number_key(a_table(WORSE)) is None
