"""Only one process trains a run, even if someone removes its lock file."""

import json
import os
import platform

import pytest

from rundir.folder import Run
from system import os_compat
from system.errors import ConfigError
from tests.conftest import configured


def test_a_run_that_a_living_process_trains_is_refused_and_its_lock_is_not_touched(tmp_path):
    """The process that trains the run has to lock the folder again, and waits only a second for it."""
    other = os.getppid()
    status = {"state": "running", "step": 3, "host": platform.node()}
    status["process"] = [other, os_compat.start_time(other)]
    (tmp_path / "status.json").write_text(json.dumps(status))
    with pytest.raises(ConfigError, match=f"process {other} on .* is training this run"):
        Run(tmp_path, configured()).claim()
    assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize(
    "process", [{"state": None}, {"host": "another"}, {"process": [2**22 + 1, 1.0]}, {"state": "finished"}]
)
def test_a_run_whose_process_has_ended_is_claimed(tmp_path, process):
    other = os.getppid()
    status = {"state": "running", "step": 3, "host": platform.node()}
    status = status | {"process": [other, os_compat.start_time(other)]} | process
    (tmp_path / "status.json").write_text(json.dumps({k: v for k, v in status.items() if v}))
    with Run(tmp_path, configured()) as run:
        run.claim()
        assert (tmp_path / ".lock").exists()


def test_something_else_in_the_place_of_the_lock_file_is_named(tmp_path):
    (tmp_path / ".lock").write_text("a thesis")
    with pytest.raises(ConfigError, match=r"\.lock: is a folder, .* not a lock file; remove it$"):
        Run(tmp_path, configured()).claim()
