"""Our norms are torch's functions, more exact where it matters; every norm of conf/ keeps the contract."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from model.norms import DynamicErf, DynamicTanh, GroupNorm, LayerNorm, RMSNorm, ScaleNorm
from tests.conftest import NORMS, configured
from training.build import bind

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(2, 17))
SEEDS = st.integers(0, 2**31)


def drawn(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def randomize(norm: nn.Module, seed: int = 1) -> None:
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(drawn(parameter.shape, seed, parameter.dtype))


def outcome(norm: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Output, and the gradients of input and parameters under a fixed random cotangent."""
    x = x.clone().requires_grad_()
    y = norm(x)
    cotangent = drawn(y.shape, 2, torch.float32).to(y.dtype)  # the same numbers in every precision
    return [y, *torch.autograd.grad((y * cotangent).sum(), [x, *norm.parameters()])]


# LayerNorm -------------------------------------------------------------------------------------------


@given(shape=SHAPES, trailing=st.integers(1, 3), affine=st.booleans(), bias=st.booleans(), seed=SEEDS)
@example(shape=(4, 5, 2), trailing=1, affine=False, bias=False, seed=135)
@settings(max_examples=100, deadline=None)
def test_layernorm_is_torchs_forward_and_backward(shape, trailing, affine, bias, seed):
    """In fp64 to 1e-11. In fp32 ours is held to torch's fp64: torch's own fp32 is off by more than 1e-3 where
    the features of a row are nearly equal, as for seed 135 with shape (4, 5, 2)."""
    options = {"eps": 1e-5, "elementwise_affine": affine, "bias": bias}
    ours = LayerNorm(shape[-trailing:], **options)
    randomize(ours)
    torchs = nn.LayerNorm(shape[-trailing:], **options).double()
    torchs.load_state_dict(ours.state_dict())
    x = drawn(shape, seed, torch.float32)
    exact = outcome(torchs, x.double())
    for a, b in zip(outcome(ours, x), exact, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-4, atol=2e-4)
    for a, b in zip(outcome(ours.double(), x.double()), exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("shape", [6, (6,), [6], torch.Size([6]), (5, 6), [4, 5, 6]])
def test_layernorm_takes_what_torchs_takes_as_normalized_shape(shape):
    x = drawn((3, 4, 5, 6))
    ours, torchs = LayerNorm(shape).double(), nn.LayerNorm(shape).double()
    assert ours.normalized_shape == torchs.normalized_shape
    torch.testing.assert_close(ours(x), torchs(x))


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}])
def test_layernorm_and_torchs_load_each_others_state(options):
    ours, torchs = LayerNorm((5, 6), **options), nn.LayerNorm((5, 6), **options)
    randomize(ours)
    torchs.load_state_dict(ours.state_dict())
    randomize(torchs, seed=3)
    ours.load_state_dict(torchs.state_dict())
    assert [*ours.state_dict()] == [*torchs.state_dict()]
    for key, value in ours.state_dict().items():
        assert torch.equal(value, torchs.state_dict()[key])


