"""python -m scripts.initial_statistics shows what step 0 of a run sees, for one choice or several."""

import pytest

from scripts import initial_statistics
from tests.conftest import TINY
from tests.helpers.contract import check_refused
from tests.helpers.runs import metric_rows, train_anew

PROGRAM = "scripts/initial_statistics.py"


@pytest.mark.parametrize(
    "choice", [("norm=layernorm", "placement=post"), ("norm=batchnorm", "model.dropout=0.2")]
)
def test_its_numbers_are_those_of_step_0_of_the_run(tiny, choice):
    config = tiny(*choice, "train.steps=1", "stats=all")
    row = metric_rows(train_anew(config))[0]
    columns, certificate = initial_statistics.measure_choice(config)
    assert columns["variance of the stream"] == {
        site: pytest.approx(row[f"act.std/{stream}"] ** 2)
        for site, stream in {"embed": "embed", "00": "00.mlp", "01": "01.mlp", "final": "final"}.items()
    }
    assert columns["MLP / stream"]["01"] == pytest.approx(row["act.ratio/01.mlp.branch"])
    assert columns["attention / stream"]["00"] == pytest.approx(row["act.ratio/00.attn.branch"])
    assert columns["norm of the gradient"] == {
        site: pytest.approx(row[f"grad.norm/{site}"]) for site in ("embed", "00", "01")
    }
    assert certificate.startswith("WARNING") == ("norm=batchnorm" in choice)


@pytest.mark.slow
def test_choices_stand_side_by_side(succeed, tmp_path, text_file):
    data = ("data=text", f"data.path={text_file}", f"data.cache={tmp_path}/cache")
    sizes = [argument for argument in TINY if "n_layer" not in argument]
    done = succeed(PROGRAM, *sizes, *data, "norm=none,batchnorm", "model.n_layer=1,3")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    head = " ".join(f"norm={n} model.n_layer={d}" for n in ("none", "batchnorm") for d in (1, 3))
    assert lines.count(head) == 4
    assert done.stdout.count("WARNING: norm=batchnorm placement=pre LEAKS") == 2
    deepest = [line.split() for line in lines if line.startswith("02")]
    assert [len(line) for line in deepest] == [3] * 4  # the shallow models have no such block


@pytest.mark.slow
def test_nothing_of_a_table_is_cut_in_a_pipe(succeed, tmp_path, text_file):
    data = ("data=text", f"data.path={text_file}", f"data.cache={tmp_path}/cache")
    done = succeed(PROGRAM, *TINY, *data)
    assert "…" not in done.stdout
    assert all(title in done.stdout for title in initial_statistics.QUANTITIES)
    assert {"embed", "00", "final"} <= {line.split()[0] for line in done.stdout.splitlines() if line.strip()}


@pytest.mark.slow
def test_an_error_is_one_line(command):
    check_refused(command(PROGRAM, "norm=nope"), "norm: there is no 'nope'")
