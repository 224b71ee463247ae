"""status.json says at every moment what has become of the run."""

import signal

import pytest

from tests.conftest import configured
from training.run_folder import Diverged, Run, read_status
from training.signals import Interrupted


@pytest.mark.parametrize(
    ("error", "raised", "state"),
    [
        (None, None, "finished"),
        (Diverged(3, "a loss is not finite"), None, "diverged"),
        (Interrupted(signal.SIGTERM), Interrupted, "interrupted"),
        (OSError("no space left"), OSError, "failed"),
    ],
)
def test_a_run_is_running_until_it_has_ended_in_one_of_four_ways(tmp_path, error, raised, state):
    with Run(tmp_path / "run", configured()) as run:
        run.claim()
        assert read_status(run.folder) == {}

        def trained() -> None:
            with run.recording():
                run.begin({"packages": {}}, {"start": None, "end": None}, None, 0)
                assert read_status(run.folder)["state"] == "running"
                if error:
                    raise error

        if raised:
            with pytest.raises(raised):
                trained()
        else:
            trained()
        assert read_status(run.folder)["state"] == state