def test_layernorm_uses_the_biased_variance():
    x = drawn((4, 8))
    centred = x - x.mean(-1, keepdim=True)
    biased = centred / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    unbiased = centred / (x.var(-1, correction=1, keepdim=True) + 1e-5).sqrt()
    y = LayerNorm(8)(x)
    torch.testing.assert_close(y, biased)
    assert (y - unbiased).abs().max() > 0.01
    torch.testing.assert_close(y.square().mean(-1), torch.ones(4).double(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("mean", [100.0, 1000.0, 10_000.0])
def test_layernorm_is_more_exact_than_torchs_on_rows_with_a_large_mean(mean):
    row = (mean + torch.arange(64, dtype=torch.float32) * 1e-3 * mean / 100)[None]
    exact = F.layer_norm(row.double(), (64,))
    ours = (LayerNorm(64)(row) - exact).abs().max()
    torchs = (F.layer_norm(row, (64,)) - exact).abs().max()
    assert ours < 1e-5
    assert ours < torchs


def test_where_the_one_pass_variance_is_nan_ours_is_right():
    row = (100 + torch.arange(32, dtype=torch.float32) * 1e-3)[None]
    one_pass = row.square().mean(-1) - row.mean(-1).square()  # cancels to less than 0
    assert torch.rsqrt(one_pass + 1e-5).isnan().all()
    torch.testing.assert_close(
        LayerNorm(32)(row).double(), F.layer_norm(row.double(), (32,)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layernorm_takes_statistics_of_low_precision_in_fp32(dtype):
    x = (
        drawn((3, 64), dtype=torch.float32).to(dtype) + 30
    )  # in bf16, spread and mean are of one size of rounding
    y = LayerNorm(64)(x)
    assert y.dtype == dtype
    assert torch.equal(y, LayerNorm(64)(x.float()).to(dtype))


def test_layernorm_keeps_fp64():
    x = drawn((3, 8))
    assert LayerNorm(8).double()(x).dtype == torch.float64
    assert (
        LayerNorm(8).double()(x) - LayerNorm(8)(x.float())
    ).abs().max() > 0  # it did not pass through fp32


def test_a_shape_that_does_not_fit_is_an_error_with_both_shapes():
    with pytest.raises(ValueError, match=r"\(5, 6\).*\(2, 5, 7\)"):
        LayerNorm((5, 6))(torch.zeros(2, 5, 7))


def test_without_a_gradient_through_its_statistics_layernorm_is_the_same_function_and_differs_backward():
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


# what each norm does not see: exact, as ε goes along with the scale ---------------------------------------

SCALES, SHIFTS = st.floats(0.1, 50), st.floats(-5, 5)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() < 1e-12 * max(1.0, b.abs().max().item()))


@given(seed=SEEDS, shift=SHIFTS, scale=SCALES)
@settings(deadline=None)
def test_layernorm_does_not_see_shift_or_scale_of_a_token(seed, shift, scale):
    x = drawn((2, 3, 16), seed)
    shifts, scales = shift * drawn((2, 3, 1), seed + 1), scale
    assert close(LayerNorm(16, 1e-5 * scale**2).double()(x * scales), LayerNorm(16, 1e-5).double()(x))
    assert (LayerNorm(16).double()(x + shifts) - LayerNorm(16).double()(x)).abs().max() < 1e-12


@given(seed=SEEDS, scale=SCALES)
@settings(deadline=None)
def test_rmsnorm_and_scalenorm_do_not_see_the_scale_of_a_token_but_its_shift(seed, scale):
    x = drawn((2, 3, 16), seed)
    assert close(RMSNorm(16, 1e-5 * scale**2).double()(x * scale), RMSNorm(16, 1e-5).double()(x))
    assert close(ScaleNorm(16, 1e-5 * scale).double()(x * scale), ScaleNorm(16, 1e-5).double()(x))
    for norm in (RMSNorm(16).double(), ScaleNorm(16).double()):
        assert (norm(x + 1) - norm(x)).abs().max() > 0.1


@given(seed=SEEDS, scale=SCALES)
@settings(deadline=None)
def test_groupnorm_does_not_see_shift_or_scale_of_a_tokens_group(seed, scale):
    x, norm = drawn((2, 3, 64), seed), GroupNorm(64, 4, eps=0.0).double()
    scales = scale * torch.tensor([1.0, 2.0, 0.5, 3.0]).double().repeat_interleave(16)
    shifts = drawn((2, 3, 4), seed + 1).repeat_interleave(16, dim=-1)
    assert (norm(x * scales + shifts) - norm(x)).abs().max() < 1e-12
    assert close(GroupNorm(64, 4, 1e-5 * scale**2).double()(x * scale), GroupNorm(64, 4, 1e-5).double()(x))
    assert (norm(x * torch.linspace(1, 2, 64)) - norm(x)).abs().max() > 0.01  # within a group it does


@given(seed=SEEDS)
@settings(deadline=None)
def test_dyt_and_derf_are_bounded_odd_and_take_each_number_by_itself(seed):
    x = drawn((2, 3, 16), seed)
    for norm in (DynamicTanh(16, alpha=0.7).double(), DynamicErf(16, alpha=0.7).double()):
        y = norm(x)
        assert y.abs().max() < 1
        assert torch.equal(norm(-x), -y)
        assert torch.equal(norm(x[:1, 1:2, 3:4].expand(1, 1, 16))[..., 0], y[:1, 1:2, 3])


# the same by others ----------------------------------------------------------------------------------


def same_as(ours: nn.Module, theirs: nn.Module, x: torch.Tensor, names: dict[str, str]) -> None:
    """Output and all gradients, with the same random parameters; ``names``: ours to theirs."""
    randomize(ours)
    with torch.no_grad():
        for mine, other in names.items():
            theirs.get_parameter(other).copy_(ours.get_parameter(mine))
    found = [
        dict(zip(("y", "x", *dict(norm.named_parameters())), outcome(norm, x), strict=True))
        for norm in (ours, theirs)
    ]
    for mine, other in {"y": "y", "x": "x", **names}.items():
        torch.testing.assert_close(found[0][mine], found[1][other], rtol=1e-10, atol=1e-10)


@given(shape=SHAPES, seed=SEEDS)
@settings(max_examples=50, deadline=None)
def test_rmsnorm_is_torchs(shape, seed):
    ours, torchs = RMSNorm(shape[-1], 1e-3).double(), nn.RMSNorm(shape[-1], 1e-3).double()
    same_as(ours, torchs, drawn(shape, seed), {"weight": "weight"})
    torchs.load_state_dict(ours.state_dict())
    assert not list(RMSNorm(4, elementwise_affine=False).parameters())


@given(shape=SHAPES, groups=st.integers(1, 4), seed=SEEDS)
@settings(max_examples=50, deadline=None)
def test_groupnorm_is_torchs_on_every_token_alone(shape, groups, seed):
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
def test_scalenorm_dyt_and_derf_are_those_of_x_transformers(shape):
    from x_transformers import x_transformers as others

    n = shape[-1]
    x = drawn(shape, 7)
    tanh = {"alpha": "pre_tanh_scale", "weight": "gamma", "bias": "beta"}
    erf = {"alpha": "alpha", "shift": "s", "weight": "gamma", "bias": "beta"}
    same_as(DynamicTanh(n).double(), others.DynamicTanh(n).double(), x, tanh)
    same_as(DynamicErf(n).double(), others.Derf(n).double(), x, erf)
    ours, theirs = ScaleNorm(n).double(), others.ScaleNorm(n).double()
    assert torch.equal(ours.weight, torch.tensor(n**0.5).double())  # theirs is 1, and √n apart from it
    with torch.no_grad():
        theirs.g.fill_(1.3)
        ours.weight.fill_(1.3 * n**0.5)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-10, atol=1e-10)


def test_a_zero_vector_has_a_finite_output_and_gradient():
    for norm in (LayerNorm(8), RMSNorm(8), ScaleNorm(8), GroupNorm(8), DynamicTanh(8), DynamicErf(8)):
        x = torch.zeros(1, 2, 8, requires_grad=True)
        y = norm(x)
        y.sum().backward()
        assert not y.any()
        assert x.grad.isfinite().all()


def test_alpha_is_that_of_the_width_unless_it_is_given():
    for kind in (DynamicTanh, DynamicErf):
        found = {n: round(kind(n).alpha.item(), 4) for n in (32, 768, 2047, 2048, 4096, 6000, 9000)}
        assert found == {32: 1, 768: 1, 2047: 1, 2048: 0.5, 4096: 0.2, 6000: 0.15, 9000: 0.05}
        assert kind(4096, alpha=0.8).alpha.item() == pytest.approx(0.8)


# every norm of conf/norm -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NORMS)
def test_every_norm_keeps_shape_and_dtype_and_gives_finite_gradients(name):
    norm = bind("norm", configured(f"norm={name}").norm)(12)
    for dtype in (torch.float32, torch.bfloat16):
        y = norm.to(dtype)(drawn((2, 3, 12), dtype=dtype).requires_grad_())
        assert (y.shape, y.dtype) == ((2, 3, 12), dtype)
        y.float().square().sum().backward()
        assert all(p.grad.isfinite().all() for p in norm.parameters())


VARIED = {
    "rmsnorm_no_gain": {"elementwise_affine"},
    "torch_rmsnorm": {"eps"},
    "batchnorm_position": {"max_steps"},
}  # on purpose


@pytest.mark.parametrize("name", NORMS)
def test_every_norms_yaml_says_what_its_signature_says(name):
    """A default has one home, YAML; where the class must state it as well, the two are equal."""
    component = configured(f"norm={name}", "model.bias=true").norm  # bias follows model.bias
    parameters = inspect.signature(bind("norm", component).func).parameters
    differ = {key for key, value in component.options.items() if parameters[key].default != value}
    assert differ == VARIED.get(name, set())
