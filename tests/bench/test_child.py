"""A program is run to its end; its time, memory and output are known."""

import sys

import pytest

from bench.child import BenchError, run

PRINTS = """
import os, time
print("rate", os.environ["RATE"])
time.sleep(0.2)
print("loss 2.5, rate 1,500")
"""


def test_output_has_the_time_of_each_line(tmp_path):
    child = run([sys.executable, "-c", PRINTS], tmp_path, {"RATE": "20"})
    assert child.numbers(r"rate ([\d,]+)") == [20, 1500]
    (first, _), (second, text) = child.find("rate (.*)")
    assert text == "1,500"
    assert first + 0.1 <= second <= child.seconds
    assert 0 < child.own_memory <= child.peak_memory
    with pytest.raises(BenchError, match="no line with 'nothing like it'"):
        child.find("nothing like it")


def test_peak_memory_includes_the_children_that_it_waited_for(tmp_path):
    ours = run([sys.executable, "-c", "pass"], tmp_path).peak_memory  # the memory of this process at the fork
    big = f"x = bytearray({ours + 10**8}); x[::4096] = b'1' * len(x[::4096])"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {big!r}])"
    assert run([sys.executable, "-c", parent], tmp_path).peak_memory > ours + 10**8


def test_a_failure_is_reported_with_its_last_line(tmp_path):
    with pytest.raises(BenchError, match=r"failed with status 3: what was wrong"):
        run([sys.executable, "-c", "print('what was wrong'); raise SystemExit(3)"], tmp_path)
