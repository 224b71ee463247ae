"""The learning rate is nanoGPT's, each thing is due at its steps, and seconds are counted by their use."""

import math

import pytest

from tests.conftest import CONF, configured
from training import log as timing
from training.log import Clock
from training.schedule import SHAPES, Schedule, due_at, is_due


def nanogpts(step: int, warmup: int, decay_steps: int, peak: float, smallest: float) -> float:
    """Return the learning rate of nanoGPT's get_lr, written anew from its description."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    ratio = (step - warmup) / (decay_steps - warmup)
    return smallest + 0.5 * (1 + math.cos(math.pi * ratio)) * (peak - smallest)


def test_the_cosine_is_nanogpts():
    schedule = Schedule(configured("schedule=cosine", "schedule.warmup_fraction=0.05").schedule, 1e-3, 2000)
    for step in range(2000):
        assert schedule(step) == pytest.approx(nanogpts(step, 100, 2000, 1e-3, 1e-4), rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_rises_to_1_and_never_falls_below_its_final_fraction(shape):
    for steps in (1, 2, 10, 1000):
        schedule = Schedule(configured(f"schedule={shape}").schedule, 1.0, steps)
        scales = [schedule(step) for step in range(steps)]
        rising, falling = scales[: schedule.warmup + 1], scales[schedule.warmup :]
        assert (rising, falling) == (sorted(rising), sorted(falling, reverse=True))
        assert rising[-1] == 1
        assert min(falling) >= schedule.config.final_fraction
        assert min(rising) > 0


def test_steps_that_are_due():
    assert [step for step in range(30) if is_due(step, 10, dense_start=True)] == [0, 10, 20]
    assert [step for step in range(400) if is_due(step, 300, dense_start=True)] == [0, 16, 256, 300]
    assert not any(is_due(step, 0, dense_start=True) for step in range(30))


def test_statistics_are_measured_in_at_most_2_percent_of_a_presets_steps():
    """Measuring takes about as long as training on the micro-batch that is measured."""
    needed = {"nanogpt_gpt2": ["data.path=x", "train.steps=6000"], "nanogpt_finetune": ["init_from=null"]}
    presets = [file.stem for file in (CONF / "experiment").glob("*.yaml")]
    for words in ([], *([f"experiment={name}", *needed.get(name, [])] for name in presets)):
        config = configured(*words)
        train, steps = config.train, range(config.train.steps + 1)
        measured = sum(due_at(step, train, config.stats).statistics for step in steps)
        assert measured <= 0.02 * train.steps * train.grad_accum, words


def test_seconds_aside_are_not_training_and_end_when_the_device_is_done(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def spend(seconds: float = 1) -> None:  # by default the wait for the device
        now[0] += seconds

    clock = Clock(spend, earlier=100)
    spend(10)
    with clock.aside("statistics"):
        spend(5)
    spend(20)
    with pytest.raises(ZeroDivisionError), clock.aside("evaluation"):
        raise ZeroDivisionError
    assert clock.spent == {"statistics": 6, "evaluation": 1}  # waiting for earlier work counts as training
    assert clock.seconds() == 139
    assert clock.lap() == clock.training() == 39 - 7
    spend(3)
    assert clock.lap() == 3
