"""Our LayerNorm is a drop-in for torch's in other people's models; docs/library.md shows how."""

import copy
import inspect
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from model.norms import GroupNorm, LayerNorm, RMSNorm
from tests.helpers.model import drawn


def randomized(net: nn.Module) -> nn.Module:
    """Make gains and biases neither 1 nor 0, so that leaving one out is noticed."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    return net


def with_ours(net: nn.Module) -> nn.Module:
    """Return a copy in which every LayerNorm of torch's is ours."""
    net = copy.deepcopy(net)
    for module in [*net.modules()]:
        for name, theirs in module.named_children():
            if type(theirs) is nn.LayerNorm:
                options = (theirs.elementwise_affine, theirs.bias is not None)
                where = (theirs.weight.device, theirs.weight.dtype)
                ours = LayerNorm(theirs.normalized_shape, theirs.eps, *options, *where)
                ours.load_state_dict(theirs.state_dict())
                setattr(module, name, ours)
    assert not any(isinstance(module, nn.LayerNorm) for module in net.modules())
    return net


# the constructor --------------------------------------------------------------------------------------


def test_its_signature_is_torchs_and_one_more_keyword():
    torchs = inspect.signature(nn.LayerNorm).parameters
    ours = inspect.signature(LayerNorm).parameters
    assert [*ours] == [*torchs, "detach_statistics"]
    for name, parameter in torchs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default)
    assert ours["detach_statistics"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize(
    "arguments",
    [
        (6,),
        (np.int64(6),),
        ([5, 6], 1e-3),
        (torch.Size([5, 6]), 1e-3, False),
        ((6,), 1e-3, False, True),
        (6, 1e-3, True, False),
        (6, 1e-5, True, True, "meta", torch.float16),
    ],
)
def test_its_attributes_are_torchs(arguments):
    ours, torchs = LayerNorm(*arguments), nn.LayerNorm(*arguments)
    for name in ("normalized_shape", "eps", "elementwise_affine"):
        assert getattr(ours, name) == getattr(torchs, name)
        assert type(getattr(ours, name)) is type(getattr(torchs, name))
    assert ours._parameters.keys() == torchs._parameters.keys()  # also where they are None
    for name, theirs in torchs._parameters.items():
        mine = getattr(ours, name)
        assert type(mine) is type(theirs)
        if theirs is not None:
            assert (mine.shape, mine.dtype, mine.device) == (theirs.shape, theirs.dtype, theirs.device)


@pytest.mark.parametrize(
    "wrong", [{"normalized_shape": -1}, {"normalized_shape": 6.0}, {"dtype": torch.int64}], ids=str
)
def test_arguments_that_torch_refuses_are_refused(wrong):
    arguments = {"normalized_shape": 6} | wrong
    with pytest.raises(Exception) as torchs:  # noqa: PT011
        nn.LayerNorm(**arguments)
    with pytest.raises(torchs.type):
        LayerNorm(**arguments)


REFUSED = {
    "other features": drawn((2, 7)),
    "integers": torch.ones(2, 6).long(),
    "complex numbers": torch.ones(2, 6).cdouble(),
}


@pytest.mark.parametrize("x", REFUSED.values(), ids=REFUSED)
def test_inputs_that_torch_refuses_are_refused(x):
    with pytest.raises(RuntimeError):
        nn.LayerNorm(6).double()(x)
    with pytest.raises(ValueError, match=r"LayerNorm over \(6,\) was given .* torch\."):
        LayerNorm(6).double()(x)


def test_it_can_be_made_on_the_meta_device_and_reset_elsewhere():
    norm = LayerNorm(6, device="meta")
    assert norm(torch.empty(2, 6, device="meta")).is_meta
    norm.to_empty(device="cpu")
    with torch.no_grad():
        norm.weight.fill_(7), norm.bias.fill_(7)
    norm.reset_parameters()
    assert (norm.weight.tolist(), norm.bias.tolist()) == ([1] * 6, [0] * 6)
    LayerNorm(6, elementwise_affine=False).reset_parameters()
    LayerNorm(6, bias=False).reset_parameters()


# values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_module_of_any_precision_gives_torchs_values(dtype):
    ours = randomized(LayerNorm(6, dtype=dtype))
    torchs = nn.LayerNorm(6, dtype=dtype)
    torchs.load_state_dict(ours.state_dict())
    results = []
    for norm in (ours, torchs):
        x = drawn((4, 6), dtype=torch.float32).to(dtype).requires_grad_()
        y = norm(x)
        y.square().sum().backward()
        results.append([y, x.grad, norm.weight.grad, norm.bias.grad])
    for mine, theirs in zip(*results, strict=True):
        assert mine.dtype == dtype
        tolerance = max(1e-5, 8 * torch.finfo(dtype).eps)
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def test_an_input_without_rows():
    x = torch.zeros(0, 6, requires_grad=True)
    LayerNorm(6)(x).sum().backward()
    assert x.grad.shape == (0, 6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
@pytest.mark.parametrize("detach", [False, True])
def test_it_compiles_in_one_piece(detach):
    norm = randomized(LayerNorm(6, detach_statistics=detach))
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    for rows in (3, 5, 7):  # from the second shape on it is compiled for any number
        x = drawn((rows, 6), dtype=torch.float32).requires_grad_()
        results = []
        for module in (norm, compiled):
            y = module(x)
            results.append([y, *torch.autograd.grad(y.pow(3).sum(), [x, *norm.parameters()])])
        for eager, other in zip(*results, strict=True):
            torch.testing.assert_close(eager, other, rtol=1e-4, atol=1e-4)


def test_it_is_exported():
    net, x = nn.Sequential(randomized(LayerNorm(6)), nn.Linear(6, 2)), drawn((3, 6), dtype=torch.float32)
    torch.testing.assert_close(torch.export.export(net, (x,)).module()(x), net(x))


def transformer(norm_first: bool) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=not norm_first)
    return randomized(encoder.double())


@pytest.mark.parametrize("norm_first", [True, False])
def test_in_torchs_own_transformer_outputs_and_all_gradients_are_the_same(norm_first):
    theirs, results = transformer(norm_first), []
    for net in (theirs, with_ours(theirs)):
        y = net(drawn((2, 5, 16)))
        (y * drawn(y.shape, seed=3)).sum().backward()
        results.append({"": y} | {name: p.grad for name, p in net.named_parameters()})
    assert all(tensor.abs().max() > 0 for tensor in results[0].values())
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_torchs_fast_path_reads_our_weights(norm_first):
    """In evaluation without gradients a layer is one kernel, given each norm's weight, bias and eps."""
    theirs = transformer(norm_first).eval()
    ours, x = with_ours(theirs), drawn((2, 5, 16))
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-10, atol=1e-10)
        expected = theirs(x, src_key_padding_mask=hidden)
        torch.testing.assert_close(ours(x, src_key_padding_mask=hidden), expected, rtol=1e-10, atol=1e-10)
        with mock.patch.object(LayerNorm, "forward", side_effect=AssertionError):
            ours.layers[0](x)


