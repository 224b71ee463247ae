"""A run that was stopped, however and however often, ends with the bits of an uninterrupted run.
(At random moments: tests/faults/test_kill.py and test_signals.py.)"""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from data import windows as data_windows
from diagnostics import causality
from rundir import checkpoint_file
from rundir.folder import Run, read_status
from rundir.run_files import read_json
from system import errors
from system import signals as system_signals
from system.errors import ConfigError
from tests.conftest import OPTIMIZERS, daily
from tests.helpers.contract import check_refused, contents
from tests.helpers.programs import Program, saved
from tests.helpers.runs import (
    QUICK,
    final_tensors,
    metric_rows,
    rows_without_clocks,
    same_tensors,
    stop_at,
    train_anew,
    train_or_resume,
    with_runs_dir,
)
from training import device
from training.timing import Clock

HARD = ("model.dropout=0.2", "train.grad_accum=2", "train.eval_every=4", "train.checkpoint_every=3")
CASES = [(norm, optim) for norm in ("layernorm", "batchnorm") for optim in OPTIMIZERS]
OTHER_NORMS = ("torch_batchnorm", "batchnorm_running", "batchnorm_position", "powernorm", "none")


# stopped by a signal in this process: at every step, in evaluations -------------------------------------

SOME_STOPS = [(signal.SIGINT, {3}), (signal.SIGTERM, {0, 5})]
EVERY_STOP = [(signal.SIGINT, {step}) for step in range(8)] + [(signal.SIGTERM, {0, 1, 2, 5, 7})]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by the compiler about torch's code
@pytest.mark.parametrize(
    ("norm", "optim", "stops", "more"),
    [
        ("batchnorm", "muon", SOME_STOPS, ()),
        pytest.param("batchnorm", "muon", EVERY_STOP, (), marks=pytest.mark.slow),
        *(pytest.param(*case, EVERY_STOP, (), marks=pytest.mark.faults) for case in CASES[:-1]),
        *(pytest.param(norm, "adamw", EVERY_STOP, (), marks=pytest.mark.faults) for norm in OTHER_NORMS),
        *(pytest.param(*case, SOME_STOPS, ("compile=true",), marks=pytest.mark.long) for case in CASES[::3]),
    ],
)
def test_stopped_after_any_step_a_run_ends_with_the_same_bits_and_rows(
    tiny, tmp_path, monkeypatch, norm, optim, stops, more
):
    config = tiny(f"norm={norm}", f"optim={optim}", *HARD, "train.steps=9", *more)
    uninterrupted = train_or_resume(config)
    for number, steps in stops:
        again = with_runs_dir(config, tmp_path / f"stopped{number}-{min(steps)}")
        with monkeypatch.context() as patch:
            stop_at(steps, number, patch)
            for step in sorted(steps):
                with pytest.raises(system_signals.Interrupted) as raised:
                    train_or_resume(again)
                assert raised.value.code == 128 + number
                [folder] = Path(again.runs_dir).iterdir()
                check_status_says(folder, number, saved=step + 1)
            assert same_tensors(final_tensors(train_or_resume(again)), final_tensors(uninterrupted))
        assert rows_without_clocks(folder) == rows_without_clocks(uninterrupted)
        ends = [read_status(run) | {"peak_memory": None} for run in (folder, uninterrupted)]
        assert ends[0] == ends[1]
    assert checkpoint_file.saved_steps(uninterrupted / "checkpoints")[-1] == 9


def check_status_says(folder: Path, number: int, saved: int) -> None:
    status, reason = read_status(folder), signal.Signals(number).name
    assert (status["state"], status["reason"], status["saved"]) == ("interrupted", reason, saved)
    evaluated = [row for row in metric_rows(folder) if "val/loss" in row and row["step"] > 0]
    best = min(evaluated, key=lambda row: row["val/loss"], default={})
    assert (status["best"] or {}) == {key: best[key] for key in ("step", "val/loss") if best}


