"""Compile the loss together with the net by torch.compile; if that fails, the run goes on uncompiled."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from data.errors import ConfigError, described
from probe.hooks import buffers_kept
from training.batches import MicroBatch
from training.build import try_backward
from training.loss import Loss, Objective, cross_entropy


def compile_loss(model: nn.Module, net: Any, batch: MicroBatch, eager: Loss, ranks: int) -> Loss:
    """Return the loss compiled together with ``net``, or ``eager`` if that fails.

    In a single process, compiling both together saves an fp32 copy of the logits. On a CPU, dropout draws
    torch's random numbers, because drawing the compiler's own takes longer than the rest of a step. On a GPU,
    forward and backward become one CUDA graph each, because small models wait for kernel launches. There are
    no graphs with several ranks, as ranks wait for each other; nor if gradients accumulate or a forward
    replaces buffers, as the next run of a graph would overwrite those gradients and buffers.

    Raises:
        ConfigError: compiling fails on one of several ranks; all of them have to run the same code.
    """
    device = eager.compute.device.type

    def loss_by(objective: Objective) -> Tensor:
        return replace(eager, objective=objective)(net, batch.x, batch.y)

    graphs = device == "cuda" and ranks == 1 and batch.is_last  # one process, no gradient accumulation
    graphs = graphs and not replaces_buffers(model, partial(loss_by, cross_entropy))
    print("compile: compiling, which takes half a minute the first time, then a few seconds", flush=True)
    # also sets the compiler's own switch, which device.set_switches leaves out
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # hides warnings that do not help users
    torch.compiler.reset()  # torch compiles a function 8 times at most; one process may train several runs
    options: dict[str, Any] = {"fallback_random": device == "cpu", "triton.cudagraphs": graphs}
    compiled: Objective = torch.compile(cross_entropy, dynamic=False, options=options)
    try:
        for _ in range(3 if graphs else 1):  # run without a graph, record one, replay it
            try_backward(model, partial(loss_by, compiled))
    except Exception as error:  # a compiler may raise anything
        failure = described(error)[:200]
        if ranks > 1:
            raise ConfigError(f"compile: failed ({failure}); give compile=false") from None
        print(f"compile: failed ({failure}); continuing uncompiled", flush=True)
        return eager
    return replace(eager, objective=compiled)


def replaces_buffers(model: nn.Module, loss: Callable[[], Tensor]) -> bool:
    """Return whether a forward replaces buffers by new tensors, instead of changing them in place."""
    with buffers_kept(model), torch.no_grad():
        before = [*model.buffers()]
        loss()
        return any(old is not new for old, new in zip(before, model.buffers(), strict=True))
