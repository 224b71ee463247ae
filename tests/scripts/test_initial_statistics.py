"""python -m scripts.initial_statistics shows what step 0 of a run sees, for one choice or several."""

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
    assert columns["variance"] == {
        site: pytest.approx(row[f"act.std/{stream}"] ** 2)
        for site, stream in {"embed": "embed", "00": "00.mlp", "01": "01.mlp", "final": "final"}.items()
    }
    assert columns["MLP / stream"]["01"] == pytest.approx(row["act.ratio/01.mlp.branch"])
    assert columns["attention / stream"]["00"] == pytest.approx(row["act.ratio/00.attn.branch"])
    assert columns["gradient"] == {
        site: pytest.approx(row[f"grad.norm/{site}"]) for site in ("embed", "00", "01")
    }
    assert certificate.startswith("WARNING") == ("norm=batchnorm" in choice)


@pytest.mark.slow
def test_each_choice_has_its_table(succeed, text_file):
    sizes = [argument for argument in TINY if "n_layer" not in argument]
    data = ("data=text", f"data.path={text_file}")
    done = succeed("scripts/initial_statistics.py", *sizes, *data, "norm=none,batchnorm", "model.n_layer=1,3")
    first = [
        line.split()[0] for line in done.stdout.splitlines() if line.strip() and line.split()[0].isdigit()
    ]
    assert first == ["00", "00", "01", "02"] * 2
    assert "norm=none model.n_layer=3\n" in done.stdout
    assert done.stdout.count("WARNING: norm=batchnorm placement=pre LEAKS") == 2
