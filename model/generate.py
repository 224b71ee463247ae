"""Generation of text from a GPT, token by token, with a key-value cache.

    tokens = sample(model, idx, max_new_tokens=100, temperature=0.8)    # (B, n) -> (B, n + 100)

Shapes: B rows, n tokens so far, T = block_size, V = vocab_size, nh heads of hs channels.
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import Attend
from model.fast_decode import LinearIn, without_onednn, without_overhead
from model.gpt import GPT
from model.layers import Linear


def window_start(n: int, block_size: int) -> int:
    """Return the index of the first of n tokens that the model sees when it predicts the next token.

    While the n tokens fit, the model sees all of them. Then the window hops: it drops its older half, and
    grows until it is full again. Between two hops every token keeps its position in the window, so its keys
    and values stay valid. A sliding window would change the learned position of every token.
    """
    hop = max(1, block_size // 2)
    return hop * max(0, -(-(n - block_size) // hop))


@torch.inference_mode()
def generate(
    last_logits: Callable[[Tensor], Tensor], idx: Tensor, block_size: int, draw: Callable[[Tensor], Tensor]
) -> Iterator[Tensor]:
    """Continue idx (B, n), n ≥ 1, without end: yield one token per row, (B,) int64, at a time.

    Args:
        last_logits: a window of tokens (B, ≤ T) -> the logits (B, V) of the token after it.
        idx: the prompt, on the device of the tokens that ``draw`` returns.
        block_size: T.
        draw: logits (B, V) -> tokens (B,).
    """
    n = idx.shape[1]
    window = idx[:, window_start(n, block_size) :]
    while True:
        token = draw(last_logits(window))
        yield token
        n += 1
        dropped = window_start(n, block_size) - window_start(n - 1, block_size)
        window = torch.cat([window, token[:, None]], dim=1)[:, dropped:]


def draw(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, uniform: Tensor
) -> Tensor:
    """Draw a token for each row of logits (B, V): (B,) int64. It is the first token at which the cumulative
    probability exceeds the row's random number, ``uniform`` (B, 1) in [0, 1), fp64.

    The logits are divided by temperature; a temperature of 0 takes the largest logit. top_k keeps the k
    largest logits. After both, top_p keeps the fewest tokens whose probabilities add up to p (nucleus
    sampling, Holtzman et al. 2020)."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    scores, tokens = logits.double(), None
    if top_k or top_p is not None:  # else order does not matter, and sorting a large vocabulary is slow
        scores, tokens = scores.topk(min(top_k or scores.shape[-1], scores.shape[-1]))
    cumulative = (
        (scores / max(temperature, 1e-99)).softmax(dim=-1).cumsum(dim=-1)
    )  # a smaller divisor overflows
    total = cumulative[:, -1:]
    if top_p is not None:
        last_kept = (cumulative < top_p).sum(dim=-1, keepdim=True).clamp(max=cumulative.shape[-1] - 1)
        total = cumulative.gather(-1, last_kept)
    index = torch.searchsorted(cumulative[:, :-1].contiguous(), uniform * total, right=True)
    return (index if tokens is None else tokens.gather(-1, index))[:, 0]


