"""Steps at which something is due, and what the seconds are spent on."""

import pytest

from tests.conftest import CONF, configured
from training import log as timing
from training.log import Clock
from training.schedule import due_at, is_due


def test_steps_that_are_due():
    assert [step for step in range(30) if is_due(step, 10)] == [0, 10, 20]
    assert [step for step in range(30) if is_due(step, 10, dense_start=True)] == [0, 10, 20]
    assert [step for step in range(40) if is_due(step, 16, dense_start=True)] == [0, 16, 32]
    assert [step for step in range(400) if is_due(step, 300, dense_start=True)] == [0, 16, 256, 300]
    assert not any(is_due(step, 0, dense_start=True) for step in range(30))


PRESETS = sorted(file.stem for file in (CONF / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("preset", ["", *PRESETS])
def test_statistics_are_measured_in_at_most_2_percent_of_a_presets_steps(preset):
    """Measuring takes about as long as training on the micro-batch that is measured."""
    needed = {"nanogpt_gpt2": ["data.path=x", "train.steps=6000"], "nanogpt_finetune": ["init_from=null"]}
    config = configured(*[f"experiment={preset}"] * bool(preset), *needed.get(preset, []))
    train, steps = config.train, range(config.train.steps + 1)
    measured = sum(due_at(step, train, config.stats).statistics for step in steps)
    assert measured <= 0.02 * train.steps * train.grad_accum


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
