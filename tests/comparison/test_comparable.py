"""Runs of other data, contexts and lengths are not compared."""

import pytest

from comparison.comparable import check_comparable
from comparison.groups import ComparisonError
from tests.comparison.runs import several

METRIC = "val/full_loss"


def test_other_data_lengths_and_contexts_are_not_compared_and_the_difference_is_named(tmp_path):
    runs = several(tmp_path, {"train.steps=10": [2.0], "train.steps=20": [2.0, 2.0]})
    with pytest.raises(
        ComparisonError, match=r"differ in tokens trained on: .*\(1 of 3 runs\).*--where train.steps=20"
    ):
        check_comparable(runs, METRIC)
    other = several(tmp_path / "b", {"seed=0": [2.0]}, data={"fingerprint": "e" * 64, "train_tokens": 9})
    with pytest.raises(ComparisonError, match="the fingerprint of the tokens"):
        check_comparable([*several(tmp_path / "a", {"seed=0": [2.0]}), *other], METRIC)
    contexts = {"model.block_size=32 train.batch_size=64": [2.0], "model.block_size=64": [2.0]}
    with pytest.raises(ComparisonError, match="the context that is evaluated"):
        check_comparable(several(tmp_path / "c", contexts), METRIC)
    windows = several(tmp_path / "d", {"train.eval_windows=8": [2.0], "train.eval_windows=9": [2.0]})
    check_comparable(windows, METRIC)
    with pytest.raises(ComparisonError, match="train.eval_windows"):
        check_comparable(windows, "val/loss")
