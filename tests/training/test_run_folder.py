"""status.json says at every moment what has become of the run."""

import signal
from contextlib import nullcontext

import pytest

from tests.conftest import configured
from training.run_folder import Diverged, Run, read_status
from training.signals import Interrupted


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, "finished"),
        (Diverged(3, "a loss is not finite"), "diverged"),
        (Interrupted(signal.SIGTERM), "interrupted"),
        (OSError("no space left"), "failed"),
    ],
)
def test_a_run_is_running_until_it_has_ended_in_one_of_four_ways(tmp_path, error, state):
    with Run(tmp_path / "run", configured()) as run:
        run.claim()
        assert read_status(run.folder) == {}
        raises = nullcontext() if state in ("finished", "diverged") else pytest.raises(type(error))
        with raises, run.recording():
            run.begin({"packages": {}}, {"start": None, "end": None}, None, 0)
            assert read_status(run.folder)["state"] == "running"
            if error:
                raise error
        assert read_status(run.folder)["state"] == state
