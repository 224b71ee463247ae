"""The command that a sweep prints compares its runs, whatever else is in their folder."""

import shlex
from pathlib import Path

import pytest

from comparison import commands
from comparison.comparable import check_comparable
from comparison.find import find_runs
from comparison.groups import select
from comparison.load import load
from comparison.roles import by_role
from tests.helpers.fair_runs import role
from tests.helpers.run_folders import made


def compared_by(command: str) -> set[Path]:
    """Return the runs that a command compares."""
    python, program, folder, *options = shlex.split(command)
    assert (python, program) == ("python", "compare.py")
    runs = [load(run)[0] for run in find_runs([folder]) if run.name != "no run"]
    for option, condition in zip(options[::2], options[1::2], strict=True):
        assert option == "--where"
        runs = select(runs, condition)
    runs = by_role(runs).compared
    check_comparable(runs, "val/full_loss")
    return {run.folder for run in runs}


@pytest.mark.parametrize(
    "others",
    [
        ("train.steps=10",),
        ("train.steps=10", "model.block_size=32", "train.batch_size=99"),
        ("data=text data.path=other.txt",),
    ],
)
def test_runs_of_another_length_or_text_are_left_out(tmp_path, others):
    sweep = {made(tmp_path, f"norm={norm}", "train.steps=20") for norm in ("layernorm", "none")}
    trial = {"roles": [role("trial", "a tuning")]}
    trials = {made(tmp_path, f"norm={norm}", "train.steps=5", **trial) for norm in ("layernorm", "none")}
    for other in others:
        made(tmp_path, "train.steps=20", "norm=dyt", *other.split())
    (tmp_path / "no run").mkdir()
    assert compared_by(commands.compare(sweep | trials)) == sweep


def test_runs_of_the_same_length_and_text_stay_in(tmp_path):
    sweep, other = {made(tmp_path, "norm=none")}, {made(tmp_path, "norm=dyt")}
    assert commands.compare(sweep) == f"python compare.py {tmp_path}"
    assert compared_by(commands.compare(sweep)) == sweep | other


def test_a_sweep_over_lengths_and_one_whose_runs_are_damaged_have_a_command_too(tmp_path):
    lengths = {made(tmp_path, f"train.steps={steps}") for steps in (10, 20)}
    assert commands.compare(lengths) == f"python compare.py {tmp_path}"
    for run in lengths:
        (run / "config.yaml").write_text("damaged: {}")
    assert commands.compare(lengths) == f"python compare.py {tmp_path}"
