"""R13: 10,000 steps take no more memory, files or checkpoints than 500. And a text of one line of 200 MB."""

import json
import time

import psutil
import pytest

from rundir import checkpoint_file
from tests.conftest import LETTERS, TRAIN
from tests.helpers import programs


@pytest.mark.faults
def test_a_line_of_200_mb_is_a_text(tmp_path, record_property):
    """In six times its size and half a gigabyte."""
    line = LETTERS.replace("\n", " ")
    size = 200_000_000
    (tmp_path / "text.txt").write_text((line * (size // len(line) + 1))[:size], encoding="utf-8")
    more = ("train.steps=0", "data.val_fraction=0.0001")
    done = programs.succeed("train.py", *TRAIN, *more, cwd=tmp_path)
    record_property("D17 a line of 200 MB, memory at most, GB", f"{done.peak / 1e9:.2f}")
    assert done.peak <= 6 * size + 5e8


@pytest.mark.faults
def test_10000_steps(tmp_path, text_file, record_property):
    every = ("train.log_every=10", "train.eval_every=100", "train.checkpoint_every=50", "stats.every=50")
    seen = []  # step, bytes of memory, open files, checkpoints
    with programs.Program("train.py", *TRAIN, "train.steps=10000", *every, cwd=tmp_path) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            texts = [file.read_text() for file in tmp_path.glob("runs/*/metrics.jsonl")]
            lines = "".join(texts).splitlines()
            step = json.loads(lines[-2])["step"] if len(lines) > 1 else 0  # the last may not be whole
            try:
                memory, files = watched.memory_info().rss, watched.num_fds()
            except psutil.Error:
                break
            seen.append((step, memory, files, len(programs.saved(tmp_path))))
            time.sleep(0.5)
        assert process.wait() == 0
    later = [row for row in seen if row[0] >= 500]
    assert len(later) > 5
    half = len(later) // 2
    growth = max(row[1] for row in later[half:]) / max(row[1] for row in later[:half]) - 1
    record_property(
        "R13 growth of memory from the first half of 10,000 steps to the second, %", f"{100 * growth:.2f}"
    )
    opened = [row[2] for row in later]
    record_property("R13 open files at most", max(opened))
    record_property("R13 checkpoints kept at most", max(row[3] for row in later))
    assert growth <= 0.05
    assert max(opened[half:]) <= max(opened[:half]) + 1  # one is open while a checkpoint is written
    assert max(row[3] for row in later) <= checkpoint_file.KEEP + 2  # the best, and one that is being removed
