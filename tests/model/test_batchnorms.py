"""Our norms over the batch equal torch's; those that torch does not have equal their formula."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from model.batchnorms import BatchNorm, PositionBatchNorm, PowerNorm, RunningBatchNorm, TorchBatchNorm
from tests.helpers import rank_program
from tests.helpers.model import SEEDS, SHAPES, assert_all_close, drawn, outcome, randomize


@given(shape=SHAPES.filter(lambda s: s[0] * s[1] > 1), affine=st.booleans(), seed=SEEDS)
@settings(max_examples=50)
def test_batchnorm_is_torchs_on_channels_first_in_training_and_evaluation(shape, affine, seed):
    ours = BatchNorm(shape[-1], momentum=0.3, affine=affine).double()
    torchs = nn.BatchNorm1d(shape[-1], momentum=0.3, affine=affine).double()
    randomize(ours)
    torchs.load_state_dict(ours.state_dict())

    class ChannelsLast(nn.Module):  # (B, T, C) through torch's (N, C, L)
        def __init__(self):
            super().__init__()
            self.norm = torchs

        def forward(self, x):
            return self.norm(x.transpose(1, 2)).transpose(1, 2)

    for step in range(3):
        x = drawn(shape, seed + step) * 3 + 2
        assert_all_close(outcome(ours, x), outcome(ChannelsLast(), x), 1e-8)
    x = drawn(shape, seed + 9)
    torch.testing.assert_close(ours.eval()(x), ChannelsLast().eval()(x))
    for key, value in ours.state_dict().items():  # running_var took the unbiased variance
        torch.testing.assert_close(value, torchs.state_dict()[key])


def test_one_value_per_channel_in_training_and_other_channels_are_errors():
    norm = BatchNorm(4)
    with pytest.raises(ValueError, match="more than one value"):
        norm(torch.zeros(1, 1, 4))
    assert norm.eval()(torch.zeros(1, 1, 4)).shape == (1, 1, 4)  # enough in evaluation
    with pytest.raises(ValueError, match=r"4 channels.*\(2, 5, 7\)"):
        norm(torch.zeros(2, 5, 7))


# other norms over the batch ----------------------------------------------------------------------------


def test_torch_batchnorm_is_ours_in_training_and_evaluation():
    ours, torchs = BatchNorm(5).double(), TorchBatchNorm(5).double()
    randomize(ours)
    torchs.load_state_dict(ours.state_dict())
    for training in (True, True, False):
        x = drawn((2, 4, 3, 5), 3 + training) * 2 + 1  # (B, heads, T, C)
        assert_all_close(outcome(ours.train(training), x), outcome(torchs.train(training), x), 1e-9)
    BatchNorm(5).load_state_dict(torchs.state_dict())


def test_position_batchnorm_is_torchs_with_a_channel_for_each_time_step():
    B, T, C = 4, 3, 5
    ours = PositionBatchNorm(C, max_steps=T, momentum=0.3).double()
    torchs = nn.BatchNorm1d(T * C, momentum=0.3, affine=False).double()
    for training in (True, True, False):
        x = drawn((B, T, C), 5 + training) * 2 + 1
        a = ours.train(training)(x)
        torch.testing.assert_close(a, torchs.train(training)(x.flatten(1)).view_as(x))
    torch.testing.assert_close(ours.running_var.flatten(), torchs.running_var)


@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_with_few_rows_of_a_large_mean_position_batchnorm_is_nearly_as_exact_as_torchs(mean):
    """The mean of four numbers around 1e4 is rounded by up to 0.0005 in fp32, in both."""
    ours, torchs = PositionBatchNorm(8, max_steps=16), nn.BatchNorm1d(16 * 8)
    errors = []
    for seed in range(10):
        x = drawn((4, 16, 8), seed, torch.float32) + mean
        exact = copy.deepcopy(ours).double()(x.double())
        errors.append([(y.view_as(x) - exact).abs().max().item() for y in (ours(x), torchs(x.flatten(1)))])
    of_ours, of_torchs = torch.tensor(errors).mean(0)
    assert of_ours < 3 * of_torchs
    assert of_ours < 1e-6 * max(mean, 1)


def test_position_batchnorm_takes_shorter_inputs_and_refuses_longer_ones():
    norm = PositionBatchNorm(5, max_steps=4)
    before = norm.running_mean.clone()
    norm(torch.randn(3, 2, 5))
    assert (norm.running_mean[:2] != before[:2]).all()
    assert torch.equal(norm.running_mean[2:], before[2:])
    with pytest.raises(ValueError, match="4 time steps was given 5"):
        norm(torch.randn(3, 5, 5))
    with pytest.raises(ValueError, match="more than one value"):
        norm(torch.randn(1, 2, 5))


def test_running_batchnorm_is_torchs_evaluation_with_the_previous_estimates():
    ours = RunningBatchNorm(5, momentum=0.3).double()
    torchs = TorchBatchNorm(5, momentum=0.3).double()
    randomize(ours)
    torchs.load_state_dict(ours.state_dict())
    for seed in range(4):
        x = drawn((2, 3, 5), seed) * 3 + 1
        expected = outcome(torchs.eval(), x)
        torchs.train()(x)  # updates the estimates
        assert_all_close(outcome(ours.train(), x), expected, 1e-10)
        torch.testing.assert_close(ours.state_dict(), torchs.state_dict())
    x = drawn((2, 3, 5), 9)
    torch.testing.assert_close(ours.eval()(x), torchs.eval()(x))


def test_powernorm_divides_by_the_running_mean_square_and_updates_it_afterwards():
    norm = PowerNorm(5, eps=1e-3, momentum=0.3).double()
    randomize(norm)
    psi2 = torch.ones(5).double()
    for seed in range(4):
        x = drawn((2, 3, 5), seed) * 3 + 1
        y = norm(x)
        torch.testing.assert_close(y, x / (psi2 + 1e-3).sqrt() * norm.weight + norm.bias)
        psi2 = 0.7 * psi2 + 0.3 * x.flatten(0, 1).square().mean(0)
    x = drawn((2, 3, 5), 9)
    expected = x / (psi2 + 1e-3).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm.eval()(x), expected)
    torch.testing.assert_close(norm(x), expected)  # evaluation updates nothing


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", [RunningBatchNorm, PowerNorm])
def test_the_compiled_gradient_uses_the_estimates_of_the_forward(kind, backend):
    """A compiler may compute 1/σ again in the backward. If the estimates were changed in place in between,
    torch 2.13 silently takes the new ones."""
    torch._dynamo.reset()
    models = [nn.Sequential(nn.Linear(5, 5), kind(5), nn.Tanh()) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    nets = (models[0], torch.compile(models[1], backend=backend, fullgraph=True))
    for seed in range(3):
        x = drawn((2, 3, 5), seed, torch.float32) * 3
        for net in nets:
            net(x).sum().backward()
        for a, b in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def on_shares(norms: list[nn.Module], x: torch.Tensor, g: torch.Tensor) -> list[list[np.ndarray]]:
    """Return, for each norm after three steps on this rank's share of x (B, T, C) with output gradient g:
    output, gradient of the input, state, gradients of the parameters."""
    rank, count = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    rows = len(x) // count
    share_of_rank = slice(rank * rows, (rank + 1) * rows)
    results = []
    for norm in copy.deepcopy(norms):
        for _ in range(3):
            share = x[share_of_rank].clone().requires_grad_()
            y = norm(share)
            y.backward(g[share_of_rank])
        state, gradients = norm.state_dict().values(), (p.grad for p in norm.parameters())
        results.append([tensor.detach().numpy().copy() for tensor in (y, share.grad, *state, *gradients)])
    return results


def test_the_shares_of_several_ranks_are_normalized_as_one_batch():
    kinds = (BatchNorm, partial(PositionBatchNorm, max_steps=5), RunningBatchNorm, PowerNorm)
    x, g = drawn((8, 5, 3)) * 3 + 2, drawn((8, 5, 3), 1)
    together = [kind(3).double() for kind in kinds]
    apart = [kind(3, sync=False).double() for kind in kinds[:2]]
    expected = on_shares(together, x, g)
    shares = rank_program.each(2, on_shares, [*together, *apart], x, g)
    for k, norm in enumerate(together):
        states = 2 + len(norm.state_dict())
        for i, tensor in enumerate(expected[k]):
            by_rank = [share[k][i] for share in shares]
            if i < 2:  # each rank has its rows
                np.testing.assert_allclose(np.concatenate(by_rank), tensor)
            elif i < states:  # the same on all ranks
                for state in by_rank:
                    np.testing.assert_allclose(state, tensor)
            else:  # this test sums over the ranks
                np.testing.assert_allclose(sum(by_rank), tensor)
        if k < len(apart):
            alone = np.concatenate([share[len(kinds) + k][0] for share in shares])
            assert abs(alone - expected[k][0]).max() > 1e-3
