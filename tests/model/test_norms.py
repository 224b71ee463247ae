"""Our norms are torch's functions, more accurate where it matters; every norm of conf/ keeps the contract."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from model.norms import DynamicErf, DynamicTanh, GroupNorm, LayerNorm, RMSNorm, ScaleNorm
from tests.conftest import NORMS, configured
from tests.helpers.model import SEEDS, SHAPES, assert_all_close, drawn, outcome, randomize
from training.build import bind

# LayerNorm -------------------------------------------------------------------------------------------


@given(shape=SHAPES, trailing=st.integers(1, 3), affine=st.booleans(), bias=st.booleans(), seed=SEEDS)
@example(shape=(4, 5, 2), trailing=1, affine=False, bias=False, seed=135)
@settings(max_examples=100)
def test_layernorm_is_torchs_forward_and_backward(shape, trailing, affine, bias, seed):
    """In fp64 they agree to 1e-11. In fp32 ours is compared with torch's fp64: torch's own fp32 is off by
    more than 1e-3 if the features of a row are nearly equal, as for seed 135 with shape (4, 5, 2)."""
    options = {"eps": 1e-5, "elementwise_affine": affine, "bias": bias}
    ours = LayerNorm(shape[-trailing:], **options)
    randomize(ours)
    torchs = nn.LayerNorm(shape[-trailing:], **options).double()
    torchs.load_state_dict(ours.state_dict())
    x = drawn(shape, seed, torch.float32)
    exact = outcome(torchs, x.double())
    assert_all_close([result.double() for result in outcome(ours, x)], exact, 2e-4)
    assert_all_close(outcome(ours.double(), x.double()), exact, 1e-11)


@pytest.mark.parametrize("mean", [100.0, 1000.0, 10_000.0])
def test_layernorm_is_more_accurate_than_torchs_on_rows_with_a_large_mean(mean):
    row = (mean + torch.arange(64, dtype=torch.float32) * 1e-3 * mean / 100)[None]
    exact = F.layer_norm(row.double(), (64,))
    ours = (LayerNorm(64)(row) - exact).abs().max()
    torchs = (F.layer_norm(row, (64,)) - exact).abs().max()
    assert ours < 1e-5
    assert ours < torchs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layernorm_takes_statistics_of_low_precision_in_fp32(dtype):
    x = drawn((3, 64), dtype=torch.float32).to(dtype) + 30  # bf16 rounds by as much as these differ
    y = LayerNorm(64)(x)
    assert y.dtype == dtype
    assert torch.equal(y, LayerNorm(64)(x.float()).to(dtype))


def test_detached_statistics_change_the_gradient_of_layernorm_and_not_its_output():
    """Xu et al. 2019: with μ and σ as constants the gradient of the input is that of the output over σ."""
    x = drawn((2, 3, 6)).requires_grad_()
    norm, detached = LayerNorm(6).double(), LayerNorm(6, detach_statistics=True).double()
    randomize(norm)
    detached.load_state_dict(norm.state_dict())
    assert torch.equal(norm(x), detached(x))
    g = drawn((2, 3, 6), seed=5)
    (gradient,) = torch.autograd.grad(detached(x), x, g)
    sigma = (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(gradient, g * norm.weight / sigma)
    (other,) = torch.autograd.grad(norm(x), x, g)
    assert (gradient - other).abs().max() > 0.1


# the same functions in other libraries ---------------------------------------------------------------


def same_as(ours: nn.Module, reference: nn.Module, x: torch.Tensor, names: dict[str, str]) -> None:
    """Compare output and all gradients, with the same random parameters; ``names`` maps ours to reference."""
    randomize(ours)
    with torch.no_grad():
        for mine, other in names.items():
            reference.get_parameter(other).copy_(ours.get_parameter(mine))
    results = [
        dict(zip(("y", "x", *dict(norm.named_parameters())), outcome(norm, x), strict=True))
        for norm in (ours, reference)
    ]
    for mine, other in {"y": "y", "x": "x", **names}.items():
        torch.testing.assert_close(results[0][mine], results[1][other], rtol=1e-10, atol=1e-10)


@given(shape=SHAPES, seed=SEEDS)
@settings(max_examples=50)
def test_rmsnorm_is_torchs(shape, seed):
    ours, torchs = RMSNorm(shape[-1], 1e-3).double(), nn.RMSNorm(shape[-1], 1e-3).double()
    same_as(ours, torchs, drawn(shape, seed), {"weight": "weight"})
    torchs.load_state_dict(ours.state_dict())
    assert not list(RMSNorm(4, elementwise_affine=False).parameters())


@given(shape=SHAPES, groups=st.integers(1, 4), seed=SEEDS)
@settings(max_examples=50)
def test_groupnorm_is_torchs_on_each_token(shape, groups, seed):
    B, T, C = shape[0], shape[1], shape[2] * groups

    class PerToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(groups, C, eps=1e-3).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x.flatten(0, 1)).view_as(x)  # (B·T, C)

    names = {"weight": "norm.weight", "bias": "norm.bias"}
    same_as(GroupNorm(C, groups, 1e-3).double(), PerToken(), drawn((B, T, C), seed), names)


def test_groups_must_divide_the_channels():
    with pytest.raises(ValueError, match="num_groups = 4 does not divide the 6 channels"):
        GroupNorm(6)


@pytest.mark.parametrize("shape", [(2, 3, 8), (1, 1, 3), (4, 2, 5, 16)])
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by einx
def test_scalenorm_dyt_and_derf_equal_x_transformers(shape):
    from x_transformers import x_transformers as others

    n = shape[-1]
    x = drawn(shape, 7)
    tanh = {"alpha": "pre_tanh_scale", "weight": "gamma", "bias": "beta"}
    erf = {"alpha": "alpha", "shift": "s", "weight": "gamma", "bias": "beta"}
    same_as(DynamicTanh(n).double(), others.DynamicTanh(n).double(), x, tanh)
    same_as(DynamicErf(n).double(), others.Derf(n).double(), x, erf)
    ours, reference = ScaleNorm(n).double(), others.ScaleNorm(n).double()
    assert torch.equal(ours.weight, torch.tensor(n**0.5).double())  # theirs is 1, multiplied by √n
    with torch.no_grad():
        reference.g.fill_(1.3)
        ours.weight.fill_(1.3 * n**0.5)
    torch.testing.assert_close(ours(x), reference(x), rtol=1e-10, atol=1e-10)
    assert torch.equal(ScaleNorm(4, eps=8.0)(torch.ones(4)), torch.full((4,), 2 / 8))  # √4·x / max(√4, ε)


def test_a_zero_vector_has_a_finite_output_and_gradient():
    for norm in (LayerNorm(8), RMSNorm(8), ScaleNorm(8), GroupNorm(8), DynamicTanh(8), DynamicErf(8)):
        x = torch.zeros(1, 2, 8, requires_grad=True)
        y = norm(x)
        y.sum().backward()
        assert not y.any()
        assert x.grad.isfinite().all()


def test_alpha_depends_on_the_width_unless_it_is_given():
    for kind in (DynamicTanh, DynamicErf):
        alphas = {n: round(kind(n).alpha.item(), 4) for n in (32, 768, 2047, 2048, 4096, 6000, 9000)}
        assert alphas == {32: 1, 768: 1, 2047: 1, 2048: 0.5, 4096: 0.2, 6000: 0.15, 9000: 0.05}
        assert kind(4096, alpha=0.8).alpha.item() == pytest.approx(0.8)


# every norm of conf/norm -----------------------------------------------------------------------------


VARIED = {
    "rmsnorm_no_gain": {"elementwise_affine"},
    "torch_rmsnorm": {"eps"},
    "batchnorm_position": {"max_steps"},
}  # differ on purpose


@pytest.mark.parametrize("name", NORMS)
def test_every_norms_yaml_equals_its_signature(name):
    """A default lives in YAML; if the class states it too, the two are equal."""
    component = configured(f"norm={name}", "model.bias=true").norm  # bias follows model.bias
    parameters = inspect.signature(bind("norm", component).func).parameters
    differ = {key for key, value in component.options.items() if parameters[key].default != value}
    assert differ == VARIED.get(name, set())
