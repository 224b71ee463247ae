"""Decoding token by token gives the text that the model itself would give, window by window."""

from functools import partial
from itertools import cycle, islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from model import GPT
from model.generate import Decoder, LinearIn, agrees, generate, uncached, window_start
from model.norms import LayerNorm
from model.placements import Pre
from tests.conftest import AROUND, configured
from training.build import build_model

V, T = 11, 8
SIZES = ("model.n_layer=2", "model.n_head=2", "model.n_embd=16", f"model.block_size={T}")


def made(*overrides: str) -> GPT:
    """A model whose every parameter and running estimate is random, in fp64: equal text is no luck."""
    model = build_model(configured(*SIZES, *overrides), V).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
            tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) + 0.1)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


def text(last_logits, prompt: Tensor, length: int) -> Tensor:
    """The likeliest token, the second, the third, the likeliest, …: else it may be one again and again."""
    rank = cycle(range(3))

    def draw(logits: Tensor) -> Tensor:
        return logits.argsort(dim=-1, descending=True)[:, next(rank)]

    return torch.stack([*islice(generate(last_logits, prompt, T, draw), length)], dim=1)


def prompts(rows: int = 1, length: int = 3) -> Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(2))


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_the_window_ends_with_the_newest_token_fits_and_hops_by_half(n, block_size):
    start, after = window_start(n, block_size), window_start(n + 1, block_size)
    assert 1 <= n - start <= block_size
    assert n - start > block_size // 2 or start == 0
    assert after - start in (0, max(1, block_size // 2))
    assert (after > start) == (n - start == block_size)  # no sooner than it is full


@pytest.mark.parametrize("block_size", [1, 2, 7, 8])
def test_what_the_model_is_given_is_the_window_of_that_many_tokens(block_size):
    seen = []

    def last_logits(window: Tensor) -> Tensor:
        seen.append(window[0].tolist())
        return torch.eye(100)[None, window[0, -1] + 1]

    prompt = torch.arange(3)[None]
    counted = generate(last_logits, prompt, block_size, partial(torch.argmax, dim=-1))
    assert [int(token) for token in islice(counted, 30)] == [*range(3, 33)]
    assert seen == [[*range(window_start(n, block_size), n)] for n in range(3, 33)]


@pytest.mark.parametrize(("norm", "placement"), AROUND)
def test_the_text_is_the_models_own_over_three_hops(norm, placement):
    model = made(f"norm={norm}", f"placement={placement}")
    assert agrees(model, V)
    expected = text(uncached(model), prompts(), T + 3 * T // 2 + 2)
    assert torch.equal(text(Decoder(model), prompts(), expected.shape[1]), expected)
    assert len(expected.unique()) > 2


@pytest.mark.parametrize(
    "options",
    [
        ("model=modern", *SIZES),
        ("model.qk_norm=same", "norm=batchnorm_position"),
        ("model.embedding_norm=same", "model.activation=swiglu", "norm=dyt"),
    ],
)
@pytest.mark.parametrize("length", [1, T - 1, T, T + 1, 3 * T])
def test_so_it_is_with_other_blocks_and_prompts_of_any_length(options, length):
    model = made(*options)
    assert agrees(model, V)
    prompt = prompts(length=length)
    assert torch.equal(text(Decoder(model), prompt, 20), text(uncached(model), prompt, 20))


def test_logits_are_those_of_the_model_to_rounding():
    model, idx = made(), prompts(2, T)
    decoder = Decoder(model)
    for n in range(4, T + 1):
        torch.testing.assert_close(decoder(idx[:, :n]), model(idx[:, :n])[:, -1], rtol=1e-9, atol=1e-9)


def test_in_bf16_matrices_have_half_of_the_bytes_and_logits_differ_by_its_rounding():
    model, idx = made("norm=batchnorm"), prompts(2, T)
    decoder = Decoder(model, torch.bfloat16)
    matrices = [module for module in decoder.net.modules() if isinstance(module, LinearIn)]
    assert len(matrices) == sum(isinstance(module, nn.Linear) for module in model.modules())
    assert all(module.weight.dtype == torch.bfloat16 for module in matrices)
    for n in range(4, T + 1):
        exact = model(idx[:, :n])[:, -1]
        assert 1e-5 < (decoder(idx[:, :n]) - exact).std() / exact.std() < 2**-6  # bf16 has 8 bits


def test_torchs_switches_are_as_before_also_after_an_error():
    model = made()
    for enabled in (True, False):
        before = torch.backends.mkldnn.set_flags(enabled)
        try:
            text(Decoder(model), prompts(1), 3)
            assert torch.backends.mkldnn.set_flags()[0] == enabled
            with pytest.raises(IndexError):
                Decoder(model)(torch.tensor([[V]]))
            assert torch.backends.mkldnn.set_flags()[0] == enabled
        finally:
            torch.backends.mkldnn.set_flags(before[0])


def test_several_rows_are_decoded_as_each_alone():
    model, prompt = made("norm=batchnorm"), prompts(3)
    together = text(Decoder(model), prompt, 30)
    for row in range(3):
        assert torch.equal(text(Decoder(model), prompt[row : row + 1], 30), together[row : row + 1])


def test_a_decoder_serves_another_text_and_leaves_the_model_as_it_is():
    model = made()
    decoder, before = Decoder(model.train()), {name: t.clone() for name, t in model.state_dict().items()}
    modules = [*model.modules()]
    first, second = prompts(1, 3), prompts(2, 6)[1:]
    for prompt in (first, second, first):  # the second is one longer than the window of the first ended
        assert torch.equal(text(decoder, prompt, 3), text(Decoder(model), prompt, 3))
    assert model.training
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_its_parameters_are_the_models_not_copies():
    model = made()
    memory = {p.data_ptr() for p in model.parameters()}
    assert {p.data_ptr() for p in Decoder(model).net.parameters()} == memory


class SoFar(nn.Module):
    """A norm by the mean over all time steps so far: causal, but no function of one position."""

    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
        return x - x.cumsum(1) / steps[:, None]


class Gated(nn.Module):
    """A norm with a matrix of its own, in a layer of its own kind, and a parameter called ``start``."""

    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    def __init__(self, n: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.ones(n))
        self.gate = self.Doubled(n, n)

    def forward(self, x: Tensor) -> Tensor:
        return self.start * x * self.gate(x).sigmoid()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_inside_of_a_norm_is_its_own(dtype):
    sizes = {"vocab_size": V, "block_size": T, "n_layer": 2, "n_head": 2, "n_embd": 16}
    model, idx = GPT(**sizes, norm=Gated, placement=Pre).eval(), prompts(1, T)
    assert agrees(model, V)
    decoder = Decoder(model, dtype)
    assert {type(m.gate).__name__ for m in decoder.net.modules() if hasattr(m, "gate")} == {"Doubled"}
    error = decoder(idx) - model(idx)[:, -1]
    assert error.std() < 0.05 * model(idx)[:, -1].std()


def test_a_norm_that_looks_at_other_tokens_is_found_out():
    sizes = {"vocab_size": V, "block_size": T, "n_layer": 2, "n_head": 2, "n_embd": 16}
    assert not agrees(GPT(**sizes, norm=SoFar, placement=Pre).eval(), V)
    assert agrees(GPT(**sizes, norm=LayerNorm, placement=Pre).eval(), V)
