"""R1: killed at random moments, a run has no unreadable checkpoint and ends with the same bits."""

from pathlib import Path

import pytest

from rundir import checkpoint_file
from tests.conftest import TRAIN
from tests.helpers.killed import Killed, Start, by_python, end_of, forked, until_it_ends
from tests.helpers.runs import STEPS, rows_without_clocks, same_tensors


def same_end(folder: Path, other: Path) -> bool:
    """Return whether two runs ended with the same bits and have the same rows."""
    ends = [end_of(folder), end_of(other)]
    tensors = [checkpoint_file.load(end).tensors for end in ends]
    rows = [rows_without_clocks(end.parents[1]) for end in ends]
    return same_tensors(*tensors) and rows[0] == rows[1]


def killed_until(
    tmp_path: Path, kills: int, *more: str, start: Start = forked, seconds: float
) -> tuple[Killed, int]:
    """Kill runs until they end, ``kills`` times in all. Return the kills, and how many runs did not end as
    one that was not killed."""
    arguments = ("train.py", *TRAIN, *STEPS, *more)
    uninterrupted = tmp_path / "uninterrupted"
    until_it_ends(uninterrupted, arguments, 1000, Killed())
    killed, different, runs = Killed(), 0, 0
    while killed.kills < kills:
        folder, runs = tmp_path / f"killed{runs}", runs + 1
        until_it_ends(folder, arguments, seconds, killed, start)
        different += not same_end(folder, uninterrupted)
    return killed, different


def test_a_killed_run_has_no_unreadable_checkpoint_and_ends_with_the_same_bits(tmp_path):
    killed, different = killed_until(tmp_path, 1, "norm=batchnorm", "optim=muon", seconds=1.2)
    assert (killed.unreadable, different) == ([], 0)


@pytest.mark.faults
@pytest.mark.parametrize("norm", ["layernorm", "batchnorm"])
@pytest.mark.parametrize(("start", "kills", "seconds"), [(forked, 90, 0.5), (by_python, 12, 4)])
def test_so_do_200_kills(tmp_path, norm, start, kills, seconds, record_property):
    killed, different = killed_until(tmp_path, kills, f"norm={norm}", start=start, seconds=seconds)
    record_property(f"R1 kills, {norm}, {start.__name__}", killed.kills)
    record_property(f"R1 of these, after a save, {norm}, {start.__name__}", killed.after_a_save)
    record_property("R1 steps lost by a kill, at most (a checkpoint every 3)", killed.lost)
    assert killed.lost <= 3
    record_property(f"R1 unreadable checkpoints, {norm}, {start.__name__}", len(killed.unreadable))
    record_property(f"R1 other ends, {norm}, {start.__name__}", different)
    assert (killed.unreadable, different) == ([], 0)
