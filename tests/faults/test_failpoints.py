"""R2: if a run dies at any file-system call of a save or a prune, its newest checkpoint is that of this save
or the one before, undamaged, and the run is resumed to the same bits."""

import itertools
from pathlib import Path

import pytest

from rundir import checkpoint_file
from tests.conftest import LETTERS, TRAIN
from tests.helpers import programs
from tests.helpers.killed import end_of
from tests.helpers.runs import same_tensors

EVERY = 3
RUN = (*TRAIN, "train.steps=12", f"train.checkpoint_every={EVERY}", "train.eval_every=0")
DYING = "tests/faults/controls/dying.py"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> tuple[Path, list[str]]:
    """A run that does not die, and its calls."""
    folder = in_a_folder(tmp_path_factory.mktemp("uninterrupted"))
    done = programs.succeed(DYING, *RUN, cwd=folder)
    return folder, done.stdout.partition("calls:\n")[2].splitlines()


def in_a_folder(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    return folder


def saves(calls: list[str]) -> list[list[str]]:
    """Return the calls of each save; the first of each is safetensors' own."""
    starts = [i for i, call in enumerate(calls) if "save_file" in call] + [len(calls)]
    return [calls[start:end] for start, end in itertools.pairwise(starts)]


def check_death_at(number: int, after: bool, folder: Path, uninterrupted: Path, calls: list[str]) -> None:
    in_a_folder(folder)
    environ = {"DIE_AT": str(number)} | ({"DIE_AFTER": "1"} if after else {})
    assert programs.run(DYING, *RUN, cwd=folder, **environ).returncode == -9
    save = sum("save_file" in call for call in calls[:number])  # the first is 1
    [run] = (folder / "runs").iterdir()
    newest = checkpoint_file.newest(run / "checkpoints", run.name)
    assert (newest.meta.step if newest else 0) in (EVERY * save, EVERY * (save - 1))
    assert not [*run.glob("checkpoints/*unusable*")]  # nothing was damaged
    programs.succeed("train.py", *RUN, cwd=folder)
    tensors, expected = (checkpoint_file.load(end_of(path)).tensors for path in (folder, uninterrupted))
    assert same_tensors(tensors, expected)
    assert [file.name for file in run.rglob("*") if ".tmp" in file.name] == []


def test_a_file_is_synced_then_renamed_then_its_folder_synced_then_older_ones_are_removed(uninterrupted):
    _, calls = uninterrupted
    for save in saves(calls):
        order = [call.split()[0] for call in save]
        temporary = save[0].split()[1]
        synced, renamed = save.index(f"os.fsync {temporary}"), order.index("os.replace")
        folder_synced = save.index("os.fsync checkpoints")
        assert save[0] == f"safetensors.save_file {temporary}"
        assert 0 < synced < renamed < folder_synced
        removed = [i for i, name in enumerate(order) if name == "os.unlink"]
        assert all(i > folder_synced for i in removed)
    assert "os.unlink" in order  # there was something to remove


@pytest.mark.slow
def test_a_run_that_dies_at_a_call_of_its_third_save_is_resumed_to_the_same_bits(uninterrupted, tmp_path):
    folder, calls = uninterrupted
    first = len([call for save in saves(calls)[:2] for call in save])
    for i in range(1, len(saves(calls)[2]) + 1, 4):
        check_death_at(first + i, False, tmp_path / str(i), folder, calls)


@pytest.mark.faults
@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_dies_at_any_call_is_resumed_to_the_same_bits(
    uninterrupted, tmp_path, after, record_property
):
    folder, calls = uninterrupted
    for number in range(1, len(calls) + 1):
        check_death_at(number, after, tmp_path / str(number), folder, calls)
    record_property(
        f"R2 deaths {'after' if after else 'before'} a file-system call, all survived", len(calls)
    )
