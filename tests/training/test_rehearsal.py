"""The dry run leaves no trace, and finds the norms that replace buffers, which CUDA graphs forbid."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from diagnostics.contract import BrokenContractError
from diagnostics.trainable import check_tensors
from model.placements import Residual
from system.errors import ConfigError
from tests.conftest import NORMS, configured
from training.build import build_model
from training.compile import replaces_buffers
from training.device import choose, set_switches
from training.loss import cross_entropy
from training.rehearsal import build_and_try, foreign_wirings, rehearse

REPLACING = {"batchnorm_running", "powernorm"}  # model/batchnorms.py explains why
SIZES = ("model.n_layer=1", "model.n_head=2", "model.n_embd=8", "model.block_size=4")


def model_and_loss(norm):
    model = build_model(configured(f"norm={norm}", *SIZES), 5)
    idx = torch.arange(8).view(2, 4) % 5
    return model, lambda: cross_entropy(model, idx, idx)


@pytest.mark.parametrize("norm", NORMS)
def test_only_norms_by_earlier_steps_replace_their_buffers(norm):
    assert replaces_buffers(*model_and_loss(norm)) == (norm in REPLACING)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("fails", [False, True])
def test_a_rehearsal_leaves_buffers_and_gradients_as_they_were(norm, fails):
    model, loss = model_and_loss(norm)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if fails:
        model.embed.tokens.weight.register_hook(lambda gradient: {}["no gradient"])  # fails late in backward
    with pytest.raises(KeyError) if fails else nullcontext():
        rehearse(model, loss)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    "sizes", [("model.n_embd=16384", "model.n_layer=200"), ("model.n_embd=1048576", "model.n_layer=1000")]
)
def test_a_model_that_cannot_fit_is_refused_by_arithmetic(sizes, monkeypatch):
    monkeypatch.setattr("training.rehearsal.initial_model", None)  # it would take memory
    with pytest.raises(ConfigError, match=r"which need [\d,.]+ GB at least, but this machine has"):
        build_and_try(configured(*sizes, "model.n_head=2"), 65, choose("cpu", "fp32"), lambda net: None)


class Masked(nn.LayerNorm):
    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))


def test_a_buffer_that_no_checkpoint_could_hold_is_refused():
    with pytest.raises(BrokenContractError, match="its mask is not finite, as all in a checkpoint"):
        check_tensors({"final": Masked(4)})


def test_far_too_many_threads_are_refused():
    with pytest.raises(ConfigError, match=r"train\.threads: 4096 threads on \d+ cores; give at most"):
        set_switches(choose("cpu", "fp32"), 4096)


FOREIGN = """
import torch
from torch import nn
from model.placements import Pre

class Wiring(nn.Module):
    def __init__(self, branch, norm):
        super().__init__()
        self.f, self.norm, self.calls = branch, norm, 0
        {init}

    def forward(self, x):
        {forward}
        return x + self.f(self.norm(x))

class Own(Pre):
    def __call__(self, branch, norm, layer, site):
        return Wiring(branch, norm("norm"))
"""


@pytest.mark.parametrize(
    ("init", "forward", "problem"),
    [
        ("pass", "x += 1", "changes its input in place"),
        ("self.register_buffer('mask', torch.tensor(float('-inf')))", "pass", "its mask is not finite"),
        ("pass", "self.calls += 1", "changes its attribute calls in forward"),
        ("pass", "pass", None),
    ],
)
def test_a_placement_of_the_users_is_held_to_the_contract(tmp_path, monkeypatch, init, forward, problem):
    module = f"own{abs(hash((init, forward)))}"
    (tmp_path / f"{module}.py").write_text(FOREIGN.format(init=init, forward=forward))
    (tmp_path / "placement").mkdir()
    (tmp_path / "placement" / "own.yaml").write_text(f"_target_: {module}.Own\n")
    monkeypatch.syspath_prepend(tmp_path)
    config, idx = (
        configured("--config-dir", str(tmp_path), "placement=own", *SIZES),
        torch.arange(8).view(2, 4) % 5,
    )
    refused = pytest.raises(ConfigError, match=rf"blocks\.0\.attn \({module}\.Wiring\):? {problem}")
    with refused if problem else nullcontext():
        build_and_try(config, 5, choose("cpu", "fp32"), lambda net: cross_entropy(net, idx, idx))


def test_a_module_derived_from_ours_is_the_users():
    class Derived(Residual):
        pass

    model, _ = model_and_loss("layernorm")
    assert foreign_wirings(model) == {}
    model.blocks[0].mlp.__class__ = Derived
    assert [*foreign_wirings(model)] == ["blocks.0.mlp"]