# higher derivatives ------------------------------------------------------------------------------------

NORMS = {
    "layernorm": LayerNorm(4),
    "rmsnorm": RMSNorm(4),
    "groupnorm": GroupNorm(4, 2),
}


@pytest.mark.parametrize("name", NORMS)
def test_first_and_second_derivatives_are_those_of_finite_differences(name):
    norm = randomized(copy.deepcopy(NORMS[name]).double())
    x = drawn((2, 3, 4)).requires_grad_()
    assert torch.autograd.gradcheck(norm, x, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(norm, x, check_batched_grad=True)


def formula(norm: LayerNorm, x: torch.Tensor, statistics_of: torch.Tensor) -> torch.Tensor:
    """LayerNorm's formula, differentiated by autograd."""
    mean, var = statistics_of.mean(-1, keepdim=True), statistics_of.var(-1, correction=0, keepdim=True)
    return (x - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias


@pytest.mark.parametrize("detach", [False, True])
def test_derivatives_of_any_order_are_those_of_the_formula(detach):
    """Up to the third derivative, which is wrong in torch 2.13's own LayerNorm. Detached statistics are
    constants in the higher derivatives, too."""
    norm = randomized(LayerNorm(4, detach_statistics=detach).double())
    for order in (1, 2, 3):
        results = []
        for form in (norm, lambda x: formula(norm, x, x.detach() if detach else x)):
            leaf = drawn((3, 4)).requires_grad_()
            y = form(leaf)
            for seed in range(order):
                y = y * y  # else the second derivative is 0 with constant statistics
                (y,) = torch.autograd.grad(y, leaf, drawn((3, 4), seed=seed + 5), create_graph=True)
            results.append(y)
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
        assert results[0].abs().max() > 0.1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
@pytest.mark.parametrize("norm", [LayerNorm(4), RMSNorm(4)], ids=["layernorm", "rmsnorm"])
def test_torch_func_and_forward_mode_are_refused(norm):
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(lambda x: norm(x).pow(3).sum())(torch.ones(4))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        norm(torch.autograd.forward_ad.make_dual(torch.ones(4), torch.ones(4)))
