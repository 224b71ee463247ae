"""R11: processes that prepare data or begin runs at the same moment do not disturb each other. (R9, a sweep
with bad jobs: tests/sweep/test_runner.py.)"""

import os
import random
import time
from pathlib import Path

import pytest

from data.token_files import load
from rundir import checkpoint_file
from system import signals
from tests.conftest import LETTERS, TRAIN, daily
from tests.helpers import programs
from tests.helpers.killed import end_of


def together(folder: Path, number: int, *more: str) -> list[tuple[int, str]]:
    """Start runs of different seeds at once. Return the exit status and stderr of each."""
    (folder / "text.txt").write_text(LETTERS * 50, encoding="utf-8")
    common = ("train.py", *TRAIN, "train.steps=0")
    started = [programs.Program(*common, f"seed={seed}", *more, cwd=folder) for seed in range(number)]
    errors = [process.communicate()[1] for process in started]
    return [(process.wait(), err) for process, err in zip(started, errors, strict=True)]


@pytest.mark.parametrize("number", daily([3, 20]))
def test_processes_that_prepare_one_text_at_once_end_with_one_dataset_and_a_run_each(
    tmp_path, number, record_property
):
    assert together(tmp_path, number, "data.tokenizer=bpe") == [(0, "")] * number
    assert len([*(tmp_path / "cache").iterdir()]) == 1
    assert len([*tmp_path.glob("runs/*-s*")]) == number
    record_property("R11 processes that prepared one text at once, a run folder each", number)


@pytest.mark.slow
def test_an_old_unfinished_preparation_is_removed_and_a_new_one_is_not(tmp_path):
    cache = tmp_path / "cache"
    for name in (".preparing-old", ".preparing-new"):
        (cache / name).mkdir(parents=True)
        (cache / name / "train.bin").write_bytes(bytes(100))
    os.utime(cache / ".preparing-old", (0, 0))
    assert together(tmp_path, 1) == [(0, "")]
    assert [folder.name for folder in cache.glob(".*")] == [".preparing-new"]


@pytest.mark.slow
def test_a_preparation_that_is_killed_leaves_nothing_that_is_used(tmp_path):
    text = LETTERS * 300
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    arguments = ("train.py", *TRAIN, "train.steps=0", "data.val_fraction=0.001", "data.tokenizer=bpe")
    draw, cache, killed = random.Random(0), tmp_path / "cache", 0
    while not (complete := [*cache.glob("text-*")]):
        with programs.Program(*arguments, cwd=tmp_path) as process:
            while process.poll() is None and not cache.exists():  # the first moments are Hydra's
                time.sleep(0.001)
            time.sleep(draw.random() * 0.02 * (1 + killed))
            process.kill()
            assert process.wait() in (0, -9)
            killed += process.returncode == -9
    assert killed
    prepared = load(complete[0], verify=True)
    decoded = b"".join(prepared.tokenizer.decode(split) for split in (prepared.train, prepared.val))
    assert decoded == text.encode()
    assert programs.run(*arguments, cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("number", daily(signals.SIGNALS))
def test_a_signal_while_it_prepares_ends_it_with_its_status(tmp_path, text_file, number):
    slow = "tests/faults/controls/slow_to_prepare.py"
    with programs.Program(slow, *TRAIN, "data.tokenizer=bpe", cwd=tmp_path) as process:
        assert process.stdout.readline() == "preparing\n"
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    assert [*tmp_path.glob("cache/text-*"), *tmp_path.glob("runs/*")] == []


@pytest.mark.slow
def test_one_command_begun_many_times_at_once_is_one_run(tmp_path, text_file, record_property):
    common = ("train.py", *TRAIN, "train.steps=20")
    started = [programs.Program(*common, cwd=tmp_path) for _ in range(8)]
    ends = [(process.communicate()[1], process.returncode) for process in started]
    for err, code in ends:
        assert code == 0 or (code == 1 and "is training this run" in err)
    assert any(code == 0 for _, code in ends)
    assert "nothing left to do" in programs.run(*common, cwd=tmp_path).stdout
    checkpoint_file.load(end_of(tmp_path))
    record_property("R11 times that one command was begun at once, one run", len(ends))
