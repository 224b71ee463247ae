"""A signal saves the step; a second one does not wait for that."""

import signal
from types import SimpleNamespace

import pytest

from system.signals import Interrupted
from training.checkpoints import Checkpoints
from training.parallel.ranks import Ranks


@pytest.mark.parametrize("forced", [False, True])
def test_a_second_ctrl_c_in_an_evaluation_does_not_save(monkeypatch, forced):
    saved = []
    monkeypatch.setattr(Checkpoints, "save", lambda self, step: saved.append(step))
    stop = SimpleNamespace(check=lambda: None, forced=forced)
    checkpoints = Checkpoints(None, None, None, None, Ranks(), None, stop)
    with pytest.raises(Interrupted), checkpoints.ending_on_signal(7):
        raise Interrupted(signal.SIGINT)
    assert saved == [7] * (not forced)
