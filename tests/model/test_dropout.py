"""Our dropout is torch's except for the random numbers that it draws."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.layers import Dropout, dropout


def ones(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, requires_grad=True)


@settings(max_examples=10)
@given(st.floats(0.001, 0.999), st.integers(0, 2**31))
def test_a_share_p_is_zero_and_the_mean_is_kept(p, seed):
    n = 100_000
    torch.manual_seed(seed)
    y = dropout(ones(n), p, training=True)
    kept = y[y != 0]
    assert kept.unique().numel() == 1
    assert abs(kept[0].item() * (1 - p) - 1) < 2**-16 / (1 - p)  # p is rounded
    assert abs(len(kept) / n - (1 - p)) < 6 * (p * (1 - p) / n) ** 0.5 + 2**-17  # six standard errors


@pytest.mark.parametrize("p", [1e-300, 1 - 2**-53])
def test_the_mean_is_kept_even_near_0_and_1(p):
    torch.manual_seed(0)
    y = dropout(ones(2**20), p, training=True)
    assert y.isfinite().all()
    assert abs(y.mean().item() - 1) < 6 * max(y.max().item() / 2**20, 2**-20) ** 0.5


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_elements_are_independent_of_their_neighbours(p):
    torch.manual_seed(0)
    kept = (dropout(ones(2**20), p, training=True) != 0).double() - (1 - p)
    for distance in range(1, 9):  # four share a random number
        correlation = (kept[:-distance] * kept[distance:]).mean() / (p * (1 - p))
        assert abs(correlation) < 6 / 2**10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_and_dtype_are_kept_and_the_gradient_is_the_mask(dtype):
    for shape in ((), (5,), (3, 0), (2, 3, 5)):
        x = ones(*shape, dtype=dtype)
        y = dropout(x, 0.3, training=True)
        y.sum().backward()
        assert (y.shape, y.dtype) == (x.shape, dtype)
        assert torch.equal(x.grad, y.detach())


def test_in_evaluation_and_at_0_x_is_returned_and_nothing_is_drawn():
    x, before = ones(10), torch.get_rng_state()
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_p_outside_of_0_to_1_is_refused(p):
    with pytest.raises(ValueError, match=r"dropout = .* is not a probability in \[0, 1\)"):
        Dropout(p)
