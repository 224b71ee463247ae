"""Matrices decay and vectors do not; the learning rate is nanoGPT's."""

import math

import pytest

from tests.conftest import NORMS, PLACEMENTS, configured
from training.components import build_model
from training.optim import new_optimizers, rate_scale


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("norm", NORMS)
def test_every_parameter_is_optimized_once_and_only_matrices_decay(norm, placement):
    config = configured(f"norm={norm}", f"placement={placement}", "model.bias=true", "model.n_layer=2")
    model = build_model(config, 9)
    groups = new_optimizers(model, config.optim)[0].param_groups
    optimized = [p for group in groups for p in group["params"]]
    assert {id(p) for p in optimized} == {id(p) for p in model.parameters()}
    assert len(optimized) == len({id(p) for p in optimized})
    for group in groups:
        assert group["betas"] == (0.9, 0.99)
        assert all((group["weight_decay"] > 0) == (p.dim() >= 2) for p in group["params"])


def nanogpts(step: int, warmup: int, decay_steps: int, peak: float, smallest: float) -> float:
    """get_lr of nanoGPT's train.py, written anew from its description."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    ratio = (step - warmup) / (decay_steps - warmup)
    return smallest + 0.5 * (1 + math.cos(math.pi * ratio)) * (peak - smallest)


def test_the_cosine_is_nanogpts():
    schedule = configured("schedule=cosine", "schedule.warmup_fraction=0.05").schedule
    for step in range(2000):
        expected = nanogpts(step, 100, 2000, 1e-3, 1e-4)
        assert 1e-3 * rate_scale(step, 2000, schedule) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("steps", [1, 2, 10, 1000])
def test_every_shape_rises_to_1_and_never_falls_below_its_final_fraction(shape, steps):
    schedule = configured(f"schedule={shape}").schedule
    scales = [rate_scale(step, steps, schedule) for step in range(steps)]
    warmup = round(0.1 * steps)
    assert scales[warmup] == 1
    assert scales[: warmup + 1] == sorted(scales[: warmup + 1])
    assert scales[warmup:] == sorted(scales[warmup:], reverse=True)
    assert min(scales[warmup:]) >= schedule.final_fraction
    assert min(scales) > 0


def test_linear_is_half_way_at_half_time():
    schedule = configured(
        "schedule=linear", "schedule.warmup_fraction=0", "schedule.final_fraction=0"
    ).schedule
    assert rate_scale(50, 100, schedule) == pytest.approx(0.5)
