"""A program is run to its end, and what it cost is known; rounds become medians and ratios."""

import sys

import pytest

from bench.measure import BenchError, ratio, run, settled

SPEAKS = "import time; print('one'); time.sleep(0.2); print('two')"


def test_a_program_with_the_time_of_each_of_its_lines(tmp_path):
    child = run([sys.executable, "-c", SPEAKS], tmp_path)
    assert [line for _, line in child.lines] == ["one", "two"]
    assert child.seconds_to("one") + 0.2 <= child.seconds_to("two") <= child.seconds
    with pytest.raises(BenchError, match="no line that begins with 'three'"):
        child.seconds_to("three")


def test_memory_is_that_of_the_process_and_of_those_it_waited_for(tmp_path):
    big = "x = bytearray(200_000_000); x[::4096] = b'1' * len(x[::4096])"
    inside = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {big!r}])"
    assert run([sys.executable, "-c", inside], tmp_path).peak_memory > 200_000_000


def test_a_program_that_fails_is_told_of_in_its_own_last_words(tmp_path):
    with pytest.raises(BenchError, match=r"failed with status 3: what was wrong"):
        run([sys.executable, "-c", "print('what was wrong'); raise SystemExit(3)"], tmp_path)
    with pytest.raises(BenchError, match=r"no-such-program: .*; check the path"):
        run([str(tmp_path / "no-such-program")], tmp_path)


def test_it_is_looked_at_while_it_runs_and_has_the_variables_it_is_given(tmp_path):
    looks = []
    program = "import os, time; print(os.environ['GIVEN']); time.sleep(0.3)"
    child = run([sys.executable, "-c", program], tmp_path, {"GIVEN": "yes"}, lambda *look: looks.append(look))
    assert child.lines[0][1] == "yes"
    assert len({pid for pid, _ in looks}) == 1
    assert 0 < looks[0][1] < looks[-1][1] <= child.seconds + 1


def test_a_ratio_is_taken_round_by_round():
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == {"median": 3.0, "min": 2.0, "max": 4.0, "rounds": 3}
    with pytest.raises(ValueError, match="zip"):
        ratio([1.0], [1.0, 2.0])


def test_the_first_steps_are_left_out():
    assert list(settled(range(100))) == list(range(10, 100))
    assert list(settled(range(9))) == list(range(3, 9))
    assert list(settled([5, 6])) == [6]
