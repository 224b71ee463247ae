"""Untrusted text cannot control the terminal; a program may keep running when its output is closed."""

import os
import re
import shlex
import subprocess
import sys
import termios
import threading
import time
from array import array
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rundir import progress_line
from rundir.folder import read_status
from system import terminal
from system.terminal import announced, doing, duration, escaped, first_wait, next_wait
from tests.conftest import ROOT, daily
from tests.helpers import programs
from tests.helpers.runs import QUICK
from tests.helpers.waiting import until


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\r\nb", r"a\r\nb"),
        ("right\u202eto left", r"right\u202eto left"),
        ("\x9b1m", r"\x9b1m"),
        ("né 日本 👩\u200d🚀 [bold]", "né 日本 👩\u200d🚀 [bold]"),
        ("\ud800", r"\ud800"),
    ],
)
def test_control_characters_are_escaped_and_letters_are_not(text, shown):
    assert escaped(text) == shown


@given(st.text(st.characters(codec="utf-8")))
def test_kept_characters_stay_and_other_control_characters_are_escaped(text):
    assert escaped(text, keep="\n\t").count("\n") == text.count("\n")
    assert not {chr(c) for c in [*range(32), 127, *range(128, 160)]} & set(escaped(text))


@pytest.mark.parametrize(("seconds", "text"), [(3.4, "3 s"), (99, "99 s"), (600, "10 min"), (7200, "2.0 h")])
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_what_takes_long_is_said_and_what_does_not_is_not(monkeypatch, capsys):
    monkeypatch.setattr("system.terminal.PATIENCE", 0.01)
    said = ""
    with announced("thinking"):
        while said.count("thinking") < 2:
            said += capsys.readouterr().out
    assert all(re.fullmatch(r"thinking(, for \d+ s)?", line) for line in said.splitlines())
    capsys.readouterr()
    monkeypatch.setattr("system.terminal.PATIENCE", 100)
    with announced("thinking"):
        pass
    assert capsys.readouterr().out == ""


def test_the_start_of_a_program_counts_as_silence_before_its_first_block(monkeypatch):
    waits = []
    monkeypatch.setattr(terminal, "PATIENCE", 600)
    monkeypatch.setattr(terminal, "began", [time.monotonic() - 300])
    monkeypatch.setattr(terminal, "first_wait", lambda seconds: waits.append(first_wait(seconds)) or 600)
    for number in (1, 2):
        with announced("thinking"):
            until(lambda number=number: len(waits) == number)
    assert waits == [pytest.approx(300, abs=50), 600]
    monkeypatch.setattr(terminal, "PATIENCE", 900)
    assert [first_wait(seconds) for seconds in (0, 400, 5000)] == [900, 500, 300]


@pytest.mark.parametrize("seconds", [0, 10, 36_000])
def test_the_next_line_comes_within_two_seconds_also_if_one_is_left_out(seconds):
    assert next_wait(seconds) + progress_line.SOON < 2


def test_short_blocks_one_after_another_are_no_long_silence(monkeypatch, capsys):
    monkeypatch.setattr("system.terminal.PATIENCE", 0.2)
    with announced("thinking"):
        for _ in range(8):
            with announced("adding"):
                time.sleep(0.05)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("adding") for line in lines)
    assert not doing


def test_output_that_nobody_reads_is_dropped():
    code = (
        "import sys, os; from system.terminal import survive_closed_output; survive_closed_output()\n"
        "print('first', flush=True); sys.stdin.readline()\n"
        "for _ in range(3): print('second', flush=True); print('third', file=sys.stderr, flush=True)\n"
        "os._exit(7)"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe
    ) as child:
        assert child.stdout.readline() == b"first\n"
        child.stdout.close()
        child.stderr.close()
        child.stdin.write(b"\n")
        child.stdin.close()
        assert child.wait(30) == 7


def test_what_is_announced_to_nobody_is_dropped(monkeypatch):
    monkeypatch.setattr("system.terminal.PATIENCE", 0.01)
    read_end, write_end = os.pipe()
    os.close(read_end)
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with open(write_end, "w") as nobody, suppress(BrokenPipeError):
        with announced("thinking", nobody):
            time.sleep(0.1)
        nobody.close()
    assert failed == []


def is_full(descriptor: int) -> bool:
    """Return whether bytes wait in a pipe, and no more come."""
    counts = []
    for _ in range(2):
        count = array("i", [0])
        ioctl(descriptor, termios.FIONREAD, count)
        counts.append(count[0])
        time.sleep(0.1)
    return 0 < counts[0] == counts[1]


def test_all_is_written_to_a_pipe_that_does_not_block():
    code = (
        "from system.terminal import survive_closed_output; survive_closed_output()\n"
        "for _ in range(3000): print('x' * 99)"
    )
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=write_end) as child:
        os.close(write_end)
        until(lambda: is_full(read_end))
        with open(read_end, "rb") as pipe:
            assert len(pipe.read()) == 3000 * 100
        assert child.wait() == 0


def test_a_sampled_text_is_escaped_on_a_terminal_alone(capsys, monkeypatch):
    from data.tokenizers import CharTokenizer
    from sample import show

    tokenizer = CharTokenizer("\n\x1b[a")
    for is_terminal, expected in ((True, "a\\x1b[\n\n"), (False, "a\x1b[\n\n")):
        monkeypatch.setattr(sys.stdout, "isatty", lambda answer=is_terminal: answer)
        show("a", tokenizer, [1, 2, 0])
        assert capsys.readouterr().out == expected


@pytest.mark.slow
def test_programs_run_without_stdin_stdout_and_stderr(text_file, tmp_path):
    for program in (["train.py", *QUICK], ["sample.py", "max_new_tokens=3"], ["compare.py", "runs"]):
        command = shlex.join([sys.executable, str(ROOT / program[0]), *program[1:]])
        assert subprocess.run(f"{command} <&- >&- 2>&-", shell=True, cwd=tmp_path).returncode == 0
    [run] = (tmp_path / "runs").iterdir()
    assert read_status(run)["state"] == "finished"


@pytest.mark.parametrize("program", daily(["train.py", "compare.py", "findings/__main__.py"], others="slow"))
def test_a_stream_that_lacks_a_character_gets_an_escape(tmp_path, program):
    """The help of these programs has characters that ASCII has not; none of them is a reason to fail."""
    done = programs.from_scratch(
        program, "--help", cwd=tmp_path, PYTHONIOENCODING="ascii", PYTHONPATH=str(ROOT)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


@pytest.mark.slow
def test_a_run_whose_stdout_is_ascii_is_trained(text_file, tmp_path):
    options = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = programs.from_scratch("train.py", *QUICK, "norm=batchnorm", cwd=tmp_path, **options)
    assert done.returncode == 0, done.stderr
    done = programs.from_scratch("compare.py", "runs", cwd=tmp_path, **options)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, of Linux")
def test_a_run_goes_on_although_the_disk_of_its_output_is_full(text_file, tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, str(ROOT / "train.py"), *QUICK]
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=full)
    [run] = (tmp_path / "runs").iterdir()
    assert (done.returncode, read_status(run)["state"]) == (0, "finished")


@pytest.mark.slow
def test_compare_runs_without_docstrings(tmp_path):
    done = programs.from_scratch("compare.py", "nowhere", cwd=tmp_path, PYTHONOPTIMIZE="2")
    assert done.stderr.startswith("error: nowhere: ")
