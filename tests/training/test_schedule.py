"""The learning rate is nanoGPT's: linear warm-up, then a decay."""

import math

import pytest

from tests.conftest import configured
from training.schedule import SHAPES, Schedule


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
@pytest.mark.parametrize("steps", [1, 2, 10, 1000])
def test_every_shape_rises_to_1_and_never_falls_below_its_final_fraction(shape, steps):
    schedule = Schedule(configured(f"schedule={shape}").schedule, 1.0, steps)
    scales = [schedule(step) for step in range(steps)]
    warmup = round(schedule.config.warmup_fraction * steps)
    assert scales[warmup] == 1
    assert scales[: warmup + 1] == sorted(scales[: warmup + 1])
    assert scales[warmup:] == sorted(scales[warmup:], reverse=True)
    assert min(scales[warmup:]) >= schedule.config.final_fraction
    assert min(scales) > 0


def test_linear_falls_evenly_to_its_final_fraction_and_constant_stays():
    options = ("schedule.warmup_fraction=0.1", "schedule.final_fraction=0.2")
    linear, constant = (
        Schedule(configured(f"schedule={shape}", *options).schedule, 1e-3, 100)
        for shape in ("linear", "constant")
    )
    for step in range(10, 100):
        assert linear(step) == pytest.approx(1e-3 * (1 - 0.8 * (step - 10) / 90))
        assert constant(step) == 1e-3
