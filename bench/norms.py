"""The speed of each norm's forward and backward, relative to torch's LayerNorm. It needs no nanoGPT."""

import argparse
from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch.utils.benchmark import Timer

from bench.beside_nanogpt import Row
from bench.programs import SIZES
from cli import compose
from cli.errors import CONF
from training import build, device

BASELINE = "torch_layernorm"
NORMS = sorted({file.stem for file in (CONF / "norm").glob("*.yaml")} - {BASELINE})
BLOCK = 0.2  # seconds of timing each call before the next one


def norms(_programs: object, options: argparse.Namespace, _number: int) -> Iterator[Row]:
    """Yield a row for each norm, called on (B, T, C) of two sizes, eager and compiled."""
    compute = device.choose(options.device, "auto")
    device.set_switches(threads=None)
    torch._dynamo.config.recompile_limit = 1024  # one class is compiled for several shapes
    for size in options.size or ("4x128", "6x384"):
        for mode in ("eager", "compiled"):
            baseline = microseconds(forward_and_backward(BASELINE, size, compute, mode))
            for norm in NORMS:
                ours = microseconds(forward_and_backward(norm, size, compute, mode))
                values = {"ratio": baseline / ours, "microseconds": ours, BASELINE: baseline}
                yield f"{size}, {mode}, {norm}", values


@cache
def forward_and_backward(norm: str, size: str, compute: device.Compute, mode: str) -> Callable[[], object]:
    """Return a function that calls a norm and takes its gradients. The input has ``compute``'s precision, the
    parameters are fp32."""
    config = compose.choices([f"norm={norm}", "placement=pre"])[""]
    shape = (SIZES[size].batch_size, SIZES[size].block_size, SIZES[size].n_embd)
    dtype = torch.bfloat16 if compute.precision == "bf16" else torch.float32
    x, dy = (torch.randn(shape, device=compute.device, dtype=dtype) for _ in range(2))
    module = build.bind("norm", config.norm)(SIZES[size].n_embd).to(compute.device)
    inputs = [x.requires_grad_(), *module.parameters()]
    forward = torch.compile(module, dynamic=False) if mode == "compiled" else module

    def call() -> object:
        with compute.autocast():
            y = forward(x)
        return torch.autograd.grad(y, inputs, dy.to(y.dtype))

    return call


def microseconds(call: Callable[[], object]) -> float:
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return 1e6 * timer.blocked_autorange(min_run_time=BLOCK).median
