"""An arm reaches its baseline where its curve crosses the baseline's last loss, seed by seed."""

import pytest

from comparison.curves import curves, operations_per_token
from comparison.reach import reach
from comparison.report import build_report
from comparison.table import cells
from tests.comparison.runs import several

CURVES = {
    "norm=layernorm": {step: {"val/loss": 4 - step / 1000} for step in (0, 400, 800)},
    "norm=rmsnorm": {step: {"val/loss": 4 - step / 500} for step in (0, 400, 800)},
    "norm=dyt": {step: {"val/loss": 4 - step / 2000} for step in (0, 400, 800)},
}


@pytest.fixture
def report(tmp_path):
    finals = {"norm=layernorm": 3.0, "norm=rmsnorm": 2.0, "norm=dyt": 3.5}
    runs = []
    for norm, curve in CURVES.items():
        runs += several(
            tmp_path / norm, {norm: [finals[norm], finals[norm] + 0.1, finals[norm]]}, curve=curve
        )
    return build_report(runs)


def test_twice_as_steep_a_curve_reaches_it_in_half_of_the_steps_and_a_flatter_one_never(report):
    by_title = {row.title: reach(row) for row in report.rows}
    assert by_title["layernorm"] is None  # the baseline
    assert by_title["rmsnorm"].steps.n == by_title["rmsnorm"].pairs == 3
    assert by_title["rmsnorm"].steps.mean == pytest.approx((500 + 450 + 500) / 3)
    assert by_title["rmsnorm"].seconds.mean == pytest.approx(
        by_title["rmsnorm"].steps.mean / 10
    )  # ten steps a second
    assert (by_title["dyt"].pairs, by_title["dyt"].steps.n) == (3, 0)


def test_a_curve_on_other_windows_is_not_compared(tmp_path):
    losses = {"norm=layernorm": [3.0, 3.1], "norm=none train.eval_windows=16": [2.0, 2.1]}
    [_, row] = build_report(several(tmp_path, losses, curve={500: {"val/loss": 2.5}})).rows
    assert (row.title, reach(row)) == ("none", None)


def test_the_table_says_so(report):
    column = {row["norm"]: row["steps to baseline"] for row in cells(report)}
    assert column["layernorm"] == "1,000"  # the length of its runs
    assert column["rmsnorm"].startswith("483 ± ")
    assert column["dyt"] == "reached by 0 of 3"


def test_losses_of_tokens_are_perplexities_too_and_those_of_characters_are_not(tmp_path):
    facts = {"fingerprint": "f" * 64, "train_tokens": 4_000_000, "val_tokens": 400_000}
    for size, cell in ((50257, "7.39"), (74, None)):
        runs = several(
            tmp_path / str(size),
            {"norm=layernorm data.tokenizer=bpe": [2.0]},
            data=facts | {"vocab_size": size},
        )
        [row] = cells(build_report(runs))
        assert row.get("perplexity") == cell


def test_curves_against_operations_are_those_of_the_size_of_the_model(tmp_path):
    curve = CURVES["norm=layernorm"]
    [small] = several(tmp_path / "4", {"model.n_layer=4": [3.0]}, curve=curve)
    [large] = several(tmp_path / "8", {"model.n_layer=8": [3.0]}, curve=curve)
    n, d, block, vocab = small.config["model.n_layer"], 128, small.config["model.block_size"], 74
    assert small.config["model.n_embd"] == d
    assert operations_per_token(small) == 6 * (12 * n * d**2 + vocab * d) + 12 * n * d * block
    rows = curves({"large": build_report([large]).rows[0].group}, "val/loss")
    assert rows[-1]["operations"] == pytest.approx(rows[-1]["tokens"] * operations_per_token(large), rel=1e-4)


def test_the_curve_of_a_mean_over_a_key_has_the_noise_of_the_seeds_and_the_mean_of_the_sizes(tmp_path):
    """The difference between the depths was once a part of the interval."""
    losses = {"model.n_layer=2": [3.0, 3.01, 3.02, 9.0], "model.n_layer=4": [2.0, 2.01, 2.02]}
    runs = several(tmp_path, losses, curve=CURVES["norm=layernorm"])
    row = build_report(runs, over=["model.n_layer"]).rows[0]
    last = curves({"all": row.group}, "val/loss")[-1]
    assert [last["low"], last["mean"], last["high"]] == pytest.approx(
        [row.loss.low, row.loss.mean, row.loss.high], rel=1e-4
    )
    sizes = [operations_per_token(runs[i]) for i in (0, -1)]
    assert last["operations"] == pytest.approx(last["tokens"] * sum(sizes) / 2, rel=1e-4)
    others = [run for run in runs if run.seed < 2 or run.config["model.n_layer"] == 2]
    apart = [run for run in others if (run.seed < 2) == (run.config["model.n_layer"] == 4)]
    row.group.runs = apart  # no seed has both depths
    assert curves({"all": row.group}, "val/loss") == []


def test_a_mean_over_a_key_has_several_runs_of_a_seed_and_is_not_said_to_reach_anything(tmp_path):
    runs = []
    for norm, curve in CURVES.items():
        for layers in (2, 4):
            parent = tmp_path / norm / str(layers)
            runs += several(parent, {f"{norm} model.n_layer={layers}": [3.0, 3.1, 3.0]}, curve=curve)
    assert [reach(row) for row in build_report(runs, over=["model.n_layer"]).rows] == [None] * 3