@pytest.mark.parametrize("saved", [None, 2])
def test_no_run_is_left_running_by_a_signal_before_its_first_step(tiny, monkeypatch, saved):
    config = tiny("train.steps=3")
    if saved:
        stop_after(config, monkeypatch, saved - 1)
    monkeypatch.setattr(causality, "describe", lambda *what: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(system_signals.Interrupted):
        train_or_resume(config)
    [folder] = Path(config.runs_dir).iterdir()
    status = read_status(folder)
    assert (status["state"], status["saved"]) == ("interrupted", saved)
    assert status["reason"] == "before its first step"
    monkeypatch.undo()
    assert read_status(train_or_resume(config))["state"] == "finished"


@pytest.fixture
def number(request):
    """A signal, which this process does not ignore during the test, as it does under nohup."""
    before = signal.signal(request.param, signal.default_int_handler)
    yield request.param
    signal.signal(request.param, before)


@pytest.mark.parametrize("number", daily(system_signals.SIGNALS), indirect=True)
def test_a_signal_interrupts_an_evaluation(tiny, tmp_path, monkeypatch, number):
    config = tiny(*HARD, "train.steps=9")
    monkeypatch.setattr(device.Compute, "evaluation_rows", lambda *sizes: 4)  # several batches
    uninterrupted = train_or_resume(config)
    for split in ("fixed_windows", "whole_split"):
        windows = getattr(data_windows, split)

        def stopping(*arguments, windows=windows):
            for i, batch in enumerate(windows(*arguments)):
                assert i < 2, "the evaluation went on"
                if i == 1:
                    os.kill(os.getpid(), number)
                yield batch

        again = with_runs_dir(config, tmp_path / f"{split}{number}")
        with monkeypatch.context() as patch:
            patch.setattr(data_windows, split, stopping)
            with pytest.raises(system_signals.Interrupted):
                train_or_resume(again)
        assert same_tensors(final_tensors(train_or_resume(again)), final_tensors(uninterrupted))


def test_a_signal_interrupts_the_certificate_at_the_end(tiny, monkeypatch):
    config, certificate = tiny("train.steps=3"), causality.certificate

    def interrupted_at_the_end(*arguments, initial, **options):
        if not initial:
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("the certificate went on")
        return certificate(*arguments, initial=initial, **options)

    with monkeypatch.context() as patch:
        patch.setattr(causality, "certificate", interrupted_at_the_end)
        with pytest.raises(system_signals.Interrupted):
            train_or_resume(config)
    [folder] = Path(config.runs_dir).iterdir()
    assert (read_status(folder)["state"], read_status(folder)["saved"]) == ("interrupted", 3)
    assert read_json(folder / "certificate.json")["end"] is None
    assert read_status(train_or_resume(config))["state"] == "finished"
    assert read_json(folder / "certificate.json")["end"]["causal"] is True


def test_signal_handlers_are_restored(tiny):
    before = [signal.getsignal(number) for number in system_signals.SIGNALS]
    train_or_resume(tiny("train.steps=1"))
    assert [signal.getsignal(number) for number in system_signals.SIGNALS] == before


# damage, two processes, the command -------------------------------------------------------------------


DAMAGES = {  # (content of a checkpoint, content of the previous checkpoint) -> damaged content
    "cut in half": lambda newest, older: newest[: len(newest) // 2],
    "a flipped bit": lambda newest, older: newest[:-100] + bytes([newest[-100] ^ 1]) + newest[-99:],
    "another step's": lambda newest, older: older,
    "foreign": lambda newest, older: b"PNG, or whatever",
}


def stop_after(config, monkeypatch, step):
    """Stop the run after a step. The checkpoints in the returned folder are those of steps 6 and step + 1."""
    with monkeypatch.context() as patch:
        stop_at({step}, signal.SIGTERM, patch)
        with pytest.raises(system_signals.Interrupted):
            train_or_resume(config)
    [folder] = Path(config.runs_dir).iterdir()
    return folder


@pytest.mark.parametrize("damage", daily(DAMAGES))
def test_a_damaged_checkpoint_is_passed_over_with_one_warning_and_kept(
    tiny, tmp_path, monkeypatch, capsys, damage
):
    config = tiny(*HARD, "train.steps=9")
    uninterrupted = train_or_resume(with_runs_dir(config, tmp_path / "uninterrupted"))
    folder = stop_after(config, monkeypatch, 6)
    older, newest = (checkpoint_file.path_of(folder / "checkpoints", step) for step in (6, 7))
    damaged = DAMAGES[damage](newest.read_bytes(), older.read_bytes())
    newest.write_bytes(damaged)
    capsys.readouterr()
    assert same_tensors(final_tensors(train_or_resume(config)), final_tensors(uninterrupted))
    printed = capsys.readouterr()
    [warning] = printed.err.splitlines()
    assert warning.startswith("warning:")
    assert newest.name in warning
    assert older.name in warning
    assert "resuming from step 6 of 9" in printed.out
    assert newest.with_name(f"{newest.name}.unusable1").read_bytes() == damaged
    assert rows_without_clocks(folder) == rows_without_clocks(uninterrupted)


@pytest.mark.parametrize("damage", daily(DAMAGES))
def test_if_every_checkpoint_is_damaged_nothing_is_touched(tiny, tmp_path, monkeypatch, damage):
    config = tiny(*HARD, "train.steps=9")
    folder = stop_after(config, monkeypatch, 6)
    *_, newest = paths = sorted((folder / "checkpoints").iterdir())
    saved = [path.read_bytes() for path in paths]
    for i, path in enumerate(paths):
        path.write_bytes(DAMAGES[damage](saved[i], saved[i - 1]))
    before = contents(folder)
    with pytest.raises(errors.CheckpointError, match=f"{newest.name}: .*no older file is usable; fresh=true"):
        train_or_resume(config)
    assert contents(folder) == before
    fresh = final_tensors(train_anew(config))
    assert same_tensors(fresh, final_tensors(train_or_resume(with_runs_dir(config, tmp_path / "other"))))


def test_a_resumed_run_keeps_its_earlier_seconds_and_its_best(tiny, monkeypatch):
    config = tiny(*HARD, "train.steps=9")
    monkeypatch.setattr(Clock, "lap", lambda self: 0.5)
    folder = stop_after(config, monkeypatch, 5)
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(row | {"seconds": row["seconds"] + 1000}) + "\n" for row in metric_rows(folder))
        + "{torn"
    )
    stop_after(config, monkeypatch, 6)
    assert read_status(folder)["best"]["step"] == 4  # from before the resume; no evaluation was due since
    assert all(row["seconds"] > 1000 for row in metric_rows(folder))
    assert all(row["train/tokens_per_s"] == 4 * 8 / 0.5 for row in metric_rows(folder))


