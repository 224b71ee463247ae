"""Text, token by token, from a GPT: what it sees for each token, and how not to compute it all again.

    tokens = generate(Decoder(model), idx, model.block_size, lambda logits: logits.argmax(-1))
    text = torch.stack([*islice(tokens, 100)], dim=1)  # (B, 100)

Shapes: B rows, n tokens so far, T = block_size, V = vocab_size, nh heads of hs channels.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import Attend
from model.gpt import GPT
from model.head import Head
from model.linear import Linear


def window_start(n: int, block_size: int) -> int:
    """The first of n tokens that the model sees when it is to say which comes next.

    As long as they fit, it sees all. Then the window hops: half of it is left behind, and it grows from
    there until it is full again. Between two hops every token stays where it is in the window, so that its
    keys and values stay what they are; learned positions could not slide.
    """
    hop = max(1, block_size // 2)
    return hop * max(0, -(-(n - block_size) // hop))


@torch.inference_mode()
def generate(
    last_logits: Callable[[Tensor], Tensor], idx: Tensor, block_size: int, draw: Callable[[Tensor], Tensor]
) -> Iterator[Tensor]:
    """Endlessly yield the next token of each row, (B,) int64, continuing idx (B, n) with n ≥ 1.

    ``last_logits`` gives, of a window (B, ≤ T) of tokens, the logits (B, V) of what comes next; ``draw``
    turns these into tokens (B,).
    """
    n = idx.shape[1]
    window = idx[:, window_start(n, block_size) :]
    while True:
        token = draw(last_logits(window))
        yield token
        n += 1
        hopped = window_start(n, block_size) - window_start(n - 1, block_size)
        window = torch.cat([window, token[:, None]], dim=1)[:, hopped:]


class Decoder:
    """The last logits of a window, as ``model`` in evaluation mode gives them. Where the window is the one
    before and one token more, only that token goes through the model: keys and values of the others are kept.

    The model itself stays as it is: the decoder's is a copy with the same parameters, in which attention
    remembers, and modules that offer a faster equal (``torchs``) are replaced by it. A module that depends on
    the position in the window has an int ``start``, that of the first time step that it is given. As one
    token is little work, half of its time would go into calling modules: theirs are called as ``bare`` says.

    That is right if, attention aside, each position is computed by itself, from where it stands and nothing
    else. ``agrees`` tells whether it is so.

    Args:
        model: on any device, with parameters in fp32.
        dtype: of the model's own matrices, and of what is multiplied by them; bf16 halves the bytes that a
            token costs. The rest is computed in fp32.
    """

    def __init__(self, model: GPT, dtype: torch.dtype = torch.float32) -> None:
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.net = copy.deepcopy(model, shared).eval()
        modules: list[Any] = list(self.net.modules())
        for module in modules:
            for name, child in module.named_children():
                if isinstance(child, Attend):
                    setattr(module, name, RememberingAttend(model.block_size))
                elif type(child) in (Linear, Head) and dtype != torch.float32:
                    setattr(module, name, LinearIn(dtype, child))
                elif hasattr(child, "torchs"):
                    setattr(module, name, child.torchs())
                elif isinstance(child, nn.Dropout):
                    setattr(module, name, nn.Identity())
        for module in self.net.modules():
            module.__class__ = bare(type(module))
            vars(module).update(module._parameters | module._modules)  # found at once, not by __getattr__
        placed: list[Any] = [m for m in self.net.modules() if isinstance(getattr(m, "start", None), int)]
        self.placed = placed
        self.seen: Tensor | None = None  # the window whose keys and values are kept

    @torch.inference_mode()
    def __call__(self, window: Tensor) -> Tensor:  # (B, n ≤ T) -> (B, V)
        goes_on = self.seen is not None and torch.equal(window[:, :-1], self.seen)
        start = window.shape[1] - 1 if goes_on else 0
        for module in self.placed:
            module.start = start
        self.seen = window
        new = window[:, start:]
        with without_onednn() if new.numel() == 1 else nullcontext():
            logits: Tensor = self.net(new)
        return logits[:, -1]


@contextmanager
def without_onednn() -> Iterator[None]:
    """Inside, torch does without oneDNN on a CPU: for one row it takes longer than torch's own kernels, as it
    arranges a matrix of bf16 anew for each product, and makes ready for each GELU. The switch is the whole
    process's: decoders in several threads would disturb one another's speed."""
    onednn: Any = torch.backends.mkldnn
    before, onednn.enabled = onednn.enabled, False
    try:
        yield
    finally:
        onednn.enabled = before


def bare(kind: type[nn.Module]) -> type[nn.Module]:
    """The same modules as plain objects: a call is ``forward`` itself, no hooks are looked for, an attribute
    is set without a look at what it is."""
    return type(kind.__name__, (kind,), {"__call__": kind.forward, "__setattr__": object.__setattr__})


class LinearIn(nn.Module):
    """``linear`` with its matrix, and what it is given, in ``dtype``; its result is in that of its input."""

    def __init__(self, dtype: torch.dtype, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight.detach().to(dtype)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:  # (…, n_in) -> (…, n_out)
        y = F.linear(x.to(self.weight.dtype), self.weight).to(x.dtype)
        return y if self.bias is None else y + self.bias


class RememberingAttend(nn.Module):
    """``Attend`` in evaluation, for a window that comes in parts: first all so far, then one step each."""

    def __init__(self, block_size: int) -> None:
        super().__init__()
        self.block_size = block_size
        self.start = 0

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (B, nh, steps, hs) each -> the same
        end = self.start + q.shape[2]
        if self.start == 0:
            self.k, self.v = (x.new_empty(*x.shape[:2], self.block_size, x.shape[3]) for x in (k, v))
        self.k.narrow(2, self.start, q.shape[2]).copy_(k)  # an index would do, and take twice as long
        self.v.narrow(2, self.start, q.shape[2]).copy_(v)
        seen = self.k.narrow(2, 0, end), self.v.narrow(2, 0, end)
        return F.scaled_dot_product_attention(q, *seen, is_causal=self.start == 0)


@torch.inference_mode()
def agrees(model: GPT, vocab_size: int) -> bool:
    """Whether a ``Decoder`` gives the logits of ``model``, in evaluation mode, tried on random tokens."""
    T = min(model.block_size, 8)
    some = torch.Generator().manual_seed(0)
    idx = torch.randint(vocab_size, (1, T), generator=some).to(model.head.weight.device)
    windows = [idx[:, :n] for n in range(max(1, T // 2), T + 1)]
    both = (torch.cat([last(window) for window in windows]) for last in (Decoder(model), uncached(model)))
    decoded, expected = both
    return bool((decoded - expected).abs().max() <= 1e-3 * expected.std())


def uncached(model: GPT) -> Callable[[Tensor], Tensor]:
    """The last logits of a window by the model itself."""
    return lambda window: model(window)[:, -1]
