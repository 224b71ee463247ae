"""Our norms are the functions of torch and x-transformers. LayerNorm is a drop-in for torch's."""

import inspect
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from model.norms import DynamicErf, DynamicTanh, GroupNorm, LayerNorm, RMSNorm, ScaleNorm
from tests.conftest import NORMS, configured
from tests.helpers.model import SEEDS, SHAPES, assert_all_close, drawn, outcome, randomize
from training.build import bind

# LayerNorm: values and gradients -----------------------------------------------------------------------


@given(shape=SHAPES, trailing=st.integers(1, 3), affine=st.booleans(), bias=st.booleans(), seed=SEEDS)
@example(shape=(4, 5, 2), trailing=1, affine=False, bias=False, seed=135)
@settings(max_examples=50)
def test_layernorm_is_torchs_forward_backward_and_state_dict(shape, trailing, affine, bias, seed):
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
    for norm in (LayerNorm(64), LayerNorm(64, dtype=dtype)):
        assert norm(x).dtype == dtype
        assert torch.equal(norm(x), F.layer_norm(x.float(), (64,)).to(dtype))


def standardized(x: Tensor, statistics_of: Tensor) -> Tensor:
    var, mean = torch.var_mean(statistics_of, -1, correction=0, keepdim=True)
    return (x - mean) / (var + 1e-5).sqrt()


FORMULAS = {
    "layernorm": (LayerNorm(6), lambda x: standardized(x, x)),
    "detached": (LayerNorm(6, detach_statistics=True), lambda x: standardized(x, x.detach())),
    "rmsnorm": (RMSNorm(6), lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()),
    "groupnorm": (GroupNorm(6, 2), lambda x: torch.cat([standardized(g, g) for g in x.chunk(2, -1)], -1)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_derivatives_of_any_order_are_those_of_the_formula(name):
    """Up to the third derivative, which is wrong in torch 2.13's own LayerNorm. Detached statistics are
    constants in every derivative (Xu et al. 2019)."""
    norm, formula = FORMULAS[name]
    for order in (0, 1, 2, 3):
        results = []
        for function in (norm.double(), formula):
            x = drawn((3, 6)).requires_grad_()
            y = function(x)
            for seed in range(order):
                y = y * y  # else the second derivative is 0 with constant statistics
                (y,) = torch.autograd.grad(y, x, drawn((3, 6), seed=seed + 5), create_graph=True)
            results.append(y)
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
        assert results[0].abs().max() > 0.1


# LayerNorm: a drop-in ----------------------------------------------------------------------------------


def test_the_signature_of_layernorm_is_torchs_and_one_more_keyword():
    ours, torchs = (inspect.signature(kind).parameters for kind in (LayerNorm, nn.LayerNorm))
    assert [*ours] == [*torchs, "detach_statistics"]
    for name, parameter in torchs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default)


@pytest.mark.parametrize(
    "arguments",
    [(6,), ([5, 6], 1e-3), (6, 1e-3, False, True), (6, 1e-3, True, False), (6, 1, True, True, "meta")],
    ids=str,
)
def test_the_attributes_of_layernorm_are_torchs(arguments):
    ours, torchs = LayerNorm(*arguments), nn.LayerNorm(*arguments)
    for name in ("normalized_shape", "eps", "elementwise_affine"):
        assert getattr(ours, name) == getattr(torchs, name)
    assert ours._parameters.keys() == torchs._parameters.keys()  # also where they are None
    for name, theirs in torchs.named_parameters():
        mine = ours.get_parameter(name)
        assert (mine.shape, mine.dtype, mine.device) == (theirs.shape, theirs.dtype, theirs.device)


@pytest.mark.parametrize("x", [torch.ones(2, 7), torch.ones(2, 6).long(), torch.ones(2, 6).cfloat()])
def test_inputs_that_torch_refuses_are_refused(x):
    with pytest.raises(ValueError, match=r"LayerNorm over \(6,\) was given .* torch\."):
        LayerNorm(6)(x)


def test_reset_parameters_restores_the_initial_values():
    norm = LayerNorm(6)
    randomize(norm)
    norm.reset_parameters()
    assert (norm.weight.tolist(), norm.bias.tolist()) == ([1] * 6, [0] * 6)
    LayerNorm(6, elementwise_affine=False).reset_parameters()


@pytest.mark.parametrize("norm_first", [True, False])
def test_in_torchs_own_transformer_it_gives_the_same_text_and_its_fast_path_reads_our_weights(norm_first):
    """In evaluation without gradients a layer is one kernel, given each norm's weight, bias and eps."""
    results = []
    for kind in (nn.LayerNorm, LayerNorm):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=norm_first)
        layer.norm1, layer.norm2 = kind(16), kind(16)
        randomize(layer.double())
        trained = outcome(layer, drawn((2, 5, 16)))
        with torch.no_grad(), mock.patch.object(kind, "forward", side_effect=AssertionError):
            results.append([*trained, layer.eval()(drawn((2, 5, 16)))])
    assert_all_close(*results, 1e-9)