def test_starting_over_leaves_no_checkpoint_of_before(tiny, monkeypatch):
    config = tiny(*HARD, "train.steps=9")
    folder = stop_after(config, monkeypatch, 6)
    fresh = config.model_copy(update={"fresh": True})
    stop_after(fresh, monkeypatch, 1)
    assert checkpoint_file.saved_steps(folder / "checkpoints") == [2]


def test_weights_that_are_not_finite_are_not_saved_at_a_signal(tiny, monkeypatch):
    wild = ("norm=none", "optim.learning_rate=1e60", "train.eval_every=0")  # one update overflows
    batches = []
    draw = data_windows.training_batch

    def draw_and_stop(*arguments):
        batches.append(1)
        if len(batches) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return draw(*arguments)

    monkeypatch.setattr(data_windows, "training_batch", draw_and_stop)
    config = tiny(*wild, "train.steps=30", "train.log_every=100", "train.checkpoint_every=0")
    with pytest.raises(system_signals.Interrupted):
        train_or_resume(config)
    [folder] = Path(config.runs_dir).iterdir()
    assert checkpoint_file.saved_steps(folder / "checkpoints") == []
    assert read_status(folder)["saved"] is None


def test_a_run_killed_before_its_first_checkpoint_starts_over_with_a_message(tiny, tmp_path, capsys):
    config = tiny("train.steps=9")
    uninterrupted = train_or_resume(with_runs_dir(config, tmp_path / "uninterrupted"))
    folder = train_or_resume(config)
    shutil.rmtree(folder / "checkpoints")
    Run(folder, config).write_status(state="running", step=3)
    (folder / ".step.tmp").write_text("half")
    capsys.readouterr()
    train_or_resume(config)
    assert "starts over; it was running at step 3" in capsys.readouterr().out
    assert same_tensors(final_tensors(folder), final_tensors(uninterrupted))
    assert rows_without_clocks(folder) == rows_without_clocks(uninterrupted)
    assert not (folder / ".step.tmp").exists()