@torch.inference_mode()
def sample(
    model: GPT,
    idx: Tensor,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return ``idx`` (B, n) int64, followed by ``max_new_tokens`` tokens drawn from the model: (B, n + new).
    The model runs in evaluation mode, and has its own mode again afterwards. ``draw`` explains the other
    arguments."""
    was_training = model.training
    model.eval()
    idx = idx.to(model.head.weight.device)

    def choose(logits: Tensor) -> Tensor:
        uniform = torch.rand(len(idx), 1, dtype=torch.float64, generator=generator).to(logits.device)
        return draw(logits, temperature, top_k, top_p, uniform)

    last_logits = Decoder(model) if agrees(model, model.embed.tokens.num_embeddings) else uncached(model)
    tokens = [*itertools.islice(generate(last_logits, idx, model.block_size, choose), max_new_tokens)]
    model.train(was_training)
    return torch.cat([idx, *(token[:, None] for token in tokens)], dim=1)


class Decoder:
    """Compute the last logits of a window as ``model`` does in evaluation mode, but with a key-value cache.

    When a window is the previous one plus one token, only that token goes through the model. This is correct
    if, outside of attention, the output at a position depends only on the position and the input there;
    ``agrees`` tests this.

    The model itself does not change. The decoder has a copy with the same parameters, without dropout, in
    which attention has a cache. If a module's own class, not a parent, has a method ``torchs``, its result
    replaces the module, because it is faster for one token. A module that depends on positions has an int
    ``start``, the position at which its input begins.

    Args:
        model: on any device, with parameters in fp32.
        dtype: dtype of the matrix and of the input of each ``Linear``; bf16 halves the bytes read for each
            token. The rest is computed in fp32.
    """

    def __init__(self, model: GPT, dtype: torch.dtype = torch.float32) -> None:
        memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        net = copy.deepcopy(model, memo).eval()  # tensors in memo are shared
        modules: list[Any] = list(net.modules())
        for module in modules:
            for name, child in module.named_children():
                if isinstance(child, Attend):
                    setattr(module, name, CachedAttend(model.block_size))
                elif isinstance(child, Linear) and dtype != torch.float32:
                    setattr(module, name, LinearIn(dtype, child))
                elif "torchs" in vars(type(child)):  # not in a subclass, which may compute something else
                    setattr(module, name, child.torchs())
                elif isinstance(child, nn.Dropout):
                    setattr(module, name, nn.Identity())
        self.net = without_overhead(net)
        self.device = model.head.weight.device  # to which a window's new tokens are copied
        self.positional = [m for m in self.net.modules() if isinstance(getattr(m, "start", None), int)]
        self.cached: Tensor | None = None  # the window whose keys and values are in the cache

    @torch.inference_mode()
    def __call__(self, window: Tensor) -> Tensor:  # (B, n ≤ T) -> (B, V)
        continues = self.cached is not None and torch.equal(window[:, :-1], self.cached)
        start = window.shape[1] - 1 if continues else 0
        for module in self.positional:
            module.start = start
        self.cached = window
        new = window[:, start:].to(self.device)
        with without_onednn() if new.numel() == 1 else nullcontext():
            logits: Tensor = self.net(new)
        return logits[:, -1]


class CachedAttend(nn.Module):
    """``Attend`` in evaluation mode, with a cache: first all tokens so far, then one token at a time."""

    def __init__(self, block_size: int) -> None:
        super().__init__()
        self.block_size = block_size
        self.start = 0

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (B, nh, steps, hs) each -> the same
        steps, end = q.shape[2], self.start + q.shape[2]
        if self.start == 0:
            self.k, self.v = (x.new_empty(*x.shape[:2], self.block_size, x.shape[3]) for x in (k, v))
        self.k.narrow(2, self.start, steps).copy_(k)  # a slice takes twice as long
        self.v.narrow(2, self.start, steps).copy_(v)
        past = self.k.narrow(2, 0, end), self.v.narrow(2, 0, end)
        return F.scaled_dot_product_attention(q, *past, is_causal=self.start == 0)


LONGEST = 256  # ``agrees`` decodes at most so many tokens, for GPT-2 in a second


@torch.inference_mode()
def agrees(model: GPT, vocab_size: int) -> bool:
    """Return True if ``model``, in evaluation mode, and a ``Decoder`` agree on logits for random tokens."""
    T = min(model.block_size, LONGEST)
    generator = torch.Generator().manual_seed(0)
    idx = torch.randint(vocab_size, (1, T), generator=generator).to(model.head.weight.device)
    lengths = range(max(1, T - 3), T + 1)
    expected = model(idx)[0, lengths.start - 1 :]
    try:
        decoder = Decoder(model)
        decoded = torch.stack([decoder(idx[:, :n])[0] for n in lengths])
    except Exception:  # a norm that cannot be copied, or called as Decoder calls it
        return False
    if not expected.isfinite().all():
        return True  # there is nothing to agree on
    return bool((decoded - expected).abs().max() <= 1e-3 * expected.std())


def uncached(model: GPT) -> Callable[[Tensor], Tensor]:
    """Return a function that computes the last logits of a window with the model, without a cache."""
    device = model.head.weight.device
    return lambda window: model(window.to(device))[:, -1]
