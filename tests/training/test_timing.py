"""Steps at which something is due, and what the seconds are spent on."""

import pytest

from training import timing
from training.timing import Clock, is_due


def test_steps_that_are_due():
    assert [step for step in range(30) if is_due(step, 10)] == [0, 10, 20]
    assert [step for step in range(30) if is_due(step, 10, dense_start=True)] == [0, 1, 4, 10, 20]
    assert [step for step in range(5) if is_due(step, 1, dense_start=True)] == [0, 1, 2, 3, 4]
    assert not any(is_due(step, 0, dense_start=True) for step in range(30))


def test_seconds_aside_are_not_training_and_end_when_the_device_is_done(monkeypatch):
    now = [0.0]
    synchronized = []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def synchronize() -> None:
        synchronized.append(now[0])
        now[0] += 1

    clock = Clock(synchronize, earlier=100)
    now[0] += 10
    with clock.aside("statistics"):
        now[0] += 5
    now[0] += 20
    with pytest.raises(ZeroDivisionError), clock.aside("evaluation"):
        raise ZeroDivisionError
    assert synchronized == [10, 16, 37, 38]
    assert clock.spent == {"statistics": 6, "evaluation": 1}  # waiting for earlier work counts as training
    assert clock.seconds() == 139
    assert clock.training() == 39 - 7
    assert clock.lap() == 32
    now[0] += 3
    assert clock.lap() == 3