def test_resuming_in_another_environment_is_printed_once_and_recorded(tiny, monkeypatch, capsys):
    config = tiny(*HARD, "train.steps=9")
    folder = stop_after(config, monkeypatch, 3)
    file = folder / "environment.json"
    environment = read_json(file)
    environment["threads"] = 7
    environment["packages"]["torch"] = "1.0"
    environment["code"]["model/gpt.py"] = "other"
    file.write_text(json.dumps(environment))
    capsys.readouterr()
    stop_after(config, monkeypatch, 5)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "another environment" in line]
    assert "threads 7 → 1" in line
    assert "torch 1.0 → " in line
    assert line.endswith("changed code: model/gpt.py")
    train_or_resume(config)
    assert "another environment" not in capsys.readouterr().out
    [earlier] = read_json(file)["earlier"]
    assert earlier["threads"] == 7


@pytest.mark.slow
def test_a_second_process_is_refused_also_if_the_lock_file_was_removed(command, text_file, tmp_path):
    long = (*QUICK, "train.steps=100000", "train.checkpoint_every=10", "train.log_every=1")
    with Program("train.py", *long, cwd=tmp_path) as first:
        first.until(lambda: saved(tmp_path))
        [folder] = (tmp_path / "runs").iterdir()
        (folder / ".lock").unlink()
        line = f"error: runs/{folder.name}: process {first.pid} on "
        for more in ([], ["fresh=true"]):
            check_refused(command("train.py", *long, *more), line, "is training this run")
        first.until(lambda: b"process" in (folder / ".lock").read_bytes())  # the first has locked it again
        assert first.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["fresh=true"]])
def test_a_folder_that_is_a_link_to_another_run_is_refused(command, succeed, text_file, tmp_path, arguments):
    succeed("train.py", *QUICK)
    [other] = (tmp_path / "runs").iterdir()
    succeed("train.py", *QUICK, "seed=1")
    [mine] = (tmp_path / "runs").glob("*-s1-*")
    shutil.rmtree(mine)
    mine.symlink_to(other)
    before = contents(other)
    done = command("train.py", *QUICK, "seed=1", *arguments)
    check_refused(done, f"runs/{mine.name}: is a link to ", before=before)


def test_checkpoints_that_killed_processes_left_are_removed_when_the_run_resumes(tiny, monkeypatch):
    config = tiny("train.steps=20", "train.checkpoint_every=1")
    prune = checkpoint_file.prune
    monkeypatch.setattr(checkpoint_file, "prune", lambda *arguments: None)
    folder = stop_after(config, monkeypatch, 8)
    assert len(checkpoint_file.saved_steps(folder / "checkpoints")) == 9
    monkeypatch.setattr(checkpoint_file, "prune", prune)
    stop_after(config, monkeypatch, 9)
    assert checkpoint_file.saved_steps(folder / "checkpoints")[-2:] == [9, 10]
    assert len(checkpoint_file.saved_steps(folder / "checkpoints")) <= checkpoint_file.KEEP + 1


def test_a_folder_that_exists_is_locked_before_anything_is_built(tiny, tmp_path):
    folder, config = tmp_path / "run", tiny()
    with Run(folder, config) as new:
        assert not folder.exists()  # a run that is refused later leaves no folder
        new.claim()
        with pytest.raises(ConfigError, match=f"process {os.getpid()} on .* is training this run"):
            Run(folder, config).__enter__()
    with Run(folder, config), pytest.raises(ConfigError, match="is training this run"):
        Run(folder, config).claim()
    with Run(folder, config):
        pass


@pytest.mark.faults
def test_a_signal_ends_a_sweep_and_the_same_command_resumes_it(succeed, text_file, tmp_path):
    sweep = ("-m", *QUICK, "seed=0,1,2", "train.steps=500", "train.checkpoint_every=7")
    started = Program("train.py", *sweep, cwd=tmp_path)
    started.until(lambda: [file for file in saved(tmp_path) if "-s1-" in str(file)])
    started.send_signal(signal.SIGTERM)
    _, err = started.communicate()
    assert started.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in err
    assert len([*tmp_path.glob("runs/*-s2-*")]) == 0
    done = succeed("train.py", *sweep)
    assert "\n3 runs: 1 done before, 2 to do" in done.stdout
    assert all(read_status(folder)["state"] == "finished" for folder in tmp_path.glob("runs/layernorm-*"))
