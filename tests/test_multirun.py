"""python train.py -m: each run of a sweep is a process, of which the other runs know nothing."""

import signal

import pytest

from tests.conftest import TINY, TRAIN
from tests.helpers.contract import check_one_line, error_lines
from tests.helpers.own_norm import write_norm
from tests.helpers.programs import Program
from training.run_folder import read_json, read_status

SWEEP = ("-m", "data.cache=cache", "data=text", 'data.path="my, text.txt"', *TINY)


@pytest.fixture
def text(text_file):
    text_file.rename(text_file.parent / "my, text.txt")


def run_folders(folder):
    return sorted(file.parent for file in folder.glob("runs/*/status.json"))


@pytest.mark.slow
def test_a_sweep_trains_what_its_commands_alone_would_and_goes_on_where_one_fails(text, command, tmp_path):
    write_norm(tmp_path, "raises", "raise KeyError('boo')")
    words = ("--config-dir", ".", "norm=layernorm,raises", "seed=0,1", "hydra.launcher.n_jobs=2")
    done = command("train.py", *SWEEP, *words, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "4 runs: 4 to do, 2 at once" in done.stdout
    failed = [line for line in done.stderr.splitlines() if line.startswith("raises-pre-s")]
    assert len(failed) == 2
    assert all("KeyError: 'boo'" in line and ".sweep/raises-pre-s" in line for line in failed)
    [error] = error_lines(done.stderr)
    assert "2 of 4 failed" in error
    folders = run_folders(tmp_path)
    assert [folder.name.rpartition("-")[0] for folder in folders] == ["layernorm-pre-s0", "layernorm-pre-s1"]
    for folder in folders:
        assert f"{folder.name}  {read_status(folder)['final']:.4f}" in done.stdout
        assert (tmp_path / "runs" / ".sweep" / f"{folder.name}.log").exists()
    alone = command("train.py", "seed=1", *SWEEP[1:])  # the same name by itself: nothing is left to do
    assert f"{folders[1].name}: finished" in alone.stdout
    assert "nothing left to do" in alone.stdout


@pytest.mark.slow
def test_ctrl_c_saves_the_runs_and_the_same_command_completes_them(text, tmp_path):
    words = ("seed=0,1", "hydra.launcher.n_jobs=2", "train.checkpoint_every=20", "train.steps=100000")
    with Program("train.py", *SWEEP, *words, cwd=tmp_path) as program:
        program.until(lambda: len({file.parent for file in tmp_path.glob("runs/*/checkpoints/*.s*")}) == 2)
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate()
    assert program.returncode == 128 + signal.SIGINT
    assert not error_lines(errors)
    statuses = [read_status(folder) for folder in run_folders(tmp_path)]
    assert [status["state"] for status in statuses] == ["interrupted"] * 2
    assert all(status["saved"] == status["step"] > 0 for status in statuses)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("seed=0,1 model.n_head=2,3", "model.n_embd: 16 is not divisible by n_head=3"),
        ("seed=0,1 runs_dir=a,b", "runs_dir: a sweep has one folder"),
    ],
)
def test_what_cannot_run_is_refused_before_any_run_begins(text, command, tmp_path, words, error):
    check_one_line(command("train.py", *SWEEP, *words.split()), error)
    assert not run_folders(tmp_path)


@pytest.mark.slow
def test_the_defaults_sweep_too(succeed, text_file, tmp_path):
    """precision=auto, n_jobs by the machine, a preset that sets threads."""
    small = [word for word in TRAIN if not word.startswith(("precision", "device", "train.threads"))]
    words = ("norm=none,layernorm", "experiment=finding", "wandb.mode=disabled", "train.threads=2,1")
    done = succeed("train.py", "-m", *small, *words)
    assert "2 of 4 jobs repeat a run: they differ only in settings that do not change a run" in done.stdout
    assert "2 runs: 2 to do" in done.stdout
    folders = run_folders(tmp_path)
    assert [read_json(folder / "environment.json")["threads"] for folder in folders] == [1, 1]
