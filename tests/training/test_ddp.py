"""Several ranks train the same run as a single process does."""

import signal
from pathlib import Path

import pytest

from data.prepared import prepare
from tests.conftest import TINY, daily
from tests.helpers import rank_program
from tests.helpers.programs import succeed
from tests.helpers.runs import rows_without_clocks
from training import checkpoint, device
from training.batches import Batches
from training.ddp import Ranks
from training.run_folder import read_json

MORE = ("train.steps=50", "train.batch_size=8", "train.eval_every=25", "model.dropout=0", "stats=all")
OWN_STATISTICS = """
import torch
from torch import nn


class OwnRank(nn.Module):  # divides by a running size of its own rank's rows
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.register_buffer("size", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.size.lerp_(x.detach().square().mean().sqrt(), 0.5)
        return x / self.size * self.weight
"""


@pytest.fixture
def arguments(text_file):
    return [*TINY, *MORE, "data=text", f"data.path={text_file}"]


@pytest.fixture
def folders(tmp_path):
    """Two empty folders: of one process, and of several ranks."""
    for folder in (both := (tmp_path / "alone", tmp_path / "shared")):
        folder.mkdir()
    return both


def rows_of(folder: Path) -> list[dict]:
    [run] = folder.glob("runs/*-*")
    return rows_without_clocks(run)


def assert_alike(rows: list[dict], expected_rows: list[dict], rel: float = 1e-4) -> None:
    """Compare all numbers of two runs' rows; of leaks, only whether they are 0."""
    assert [row["step"] for row in rows] == [row["step"] for row in expected_rows]
    for row, expected in zip(rows, expected_rows, strict=True):
        assert row.keys() == expected.keys()
        for key, value in row.items():
            if isinstance(value, dict):
                assert sum(value["counts"]) == sum(expected[key]["counts"])
            elif key.startswith("leak."):
                assert (value == 0) == (expected[key] == 0)
            else:
                assert value == pytest.approx(expected[key], rel=rel, abs=1e-6), (row["step"], key)


def statuses(ended: list[tuple[int, str, str]]) -> list[int]:
    return [status for status, _, _ in ended]


@pytest.mark.parametrize("norm", daily(("batchnorm", "layernorm", "torch_layernorm", "none")))
def test_two_ranks_train_the_run_of_one_process_which_only_the_first_reports(arguments, folders, norm):
    arguments = [*arguments, f"norm={norm}", "train.grad_accum=2"]
    alone, shared = folders
    succeed("train.py", *arguments, cwd=alone)
    for times in range(2):
        ended = rank_program.trained(2, *arguments, cwd=shared)
        assert statuses(ended) == [0, 0]
        assert ("nothing left to do" in ended[0][1]) == (times == 1)
        assert all(output == "" and errors == "" for _, output, errors in ended[1:])
    assert_alike(rows_of(shared), rows_of(alone))


def test_each_rank_and_micro_batch_has_its_own_dropout_masks(tiny):
    config = tiny("train.grad_accum=2")
    tokens, compute = prepare(**config.data.model_dump()), device.choose("cpu", "fp32")
    ranks = [Batches(config, tokens, compute, Ranks(rank, 2)) for rank in (0, 1)]
    assert len({batch.dropout_seed for batches in ranks for batch in batches.micro_batches(0)}) == 4


@pytest.mark.slow
def test_a_run_is_resumed_by_more_ranks_and_by_fewer(arguments, folders):
    arguments = [*arguments, "norm=batchnorm", "train.checkpoint_every=5", "train.steps=200"]
    alone, shared = folders
    succeed("train.py", *arguments, cwd=alone)
    for count, stop_at in ((1, 5), (2, 20)):
        programs = rank_program.started(count, *arguments, cwd=shared)
        programs[0].until(
            lambda: any(
                checkpoint.saved_steps(run / "checkpoints")[-1:] >= [stop_at]  # noqa: B023
                for run in shared.glob("runs/*")
            )
        )
        programs[-1].send_signal(signal.SIGTERM)  # one rank receives the signal, all ranks end
        assert [program.wait() for program in programs] == [128 + signal.SIGTERM] * count
    last = succeed("train.py", *arguments, cwd=shared)
    assert "ranks 2 → 1" in last.stdout
    assert_alike(rows_of(shared), rows_of(alone), rel=1e-3)


@pytest.mark.slow
def test_evaluation_changes_nothing_though_a_norm_has_statistics_of_its_own_rank(
    arguments, folders, tmp_path
):
    (tmp_path / "own.py").write_text(OWN_STATISTICS)
    losses = []
    for every, folder in zip((0, 5), folders, strict=True):
        more = ("norm=none", "norm._target_=own.OwnRank", f"train.eval_every={every}", "train.steps=20")
        ended = rank_program.trained(2, *arguments, *more, cwd=folder, PYTHONPATH=str(tmp_path))
        assert statuses(ended) == [0, 0], ended
        losses.append([row["train/loss"] for row in rows_of(folder) if "train/loss" in row])
    assert losses[0] == losses[1]


MISTAKES = {
    "norm=nonorm": "norm: there is no 'nonorm'",
    "train.batch_size=5": "cannot be shared by 2 ranks",
    "device=cuda:1": "is one GPU for 2 ranks",
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_every_rank_and_leaves_no_folder(arguments, tmp_path, mistake):
    ended = rank_program.trained(2, *arguments, mistake, cwd=tmp_path)
    assert 0 not in statuses(ended)
    assert any(MISTAKES[mistake] in errors for *_, errors in ended)  # another may only see that one has ended
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_norm_that_mixes_the_rows_of_ranks_leaks_also_where_each_has_one(arguments, tmp_path):
    settings = [*arguments, "norm=batchnorm_position", "train.batch_size=2", "train.steps=2"]
    assert statuses(rank_program.trained(2, *settings, cwd=tmp_path)) == [0, 0]
    [run] = (tmp_path / "runs").glob("*-*")
    for answer in read_json(run / "certificate.json").values():
        assert answer["independent_rows"] is False
