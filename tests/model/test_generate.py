"""Decoding token by token gives the text that the model itself gives, window by window."""

import threading
from functools import partial
from itertools import cycle, islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from model import GPT
from model.fast_decode import LinearIn
from model.generate import Decoder, agrees, generate, uncached, window_start
from model.norms import LayerNorm
from tests.conftest import AROUND, configured, daily
from tests.helpers.model import SMALL_KEYS, MinusPastMean, random_tokens, small
from training.build import build_model

V, T = 11, 8


def random_model(*overrides: str) -> GPT:
    """Return a model in fp64 with random parameters and estimates, so that equal text is not by chance."""
    model = build_model(configured(*SMALL_KEYS, *overrides), V).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
            tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) + 0.1)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


def text(last_logits, prompt: Tensor, length: int) -> Tensor:
    """Draw the likeliest token, the second, the third, the likeliest, …, so that the text has variety."""
    rank = cycle(range(3))

    def draw(logits: Tensor) -> Tensor:
        return logits.argsort(dim=-1, descending=True)[:, next(rank)]

    return torch.stack([*islice(generate(last_logits, prompt, T, draw), length)], dim=1)


def prompts(rows: int = 1, length: int = 3) -> Tensor:
    return random_tokens(rows, length, seed=2)


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_the_window_ends_with_the_newest_token_fits_and_hops_by_half(n, block_size):
    start, after = window_start(n, block_size), window_start(n + 1, block_size)
    assert 1 <= n - start <= block_size
    assert n - start > block_size // 2 or start == 0
    assert after - start in (0, max(1, block_size // 2))
    assert (after > start) == (n - start == block_size)  # it hops when it is full


@pytest.mark.parametrize("block_size", [1, 2, 7])
def test_the_model_is_given_the_window_of_that_many_tokens(block_size):
    windows = []

    def last_logits(window: Tensor) -> Tensor:
        windows.append(window[0].tolist())
        return torch.eye(100)[None, window[0, -1] + 1]

    counted = generate(last_logits, torch.arange(3)[None], block_size, partial(torch.argmax, dim=-1))
    assert [int(token) for token in islice(counted, 30)] == [*range(3, 33)]
    assert windows == [[*range(window_start(n, block_size), n)] for n in range(3, 33)]


@pytest.mark.parametrize(("norm", "placement"), daily(AROUND, lambda number: number % 3 == 0, others="slow"))
def test_the_text_is_the_models_own_over_three_hops(norm, placement):
    model = random_model(f"norm={norm}", f"placement={placement}")
    assert agrees(model, V)
    expected = text(uncached(model), prompts(), T + 3 * T // 2 + 2)
    assert torch.equal(text(Decoder(model), prompts(), expected.shape[1]), expected)
    assert len(expected.unique()) > 2


@pytest.mark.parametrize(
    "options",
    [
        ("model=modern", *SMALL_KEYS),
        ("model.qk_norm=same", "norm=batchnorm_position"),
        ("model.embedding_norm=same", "model.activation=swiglu", "norm=dyt", "model.positions=none"),
    ],
)
def test_the_text_is_the_models_own_with_other_blocks_several_rows_and_prompts_of_any_length(options):
    model = random_model(*options)
    assert agrees(model, V)
    decoder = Decoder(model)  # one decoder can change texts
    for rows, length in ((1, 1), (3, T), (1, 3 * T), (1, 3 * T + 20)):
        prompt = prompts(rows, length)
        assert torch.equal(text(decoder, prompt, 20), text(uncached(model), prompt, 20))


def test_in_bf16_matrices_have_half_the_bytes_and_logits_differ_by_rounding():
    model, idx = random_model("norm=batchnorm"), prompts(2, T)
    decoder = Decoder(model, torch.bfloat16)
    matrices = [module for module in decoder.net.modules() if isinstance(module, LinearIn)]
    assert len(matrices) == sum(isinstance(module, nn.Linear) for module in model.modules())
    assert all(module.weight.dtype == torch.bfloat16 for module in matrices)
    for n in range(4, T + 1):
        exact = model(idx[:, :n])[:, -1]
        assert 1e-5 < (decoder(idx[:, :n]) - exact).std() / exact.std() < 2**-6  # bf16: 8 bits


def test_a_decoder_leaves_the_model_unchanged():
    model = random_model().train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    modules = [*model.modules()]
    text(Decoder(model), prompts(), 3)
    assert model.training
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


class Gated(nn.Module):
    """A norm with a matrix, in a linear layer of another class, and a parameter called ``start``."""

    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    def __init__(self, n: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.ones(n))
        self.gate = self.Doubled(n, n)

    def forward(self, x: Tensor) -> Tensor:
        return self.start * x * self.gate(x).sigmoid()


class Clipped(LayerNorm):
    """A subclass, which torch's LayerNorm may not replace."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(-0.5, 0.5)


@pytest.mark.parametrize("norm", [Gated, Clipped])
def test_a_users_norm_is_neither_replaced_nor_changed_inside(norm):
    model, idx = small(norm=norm).eval(), prompts(1, T)
    assert agrees(model, V)
    torch.testing.assert_close(Decoder(model)(idx), model(idx)[:, -1])


class ByEarlierChunk(nn.Module):
    """x over the root mean square of the 4 tokens before its own chunk of 4."""

    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        chunks = [*x.split(4, 1)]
        scales = [torch.ones_like(x[:, :1]), *(c.square().mean((1, 2), keepdim=True).sqrt() for c in chunks)]
        return torch.cat([chunk / scale for chunk, scale in zip(chunks, scales, strict=False)], 1)


class CalledByAttribute(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.forward = nn.LayerNorm(n).forward


class WithLock(nn.LayerNorm):
    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.lock = threading.Lock()  # which cannot be copied


@pytest.mark.parametrize("norm", [MinusPastMean, ByEarlierChunk, CalledByAttribute, WithLock])
def test_a_norm_that_looks_at_other_tokens_or_that_the_decoder_cannot_rebuild_has_no_cache(norm):
    assert not agrees(small(norm=norm).eval(), V)
