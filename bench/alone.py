"""A norm alone: seconds of its forward and backward. For bench/norms.py; nothing to run here."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

from bench import ceiling
from bench.sizes import Size
from bench.steps import configured
from training.build import bind

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BLOCK_SECONDS = 0.1  # of one norm before it is the next one's turn
PASSES = 5  # over memory, at least: forward reads x and writes y; backward reads x and ∂y and writes ∂x


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


class Alone:
    """A norm of conf/norm, its parameters in fp32, on x (B, T, C) of one precision. Calling it measures
    once."""

    def __init__(self, norm: str, size: Size, precision: str, compiled: bool) -> None:
        config = configured(f"norm={norm}", f"model.block_size={size.block_size}")
        module = bind("norm", config.norm)(size.n_embd).to(device())
        shape = (size.batch_size, size.block_size, size.n_embd)
        generator = torch.Generator().manual_seed(0)
        x, self.dy = (
            torch.randn(shape, generator=generator).to(device(), DTYPES[precision]) for _ in range(2)
        )
        self.x = x.requires_grad_()
        self.inputs = [self.x, *module.parameters()]
        self.call: Callable[..., Any] = torch.compile(module, dynamic=False) if compiled else module
        self.bytes = PASSES * x.numel() * x.element_size()
        for _ in range(3):
            self.once()
        self.repeats = max(3, round(BLOCK_SECONDS / self.block(3)))

    def once(self) -> None:
        with torch.autocast(device(), torch.bfloat16, enabled=self.x.dtype == torch.bfloat16):
            y = self.call(self.x)
        torch.autograd.grad(y, self.inputs, self.dy.to(y.dtype))

    def block(self, repeats: int) -> float:
        """Median seconds of so many, each after the one before is done."""
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            self.once()
            ceiling.wait()
            times.append(time.perf_counter() - start)
        return median(times)

    def __call__(self) -> Mapping[str, float]:
        self.once()
        seconds = self.block(self.repeats)
        return {"alone_us": seconds * 1e6, "bytes_per_s": self.bytes / seconds}


def copy(size: Size, precision: str) -> Mapping[str, float]:
    """Bytes a second, read and written, of a copy of as large a tensor."""
    shape = (size.batch_size, size.block_size, size.n_embd)
    source = torch.zeros(shape, device=device(), dtype=DTYPES[precision])
    target = torch.empty_like(source)
    seconds = ceiling.seconds(lambda: target.copy_(source))
    return {"copy_bytes_per_s": 2 * source.numel() * source.element_size() / seconds}
