"""R8: a non-finite loss or gradient is caught in its step, before the update, and its layer is named."""

import itertools
import math

import pytest
import torch

from data import windows
from rundir import checkpoint_file
from rundir.folder import read_status
from tests.conftest import OPTIMIZERS, daily
from tests.helpers.runs import metric_rows, train_anew
from training import rehearsal, state
from training.build import build_model
from training.optimizer import Optimizer

STEP = {"logged": 4, "not logged": 5}
PLACES = ("embed", "blocks.0.attn.pre", "blocks.0.attn.branch", "blocks.1.mlp.branch.fc", "blocks.1.mlp.b")
PLACES += ("blocks.0.mlp.branch.proj", "blocks.1", "final", "head")
CASES = [
    (place, way, value, when)
    for place in (*PLACES, "the loss")
    for way in ("forward", "backward")
    for value in (math.nan, math.inf)
    for when in STEP
    if (place, way) != ("the loss", "backward")
]


def injected(monkeypatch, place: str, way: str, value: float, step: int) -> None:
    """Set, from ``step`` on, one number of the output of ``place``, or of its gradient, to ``value``."""
    at = []  # the step that the last batch was drawn for
    draw, seed_of = windows.training_batch, {}

    def drawn(tokens, block_size, rows, seed, *part):
        at.append(seed_of.setdefault(seed, len(seed_of)))
        return draw(tokens, block_size, rows, seed, *part)

    def spoilt(x):
        if at[-1] < step:
            return x
        bad = x.clone()
        bad.view(-1)[0] = value
        return bad

    def hook(module, args, output):
        if way == "forward":
            return spoilt(output)
        if output.requires_grad:
            output.register_hook(spoilt)
        return None

    real = rehearsal.build_and_try

    def build_and_try(*arguments):
        view = real(*arguments)
        if place != "the loss":
            view.model.get_submodule(place).register_forward_hook(hook)
        return view

    monkeypatch.setattr(windows, "training_batch", drawn)
    monkeypatch.setattr(rehearsal, "build_and_try", build_and_try)
    if place == "the loss":
        loss = torch.nn.functional.cross_entropy
        monkeypatch.setattr(torch.nn.functional, "cross_entropy", lambda *a: spoilt(loss(*a)))


def check(tiny, monkeypatch, place, way, value, when) -> None:
    every = ("train.log_every=4", "train.checkpoint_every=1", "train.eval_every=0")
    config = tiny("norm=batchnorm", "train.steps=9", *every)
    injected(monkeypatch, place, way, value, STEP[when])
    folder = train_anew(config)
    status, step = read_status(folder), STEP[when]
    assert status["state"] == "diverged"
    assert f"step {step} " in status["reason"]
    if way == "forward":
        assert status["reason"].endswith(f"first in {place}")
    else:
        part = place.split(".")[0] if place != "head" else "final"  # the head is the embedding
        assert f"the gradient of {part}" in status["reason"]
    assert metric_rows(folder)[-1]["step"] == step
    saved_steps = checkpoint_file.saved_steps(folder / "checkpoints")
    assert saved_steps[-1] == step  # saved before it, and not after the update that was not made
    for saved in saved_steps:
        tensors = checkpoint_file.load(checkpoint_file.path_of(folder / "checkpoints", saved)).tensors
        assert state.first_not_finite(tensors) is None


@pytest.mark.parametrize(
    "every", daily([33, 11, 1], others=lambda number: "slow" if number == 1 else "faults")
)
def test_a_non_finite_number_is_caught_in_its_step_and_named(tiny, monkeypatch, every, record_property):
    for case in CASES[::every]:
        with monkeypatch.context() as patch:
            check(tiny, patch, *case)
    record_property("R8 losses and gradients that are not finite, caught and named", len(CASES[::every]))


def test_a_skipped_update_leaves_moments_and_parameters(tiny):
    """Check both optimizers, with the branch for GPUs and the one for CPUs."""
    for optim, on_device in itertools.product(OPTIMIZERS, (False, True)):  # True: as on a GPU
        config = tiny(f"optim={optim}")
        model = build_model(config, 11)
        optimizer = Optimizer(model, config.optim, max_grad_norm=1.0)
        optimizer.skips_on_device = on_device

        def step(bad: bool, model=model, optimizer=optimizer) -> None:
            loss = model(torch.arange(8)[None]).square().mean() * (math.nan if bad else 1.0)
            loss.backward()
            optimizer.update(0.1, loss.detach(), optimizer.clip())
            optimizer.zero_grad()

        def now(model=model, optimizer=optimizer) -> list[torch.Tensor]:
            moments, _ = state.optimizer_state(model, optimizer.optimizers)
            return [t.clone() for t in (*model.parameters(), *moments.values())]

        step(False)
        before = now()
        for bad in (True, False):
            step(bad)
            assert all(torch.equal(a, b) for a, b in zip(now(), before, strict=True))
        assert optimizer.skipped == 2
        assert optimizer.known_to_skip() != on_device
