"""Our norms over the batch are torch's where torch has them, and each leaks what it says and nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from model.batchnorms import BatchNorm
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
