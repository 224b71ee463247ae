"""Several ranks train the same run as a single process does."""

import signal
from pathlib import Path

import pytest

from data.prepared import prepare
from tests.conftest import TINY, configured, daily
from tests.helpers import rank_program
from tests.helpers.programs import succeed
from tests.helpers.runs import rows_without_clocks, train_anew
from training import checkpoint, device
from training.batches import Batches
from training.ddp import Ranks
from training.run_folder import read_json

MORE = ("train.steps=12", "train.batch_size=8", "train.eval_every=6", "model.dropout=0", "stats=all")


@pytest.fixture
def arguments(text_file, tmp_path):
    return [*TINY, *MORE, "data=text", f"data.path={text_file}", f"data.cache={tmp_path}/cache"]


@pytest.fixture
def alone(arguments, tmp_path):
    """Return a function that trains a run in this process: overrides -> its rows."""
    runs_dir = f"runs_dir={tmp_path}/alone"
    return lambda *more: rows_without_clocks(train_anew(configured(*arguments, *more, runs_dir)))


def rows_of(folder: Path) -> list[dict]:
    [run] = folder.glob("runs/*-*")
    return rows_without_clocks(run)


def assert_alike(rows: list[dict], expected_rows: list[dict], rel: float = 1e-4) -> None:
    """Compare all numbers of two runs' rows; of leaks, only whether they are 0."""
    for row, expected in zip(rows, expected_rows, strict=True):
        assert row.keys() == expected.keys()
        for key, value in row.items():
            if isinstance(value, dict):
                assert sum(value["counts"]) == sum(expected[key]["counts"])
            elif key.startswith("leak."):
                assert (value == 0) == (expected[key] == 0)
            else:
                assert value == pytest.approx(expected[key], rel=rel, abs=1e-6), (row["step"], key)


@pytest.mark.parametrize("norm", daily(("batchnorm", "layernorm")))
def test_two_ranks_train_the_run_of_one_process_which_only_the_first_reports(
    arguments, alone, tmp_path, norm
):
    words = (f"norm={norm}", "train.grad_accum=2")
    first, second = rank_program.trained(2, *arguments, *words, cwd=tmp_path)
    assert (first[0], second) == (0, (0, "", "")), (first, second)
    assert "finished" in first[1]
    assert_alike(rows_of(tmp_path), alone(*words))


def test_each_rank_and_micro_batch_has_its_own_dropout_masks(tiny):
    config = tiny("train.grad_accum=2")
    tokens, compute = prepare(**config.data.model_dump()), device.choose("cpu", "fp32")
    ranks = [Batches(config, tokens, compute, Ranks(rank, 2)) for rank in (0, 1)]
    assert len({batch.dropout_seed for batches in ranks for batch in batches.micro_batches(0)}) == 4


@pytest.mark.slow
def test_a_run_is_resumed_by_more_ranks_and_by_fewer(arguments, alone, tmp_path):
    words = ("norm=batchnorm", "train.checkpoint_every=5", "train.steps=200")
    for count, stop_at in ((1, 5), (2, 20)):
        programs = rank_program.started(count, *arguments, *words, cwd=tmp_path)
        programs[0].until(
            lambda: any(
                checkpoint.saved_steps(folder)[-1:] >= [stop_at]  # noqa: B023
                for folder in tmp_path.glob("runs/*/checkpoints")
            )
        )
        programs[-1].send_signal(signal.SIGTERM)  # one rank receives the signal, all ranks end
        assert [program.wait() for program in programs] == [128 + signal.SIGTERM] * count
    assert "ranks 2 → 1" in succeed("train.py", *arguments, *words, cwd=tmp_path).stdout
    assert_alike(rows_of(tmp_path), alone(*words), rel=1e-3)


@pytest.mark.slow
def test_a_mistake_ends_every_rank_and_leaves_no_folder(arguments, tmp_path):
    for mistake, line in {
        "train.batch_size=5": "cannot be shared by 2 ranks",
        "device=cuda:1": "is one GPU for 2 ranks",
    }.items():
        ended = rank_program.trained(2, *arguments, mistake, cwd=tmp_path)
        assert all(status for status, *_ in ended)
        assert any(line in errors for *_, errors in ended)  # another may only see that one has ended
        assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_norm_that_mixes_the_rows_of_ranks_leaks_also_where_each_has_one(arguments, tmp_path):
    words = ("norm=batchnorm_position", "train.batch_size=2", "train.steps=2")
    rank_program.trained(2, *arguments, *words, cwd=tmp_path)
    [certificate] = tmp_path.glob("runs/*/certificate.json")
    assert [answer["independent_rows"] for answer in read_json(certificate).values()] == [False, False]
