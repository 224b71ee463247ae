"""Our norms over the batch are torch's where torch has them, and each leaks what it says and nothing else."""

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
from tests.model.test_norms import SEEDS, SHAPES, drawn, outcome, randomize


@given(shape=SHAPES.filter(lambda s: s[0] * s[1] > 1), affine=st.booleans(), seed=SEEDS)
@settings(max_examples=100, deadline=None)
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
        for a, b in zip(outcome(ours, x), outcome(ChannelsLast(), x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    for key, value in ours.state_dict().items():  # running_var took the unbiased variance, or this fails
        torch.testing.assert_close(value, torchs.state_dict()[key])
    x = drawn(shape, seed + 9)
    torch.testing.assert_close(ours.eval()(x), ChannelsLast().eval()(x))


def test_batchnorm_and_torchs_load_each_others_state():
    ours, torchs = BatchNorm(5), nn.BatchNorm1d(5)
    ours(torch.randn(2, 3, 5))
    torchs.load_state_dict(ours.state_dict())
    BatchNorm(5).load_state_dict(torchs.state_dict())
    assert torchs.num_batches_tracked == 1


def test_batchnorm_refuses_to_train_on_one_value_per_channel():
    norm = BatchNorm(4)
    with pytest.raises(ValueError, match="more than one value"):
        norm(torch.zeros(1, 1, 4))
    assert norm.eval()(torch.zeros(1, 1, 4)).shape == (1, 1, 4)  # in evaluation one is enough


def test_batchnorm_leaks_the_future_and_other_rows_in_training_and_not_in_evaluation():
    norm = BatchNorm(4).double()
    x = drawn((2, 5, 4))
    changed = x.clone()
    changed[1, -1] += 1  # the last position of the other row
    assert (norm(x) - norm(changed))[0].abs().max() > 1e-3
    norm.eval()
    assert torch.equal(norm(x)[0], norm(changed)[0])
    assert torch.equal(norm(x)[1, :-1], norm(changed)[1, :-1])


def test_batchnorm_in_evaluation_moves_no_buffer():
    norm = BatchNorm(4)
    norm(torch.randn(2, 5, 4))
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    norm.eval()(torch.randn(2, 5, 4))
    assert all(torch.equal(value, norm.state_dict()[key]) for key, value in before.items())


def test_other_channels_are_an_error_with_both_shapes():
    with pytest.raises(ValueError, match=r"8 channels.*\(2, 5, 7\)"):
        BatchNorm(8)(torch.zeros(2, 5, 7))


@given(seed=SEEDS, scale=st.floats(0.1, 50))
@settings(deadline=None)
def test_batchnorm_does_not_see_shift_or_scale_of_a_channel(seed, scale):
    x = drawn((3, 4, 5), seed)
    assert (BatchNorm(5, 1e-5 * scale**2).double()(x * scale) - BatchNorm(5).double()(x)).abs().max() < 1e-12
    a, b = torch.linspace(0.5, 3, 5).double(), drawn((5,), seed + 1)
    exact = BatchNorm(5, eps=0.0).double()
    assert (exact(a * x + b) - exact(x)).abs().max() < 1e-12
    x, at_each_step = drawn((16, 4, 5), seed + 3), drawn((4, 5), seed + 2).exp()
    by_position = PositionBatchNorm(5, max_steps=4, eps=0.0).double()
    assert (by_position(at_each_step * x + b) - by_position(x)).abs().max() < 1e-12
    assert (exact(at_each_step * x) - exact(x)).abs().max() > 1e-3


# the family ------------------------------------------------------------------------------------------


def flattened(norm: nn.Module) -> nn.Module:
    """(B, T, C) through torch's (N, C)."""

    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x.flatten(0, -2)).view_as(x)

    return Flattened()


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 4, 3, 5)])
def test_torch_batchnorm_is_ours_in_training_and_evaluation(shape):
    ours, torchs = BatchNorm(5).double(), TorchBatchNorm(5).double()
    randomize(ours)
    torchs.load_state_dict(ours.state_dict())
    for training in (True, True, False):
        x = drawn(shape, 3 + training) * 2 + 1
        pair = (ours.train(training), torchs.train(training))
        for a, b in zip(*(outcome(norm, x) for norm in pair), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    BatchNorm(5).load_state_dict(torchs.state_dict())


def test_by_position_it_is_torchs_with_a_channel_for_each_time_step():
    B, T, C = 4, 3, 5
    ours = PositionBatchNorm(C, max_steps=T, momentum=0.3).double()
    torchs = nn.BatchNorm1d(T * C, momentum=0.3, affine=False).double()
    for training in (True, True, False):
        x = drawn((B, T, C), 5 + training) * 2 + 1
        a = ours.train(training)(x)
        torch.testing.assert_close(a, torchs.train(training)(x.flatten(1)).view_as(x))
    torch.testing.assert_close(ours.running_var.flatten(), torchs.running_var)


def test_by_position_a_shorter_input_has_the_first_statistics_and_a_longer_one_is_refused():
    norm = PositionBatchNorm(5, max_steps=4)
    before = norm.running_mean.clone()
    norm(torch.randn(3, 2, 5))
    assert (norm.running_mean[:2] != before[:2]).all()
    assert torch.equal(norm.running_mean[2:], before[2:])
    with pytest.raises(ValueError, match="4 time steps was given 5"):
        norm(torch.randn(3, 5, 5))
    with pytest.raises(ValueError, match="more than one value"):
        norm(torch.randn(1, 2, 5))


def test_by_earlier_steps_it_is_torchs_in_evaluation_with_the_estimates_from_before():
    ours = RunningBatchNorm(5, momentum=0.3).double()
    torchs = nn.BatchNorm1d(5, momentum=0.3).double()
    randomize(ours)
    torchs.load_state_dict(ours.state_dict())
    for seed in range(4):
        x = drawn((2, 3, 5), seed) * 3 + 1
        before = outcome(flattened(torchs.eval()), x)
        flattened(torchs.train())(x)  # and now they move
        for a, b in zip(outcome(ours.train(), x), before, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ours.state_dict(), torchs.state_dict())
    x = drawn((2, 3, 5), 9)
    torch.testing.assert_close(ours.eval()(x), flattened(torchs.eval())(x))


def test_powernorm_divides_by_the_root_of_a_running_mean_square_and_moves_it_afterwards():
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
    torch.testing.assert_close(norm(x), expected)  # evaluation moves nothing


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of torch's code
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", [RunningBatchNorm, PowerNorm])
def test_compiled_its_gradient_is_by_the_estimates_of_the_forward(kind, backend):
    """A compiler may compute 1/σ in the backward again. Where the estimates were changed in place meanwhile,
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
    """What a rank has of each norm after three steps on its share of x (B, T, C), whose output has the
    gradient g: output, gradient of the input, state, gradients of the parameters."""
    rank, count = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    rows = len(x) // count
    mine = slice(rank * rows, (rank + 1) * rows)
    found = []
    for norm in copy.deepcopy(norms):
        for _ in range(3):
            share = x[mine].clone().requires_grad_()
            y = norm(share)
            y.backward(g[mine])
        state, gradients = norm.state_dict().values(), (p.grad for p in norm.parameters())
        found.append([tensor.detach().numpy().copy() for tensor in (y, share.grad, *state, *gradients)])
    return found


@pytest.mark.parametrize("count", [2, 4])
def test_the_shares_of_several_processes_are_normalized_as_one_batch(count):
    kinds = (BatchNorm, partial(PositionBatchNorm, max_steps=5), RunningBatchNorm, PowerNorm)
    x, g = drawn((8, 5, 3)) * 3 + 2, drawn((8, 5, 3), 1)
    together = [kind(3).double() for kind in kinds]
    own = [kind(3, sync=False).double() for kind in kinds[:2]]
    whole = on_shares(together, x, g)
    shares = rank_program.each(count, on_shares, [*together, *own], x, g)
    for k, norm in enumerate(together):
        states = 2 + len(norm.state_dict())
        for i, wanted in enumerate(whole[k]):
            found = [share[k][i] for share in shares]
            if i < 2:  # each has its rows
                np.testing.assert_allclose(np.concatenate(found), wanted)
            elif i < states:  # the same for all
                for one in found:
                    np.testing.assert_allclose(one, wanted)
            else:  # summed outside
                np.testing.assert_allclose(sum(found), wanted)
        if k < len(own):
            alone = np.concatenate([share[len(kinds) + k][0] for share in shares])
            assert abs(alone - whole[k][0]).max() > 1e-3
