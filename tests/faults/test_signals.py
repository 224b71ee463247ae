"""R6: a signal at any moment ends a run with its status, and the run is resumed to the same bits."""

import os
import random
import signal
import time

import pytest

from rundir import checkpoint_file
from rundir.folder import read_status
from system.signals import PATIENCE, SIGNALS
from tests.conftest import LETTERS, TRAIN, daily
from tests.helpers import programs
from tests.helpers.killed import end_of, forked
from tests.helpers.runs import STEPS, same_tensors

RUN = ("train.py", *TRAIN, *STEPS, "norm=batchnorm", "train.steps=400")


def stopped_at_random(folder, draw, number: int, longest: float) -> tuple[int, float]:
    """Send a run a signal at a random moment of its first ``longest`` seconds. Return its exit status and the
    seconds that it took to end."""
    with forked(*RUN, cwd=folder) as process:
        time.sleep(draw.random() * longest)
        started = time.monotonic()
        process.send_signal(number)
        code = process.wait(60)
    return code, time.monotonic() - started


def statuses(folder) -> list[dict]:
    return [status for run in folder.glob("runs/*") if (status := read_status(run))]


@pytest.mark.parametrize("program", ["train.py", "sample.py", "compare.py", "findings/__main__.py"])
def test_ctrl_c_while_a_program_imports_its_modules_ends_it_without_a_traceback(tmp_path, program):
    for module in ("pydantic", "pydantic_core"):  # which every program imports
        text = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
        (tmp_path / f"{module}.py").write_text(text)
    done = programs.from_scratch(program, cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{programs.ROOT}")
    assert (done.returncode, done.stderr, done.stdout) == (130, "", "")


def test_another_projects_program_keeps_pythons_handling_of_ctrl_c(tmp_path):
    (tmp_path / "theirs.py").write_text("import cli, signal; print(signal.getsignal(signal.SIGINT))")
    theirs = os.path.relpath(tmp_path / "theirs.py", programs.ROOT)
    done = programs.from_scratch(theirs, cwd=tmp_path, PYTHONPATH=str(programs.ROOT))
    assert "default_int_handler" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("count", daily([3, 100]))
def test_signals_at_random_moments(tmp_path, text_file, count, record_property):
    draw = random.Random(0)
    programs.succeed(*RUN, cwd=tmp_path)
    expected = checkpoint_file.load(end_of(tmp_path)).tensors
    signals, good, slowest, number_of_runs = 0, 0, 0.0, 0
    while signals < count:
        folder = tmp_path / str(number_of_runs)
        number_of_runs += 1
        folder.mkdir()
        (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
        code, longest = None, 1.5
        while code != 0:
            number, before = draw.choice(SIGNALS), statuses(folder)
            code, seconds = stopped_at_random(folder, draw, number, longest)
            longest *= 1.25  # on a busy machine the start alone takes longer than the first moments
            if code == 0:
                break
            signals += 1
            slowest = max(slowest, seconds)
            states = statuses(folder)
            saved = all(
                status["state"] == "finished"  # it came after the last step
                or (status["state"] == "interrupted" and (status["saved"] or 0) == status["step"])
                for status in states
            )
            # while Python starts or ends, the signal itself ends it; a shell calls that 128 + number, too
            around = states == before or all(status["state"] == "finished" for status in states)
            good += saved and (code == 128 + number or (code == -number and around))
            assert code in (128 + number, -number), (folder / "output.txt").read_text(encoding="utf-8")
        assert same_tensors(checkpoint_file.load(end_of(folder)).tensors, expected)
    record_property("R6 signals at random moments", signals)
    record_property("R6 of these, ended as promised", good)
    record_property("R6 slowest end, seconds", f"{slowest:.2f}")
    assert good == signals


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_a_save(tmp_path, text_file):
    long = ("train.steps=1000000", "train.checkpoint_every=50", "train.eval_every=0")
    slow = "tests/faults/controls/slow_to_save.py"  # from its second save on
    with programs.Program(slow, *TRAIN, *long, cwd=tmp_path) as process:
        process.until(lambda: programs.saved(tmp_path))
        process.send_signal(signal.SIGINT)
        time.sleep(PATIENCE + 0.2)
        assert process.poll() is None  # it is saving
        deadline = time.monotonic() + 40  # the save takes 60
        while process.poll() is None:  # a busy machine may handle the first signal late
            assert time.monotonic() < deadline
            process.send_signal(signal.SIGINT)
            time.sleep(PATIENCE + 0.2)
        assert process.wait() == 128 + signal.SIGINT
    for path in programs.saved(tmp_path):
        checkpoint_file.load(path)