# the same functions in other libraries -----------------------------------------------------------------


def same_as(ours: nn.Module, reference: nn.Module, x: Tensor, names: dict[str, str]) -> None:
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


class PerToken(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, -2)).view_as(x)  # (B·T, C)


@given(shape=SHAPES, groups=st.integers(1, 4), seed=SEEDS)
@settings(max_examples=25)
def test_rmsnorm_is_torchs_and_groupnorm_is_torchs_on_each_token(shape, groups, seed):
    C = shape[2] * groups
    x = drawn((*shape[:2], C), seed)
    same_as(RMSNorm(C, 1e-3).double(), nn.RMSNorm(C, 1e-3).double(), x, {"weight": "weight"})
    names = {"weight": "weight", "bias": "bias"}
    same_as(GroupNorm(C, groups, 1e-3).double(), PerToken(groups, C, eps=1e-3).double(), x, names)


def test_groups_must_divide_the_channels():
    with pytest.raises(ValueError, match="num_groups = 4 does not divide the 6 channels"):
        GroupNorm(6)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by einx
def test_scalenorm_dyt_and_derf_equal_x_transformers():
    from x_transformers import x_transformers as others

    n, x = 16, drawn((4, 2, 5, 16), 7)
    tanh = {"alpha": "pre_tanh_scale", "weight": "gamma", "bias": "beta"}
    erf = {"alpha": "alpha", "shift": "s", "weight": "gamma", "bias": "beta"}
    same_as(DynamicTanh(n).double(), others.DynamicTanh(n).double(), x, tanh)
    same_as(DynamicErf(n).double(), others.Derf(n).double(), x, erf)
    ours, reference = ScaleNorm(n).double(), others.ScaleNorm(n).double()
    assert torch.equal(ours.weight, torch.tensor(n**0.5).double())  # theirs is 1, multiplied by √n
    with torch.no_grad():
        ours.weight.fill_(1.3 * n**0.5), reference.g.fill_(1.3)
    torch.testing.assert_close(ours(x), reference(x), rtol=1e-10, atol=1e-10)
    assert torch.equal(ScaleNorm(4, eps=8.0)(torch.ones(4)), torch.full((4,), 2 / 8))  # √4·x / max(√4, ε)


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm, ScaleNorm, GroupNorm, DynamicTanh, DynamicErf])
def test_a_zero_vector_has_a_finite_output_and_gradient(kind):
    y, gradient, *_ = outcome(kind(8), torch.zeros(1, 2, 8))
    assert not y.any()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", [DynamicTanh, DynamicErf])
def test_alpha_depends_on_the_width_unless_it_is_given(kind):
    alphas = {n: round(kind(n).alpha.item(), 4) for n in (32, 768, 2047, 2048, 4096, 6000, 9000)}
    assert alphas == {32: 1, 768: 1, 2047: 1, 2048: 0.5, 4096: 0.2, 6000: 0.15, 9000: 0.05}
    assert kind(4096, alpha=0.8).alpha.item() == pytest.approx(0.8)


# every norm of conf/norm -------------------------------------------------------------------------------

VARIED = {  # differ on purpose
    "rmsnorm_no_gain": {"elementwise_affine"},
    "torch_rmsnorm": {"eps"},
    "batchnorm_position": {"max_steps"},
}


@pytest.mark.parametrize("name", NORMS)
def test_every_norms_yaml_equals_its_signature(name):
    """A default lives in YAML; if the class states it too, the two are equal."""
    component = configured(f"norm={name}", "model.bias=true").norm  # bias follows model.bias
    parameters = inspect.signature(bind("norm", component).func).parameters
    differ = {key for key, value in component.options.items() if parameters[key].default != value}
    assert differ == VARIED.get(name, set())
