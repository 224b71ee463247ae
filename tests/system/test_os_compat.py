"""Only system/os_compat.py uses features that some systems lack, and it has replacements for them."""

import errno
import os
import re
import subprocess
import sys

import pytest

from system import os_compat
from tests.conftest import ROOT
from tests.helpers.tree import project_files

PROGRAMS = (
    "train",
    "sample",
    "compare",
    "data.token_files",
    "scripts.prepare_corpus",
    "sweep.runner",
    "rundir.wandb_process",
    "bench.train",
)
WITHOUT = """
import os, signal, sys
import psutil  # imported first: psutil has its own code for each system
sys.modules["fcntl"] = sys.modules["resource"] = None  # importing them fails
for name in ("SIGUSR1", "SIGHUP"):
    delattr(signal, name)
for name in ("nice", "sched_getaffinity", "getloadavg"):
    delattr(os, name)
import ctypes
real = ctypes.CDLL
ctypes.CDLL = lambda name, *more, **named: real(name, *more, **named) if name else real(name["a library"])
"""


def test_everything_can_be_imported_where_there_is_no_fcntl_and_no_sigusr1(tmp_path):
    code = (
        WITHOUT
        + "".join(f"import {name}\n" for name in PROGRAMS)
        + (
            "from system import os_compat, signals\n"
            "assert len(signals.SIGNALS) == 2\n"
            "assert os_compat.cores() == os.cpu_count()\n"
            "os_compat.keep_freed_memory(); os_compat.trim_memory_and_reset_peak()\n"
        )
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_else_names_what_only_some_systems_have():
    only = re.compile(
        r"\bfcntl\b|\bimport resource\b|signal\.SIGUSR|sched_getaffinity|os\.fork\b|/proc/self/(status|clear)"
    )
    found = {
        str(file.relative_to(ROOT)): match[0]
        for file in project_files()
        if file.name != "os_compat.py" and (match := only.search(file.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_process_is_told_apart_from_a_later_one_with_its_id():
    began = os_compat.start_time(os.getpid())
    assert began is not None
    assert os_compat.is_running(os.getpid(), began)
    assert not os_compat.is_running(os.getpid(), began - 1000)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        since = os_compat.start_time(process.pid)
    assert since is not None
    assert not os_compat.is_running(process.pid, since)
    assert os_compat.start_time(process.pid) is None


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP")
@pytest.mark.parametrize("program", ["train", "sample", "findings.__main__"])
def test_torchs_threads_do_not_wait_in_a_busy_loop_for_long(program):
    assert spin_count(program) == 5000


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP")
def test_how_threads_wait_is_the_users_choice():
    assert spin_count("train", OMP_WAIT_POLICY="passive") == 0
    assert spin_count("train", GOMP_SPINCOUNT="7") == 7


def test_the_benchmarks_do_not_choose_how_the_threads_of_others_wait():
    modules = ", ".join(f"bench.{name}" for name in ("ablation", "quality", "sample", "train"))
    run_python(f"import os, {modules}; assert 'GOMP_SPINCOUNT' not in os.environ", {})


def spin_count(program: str, **variables: str) -> int:
    """Return how often waiting threads look again before they sleep, in a process that imports a program."""
    done = run_python(f"import {program}, torch", {"OMP_DISPLAY_ENV": "verbose", **variables})
    [count] = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    return int(count)


def run_python(code: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=ROOT, env=unset | variables, capture_output=True, text=True, check=True
    )


def test_a_folder_that_cannot_be_synced_is_left_as_it_is_and_a_broken_disk_is_an_error(tmp_path, monkeypatch):
    def fails(number: int):
        def fsync(descriptor):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)
        os_compat.sync_folder(tmp_path)

    fails(errno.EINVAL)
    with pytest.raises(OSError, match="Input/output error"):
        fails(errno.EIO)
