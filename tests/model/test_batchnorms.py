"""Our norms over the batch equal torch's; those that torch does not have equal their formula."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from model.batchnorms import BatchNorm, PositionBatchNorm, PowerNorm, RunningBatchNorm, TorchBatchNorm
from tests.helpers import rank_program
from tests.helpers.model import SEEDS, SHAPES, assert_all_close, drawn, outcome, randomize


class ChannelsLast(nn.BatchNorm1d):
    """torch's norm over (N, C, L), for an input (B, T, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


@given(shape=SHAPES.filter(lambda s: s[0] * s[1] > 1), affine=st.booleans(), seed=SEEDS)
@settings(max_examples=25)
def test_batchnorm_is_torchs_on_channels_first_in_training_and_evaluation(shape, affine, seed):
    ours = BatchNorm(shape[-1], momentum=0.3, affine=affine).double()
    torchs = ChannelsLast(shape[-1], momentum=0.3, affine=affine).double()
    randomize(ours)
    torchs.load_state_dict(ours.state_dict())
    for step, training in enumerate((True, True, False)):
        x = drawn(shape, seed + step) * 3 + 2
        assert_all_close(outcome(ours.train(training), x), outcome(torchs.train(training), x), 1e-8)
    torch.testing.assert_close(ours.state_dict(), torchs.state_dict())  # of the unbiased variance


def test_batchnorm_of_queries_and_keys_is_torchs():
    ours, torchs = BatchNorm(5).double(), TorchBatchNorm(5).double()
    randomize(ours)
    torchs.load_state_dict(ours.state_dict())
    for step, training in enumerate((True, True, False)):
        x = drawn((2, 4, 3, 5), step) * 2 + 1  # (B, heads, T, C)
        assert_all_close(outcome(ours.train(training), x), outcome(torchs.train(training), x), 1e-9)


def test_one_value_per_channel_in_training_and_other_channels_are_errors():
    norm = BatchNorm(4)
    with pytest.raises(ValueError, match="more than one value"):
        norm(torch.zeros(1, 1, 4))
    assert norm.eval()(torch.zeros(1, 1, 4)).shape == (1, 1, 4)  # enough in evaluation
    with pytest.raises(ValueError, match=r"4 channels.*\(2, 5, 7\)"):
        norm(torch.zeros(2, 5, 7))


def test_position_batchnorm_is_torchs_with_a_channel_for_each_time_step():
    B, T, C = 4, 3, 5
    ours = PositionBatchNorm(C, max_steps=T, momentum=0.3).double()
    torchs = nn.BatchNorm1d(T * C, momentum=0.3, affine=False).double()
    for step, training in enumerate((True, True, False)):
        x = drawn((B, T, C), step) * 2 + 1
        expected = torchs.train(training)(x.flatten(1)).view_as(x)
        torch.testing.assert_close(ours.train(training)(x), expected)
    torch.testing.assert_close(ours.running_var.flatten(), torchs.running_var)


def test_position_batchnorm_takes_shorter_inputs_and_refuses_longer_ones():
    norm = PositionBatchNorm(5, max_steps=4)
    norm(torch.randn(3, 2, 5))
    assert norm.running_mean.any(1).tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match="4 time steps was given 5"):
        norm(torch.randn(3, 5, 5))
    with pytest.raises(ValueError, match="more than one value"):
        norm(torch.randn(1, 2, 5))


def test_running_batchnorm_is_torchs_evaluation_with_the_previous_estimates():
    ours = RunningBatchNorm(5, momentum=0.3).double()
    torchs = TorchBatchNorm(5, momentum=0.3).double()
    randomize(ours)
    torchs.load_state_dict(ours.state_dict())
    for step, training in enumerate((True, True, True, False)):
        x = drawn((2, 3, 5), step) * 3 + 1
        expected = outcome(torchs.eval(), x)
        torchs.train(training)(x)  # updates the estimates
        assert_all_close(outcome(ours.train(training), x), expected, 1e-10)
        torch.testing.assert_close(ours.state_dict(), torchs.state_dict())


def test_powernorm_divides_by_the_running_mean_square_and_updates_it_afterwards():
    norm = PowerNorm(5, eps=1e-3, momentum=0.3).double()
    randomize(norm)
    psi2 = torch.ones(5).double()
    for step, training in enumerate((True, True, False, False)):
        x = drawn((2, 3, 5), step) * 3 + 1
        y = norm.train(training)(x)
        torch.testing.assert_close(y, x / (psi2 + 1e-3).sqrt() * norm.weight + norm.bias)
        if training:
            psi2 = 0.7 * psi2 + 0.3 * x.square().mean((0, 1))


def on_share(norms: list[nn.Module], x: Tensor, g: Tensor) -> list[list[list]]:
    """Take two steps of each norm on this rank's share of x (B, T, C), with the output's gradient g. Return,
    for each norm, three kinds of arrays: output and gradient of the input; state; parameters' gradients."""
    rank, count = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    share, g = x.chunk(count)[rank].clone().requires_grad_(), g.chunk(count)[rank]
    results = []
    for norm in copy.deepcopy(norms):
        norm(share)
        y = norm(share)
        gradient, *gradients = torch.autograd.grad(y, [share, *norm.parameters()], g)
        kinds = [y, gradient], [*norm.state_dict().values()], gradients
        results.append([[tensor.detach().numpy() for tensor in kind] for kind in kinds])
    return results


def test_the_shares_of_several_ranks_are_normalized_as_one_batch():
    kinds = (BatchNorm, partial(PositionBatchNorm, max_steps=5), RunningBatchNorm, PowerNorm)
    together = [kind(3).double() for kind in kinds]
    x, g = drawn((8, 5, 3)) * 3 + 2, drawn((8, 5, 3), 1)
    x[4:] += 5  # another mean on the second rank
    apart = BatchNorm(3, sync=False).double()
    ranks = rank_program.each(2, on_share, [*together, apart], x, g)

    for norm, expected in enumerate(on_share(together, x, g)):
        by_kind = [zip(*kind, strict=True) for kind in zip(*(rank[norm] for rank in ranks), strict=True)]
        for kind, arrays in enumerate(by_kind):
            for of_ranks, array in zip(arrays, expected[kind], strict=True):
                if kind == 0:  # each rank has its rows
                    np.testing.assert_allclose(np.concatenate(of_ranks), array)
                elif kind == 1:  # the state is the same on all ranks
                    np.testing.assert_allclose(np.stack(of_ranks), np.stack([array, array]))
                else:  # DDP sums the gradients
                    np.testing.assert_allclose(sum(of_ranks), array)
    assert [rank[-1][0][0].mean() for rank in ranks] == pytest.approx([0, 0], abs=1e-9)
