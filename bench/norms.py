"""Time of a training step with each norm, and of the norm's forward and backward alone.

    python -m bench.norms --norm layernorm --norm torch_layernorm

The norms are timed in turn in this process, eager and compiled, by torch.utils.benchmark. A step is forward,
backward, clipping and AdamW's update of the default run with placement=pre, in precision auto. Alone, a norm
is called on (B, T, C) of the default run (nano) and of nanoGPT's GPU recipe (baby). Ratios are to norm=none
(steps only) and to torch's norm of the same kind. --peer and --data are not used."""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch.utils.benchmark import Timer

from bench import harness
from bench.harness import Bench, Measured, Variants
from bench.ours import size_overrides
from cli import compose as app
from cli.errors import CONF
from cli.schema import RunConfig
from training import build, device
from training.loss import cross_entropy

BLOCK = 0.2  # seconds for which a call is timed before the next one
VOCAB_SIZE = 65
NORMS = sorted(file.stem for file in (CONF / "norm").glob("*.yaml"))
Call = Callable[[], object]


def compose_config(norm: str, size: str) -> RunConfig:
    return app.choices([f"norm={norm}", "placement=pre", *size_overrides(size)])[""]


def make_step(norm: str, compute: device.Compute, compiled: bool) -> Call:
    """Return a training step on random tokens, at a rate so small that the weights barely change."""
    config = compose_config(norm, "nano")
    attend = compute.attend(config.model.dropout)
    model = build.build_model(config, VOCAB_SIZE, attend=attend).to(compute.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9, fused=True)
    shape = (config.train.batch_size, config.model.block_size + 1)
    tokens = torch.randint(VOCAB_SIZE, shape, device=compute.device)
    objective = torch.compile(cross_entropy, dynamic=False) if compiled else cross_entropy

    def step() -> None:
        with compute.autocast():
            value = objective(model, tokens[:, :-1], tokens[:, 1:])
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def make_norm_call(norm: str, size: str, compute: device.Compute, compiled: bool) -> Call:
    """Return a norm's forward and backward, the input in the precision of ``compute``, parameters in fp32."""
    config = compose_config(norm, size)
    module = build.bind("norm", config.norm)(config.model.n_embd).to(compute.device)
    shape = (config.train.batch_size, config.model.block_size, config.model.n_embd)
    dtype = torch.bfloat16 if compute.precision == "bf16" else torch.float32
    x, dy = (torch.randn(shape, device=compute.device, dtype=dtype) for _ in range(2))
    inputs = [x.requires_grad_(), *module.parameters()]
    forward = torch.compile(module, dynamic=False) if compiled else module

    def call() -> object:
        with compute.autocast():
            y = forward(x)
        return torch.autograd.grad(y, inputs, dy.to(y.dtype))

    return call


def measure_microseconds(call: Call) -> float:
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return 1e6 * timer.blocked_autorange(min_run_time=BLOCK).median


def measure_calls(calls: dict[str, Call]) -> Measured:
    return {metric: measure_microseconds(call) for metric, call in calls.items()}


def measure(bench: Bench, options: argparse.Namespace) -> None:
    auto = device.choose("auto", "auto")
    device.set_switches(threads=None)
    limits = torch._dynamo.config  # one class is compiled for many models, each with its own shapes
    limits.recompile_limit = limits.accumulated_recompile_limit = 1024
    for mode, compiled in {"eager": False, "compiled": True}.items():
        variants: Variants = {}
        for norm in ["none", *(norm for norm in options.norm or NORMS if norm != "none")]:
            calls = {"step_us": make_step(norm, auto, compiled)}
            for size in ("nano", "baby"):
                for precision in ("fp32", "bf16"):
                    compute = device.choose("auto", precision)
                    calls[f"{size}_{precision}_us"] = make_norm_call(norm, size, compute, compiled)
            variants[f"{mode}: {norm}"] = partial(measure_calls, calls)
            if norm != "none":
                bench.compare(f"{mode}: {norm}", f"{mode}: none", "step_us")
            bench.compare(f"{mode}: {norm}", f"{mode}: torch_{norm}", *calls)
        bench.alternate(variants)


def main() -> None:
    parser = harness.parser("norms", __doc__, rounds=7)
    parser.add_argument("--norm", action="append", choices=NORMS, help="repeatable; default: all")
    harness.main(parser, measure)


if __name__ == "__main__":
    main()
