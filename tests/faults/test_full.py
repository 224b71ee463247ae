"""R7, R12: a disk that is full and memory that is not there are one line, and what was there stays."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rundir import checkpoint_file
from system.errors import ConfigError
from tests.conftest import LETTERS, TRAIN, daily
from tests.helpers import programs
from tests.helpers.contract import check_refused
from tests.helpers.runs import train_anew


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A disk of ``size`` bytes."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_without_room_for_the_tokens_is_one_line_and_no_half_of_them_is_used(tmp_path):
    (tmp_path / "text.txt").write_text(LETTERS * 50, encoding="utf-8")
    with small_disk(tmp_path / "disk", 100_000) as disk:
        done = programs.run("train.py", *TRAIN, f"data.cache={disk}/cache", cwd=tmp_path)
        check_refused(done, "data.cache", "No space left")
        assert [*(disk / "cache").iterdir()] == []


def test_a_disk_that_fills_up_is_one_line_and_the_checkpoint_before_is_good(tmp_path, text_file):
    long = ("train.steps=1000000", "train.checkpoint_every=5", "train.eval_every=0")
    with small_disk(tmp_path / "disk", 6_000_000) as disk:
        arguments = (*TRAIN, *long, f"runs_dir={disk}/runs")
        with programs.Program("train.py", *arguments, cwd=tmp_path) as process:
            process.until(lambda: len(programs.saved(disk)) > 1)
            free = shutil.disk_usage(disk).free
            with (disk / "others").open("wb") as others, contextlib.suppress(OSError):
                others.write(bytes(free + 2**20))  # somebody else's file takes the rest
            out, err = process.communicate()
        check_refused(subprocess.CompletedProcess((), process.returncode, out, err), str(disk))
        [run] = (disk / "runs").iterdir()
        saved = checkpoint_file.saved_steps(run / "checkpoints")
        assert saved
        for step in saved:
            checkpoint_file.load(checkpoint_file.path_of(run / "checkpoints", step))
        assert [file for file in run.rglob("*") if ".tmp" in file.name] == []
        (disk / "others").unlink()
        with programs.Program("train.py", *arguments, cwd=tmp_path) as again:
            assert any(f"resuming from step {saved[-1]:,}" in line for line in again.stdout)


@pytest.mark.parametrize("checkpoints", daily([0.5, 1.5, 2.5], others="slow"))
def test_a_small_disk_is_refused_before_the_first_step_or_holds_all(tmp_path, text_file, checkpoints):
    with small_disk(tmp_path / "disk", int(checkpoints * 1_150_000)) as disk:
        more = (f"runs_dir={disk}/runs", "train.eval_every=0", "train.checkpoint_every=2")
        done = programs.run("train.py", *TRAIN, *more, cwd=tmp_path)
        check_refused(done, "disk/runs", "bytes free", "need")
        assert [*disk.rglob("*.json")] == []
        more = (f"runs_dir={disk}/runs", "train.eval_every=0", "train.checkpoint_every=0")  # one alone
        done = programs.run("train.py", *TRAIN, *more, cwd=tmp_path)
        assert done.returncode == (checkpoints < 1), done.stderr


@pytest.mark.slow
def test_a_model_that_does_not_fit_into_memory_is_said_before_anything_is_written(tmp_path, text_file):
    sizes = ("batch_size=", "grad_accum=", "block_size=", "n_embd=")
    by_arithmetic = ("model: about ", "GB of memory", "n_embd")  # for no machine
    cases = {"model.n_embd=6000": sizes, "model.n_embd=3000000": by_arithmetic}
    for rows in (3_000_000, 2**40):
        cases[f"train.batch_size={rows} model.n_embd=512"] = sizes
    for large, words in cases.items():
        done = programs.run("train.py", *TRAIN, *large.split(), cwd=tmp_path, TEST_MEMORY=str(2**30))
        check_refused(done, "memory", *words)
        assert not (tmp_path / "runs").exists()


def test_an_evaluation_that_does_not_fit_is_said_before_the_first_step(tiny, monkeypatch):
    """An evaluation's batches can have more rows than a micro-batch, so it can run out of memory where
    training does not."""
    original = torch.nn.functional.cross_entropy

    def cross_entropy(logits, targets):
        if torch.is_inference_mode_enabled():
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
        return original(logits, targets)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", cross_entropy)
    config = tiny("train.eval_every=0")
    with pytest.raises(ConfigError, match="out of memory at batch_size=4 grad_accum=1"):
        train_anew(config)
    assert not Path(config.runs_dir).exists()
