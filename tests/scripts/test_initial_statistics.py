"""python -m scripts.initial_statistics shows what step 0 of a run sees, for one choice or several."""

import re

import pytest

from scripts import initial_statistics
from tests.conftest import TINY
from tests.helpers.runs import metric_rows, train_anew


@pytest.mark.parametrize(
    "choice", [("norm=layernorm", "placement=post"), ("norm=batchnorm", "model.dropout=0.2")]
)
def test_its_numbers_are_those_of_step_0_of_the_run(tiny, choice):
    config = tiny(*choice, "train.steps=1", "stats=all")
    row = metric_rows(train_anew(config))[0]
    columns, certificate = initial_statistics.measure(config)
    streams = {"embed": "embed", "00": "00.mlp", "01": "01.mlp", "final": "final"}
    for site, stream in streams.items():
        assert columns["variance"][site] == pytest.approx(row[f"act.std/{stream}"] ** 2)
    assert columns["MLP / stream"]["01"] == pytest.approx(row["act.ratio/01.mlp.branch"])
    assert columns["attention / stream"]["00"] == pytest.approx(row["act.ratio/00.attn.branch"])
    assert columns["gradient"]["01"] == pytest.approx(row["grad.norm/01"])
    assert certificate.startswith("WARNING") == ("norm=batchnorm" in choice)


@pytest.mark.slow
def test_each_choice_has_its_table(succeed, text_file):
    sizes = [argument for argument in TINY if "n_layer" not in argument]
    words = ("data=text", f"data.path={text_file}", "norm=none,batchnorm", "model.n_layer=1,3")
    printed = succeed("scripts/initial_statistics.py", *sizes, *words).stdout
    assert re.findall(r"^ *(\d+) ", printed, re.M) == ["00", "00", "01", "02"] * 2
    assert "norm=none model.n_layer=3\n" in printed
    assert printed.count("WARNING: norm=batchnorm placement=pre LEAKS") == 2
