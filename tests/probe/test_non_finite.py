"""The first non-finite number is located. (In whole runs: tests/test_train.py.)"""

import math

import torch
from torch import nn

from probe.non_finite import first_non_finite


def place(net: nn.Module, x: torch.Tensor) -> str | None:
    return first_non_finite(net, lambda forward: forward(x).square().mean())


def test_a_parameter_comes_before_an_output_and_that_before_a_gradient():
    net = nn.Sequential(nn.Linear(2, 2), nn.Identity(), nn.BatchNorm1d(2))
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    assert place(net, x) is None
    assert place(net, x * math.inf) == "0"
    handle = net[1].register_forward_hook(lambda module, args, output: output * math.nan)
    assert place(net, x) == "1"
    handle.remove()

    def spoil_the_gradient(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * math.nan)

    net[1].register_forward_hook(spoil_the_gradient)
    assert place(net, x) == "the gradient of 0.bias"
    net[2].running_mean.fill_(math.nan)
    assert place(net.requires_grad_(False), x) == "2.running_mean"
    net[0].weight.fill_(math.inf)
    assert place(net, x) == "0.weight"


def test_an_overflow_of_the_gradients_norm_is_named():
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.fill_(1.0)
    assert place(net, torch.full((1, 2), 1e12)).startswith("the gradient's norm")


def test_the_search_leaves_no_trace():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    place(net, torch.ones(3, 2))
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
