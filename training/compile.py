"""Compile the loss together with the net by torch.compile; if that fails, the run continues uncompiled."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics.contract import buffers_kept
from system.errors import ConfigError, LostRankError, described
from system.terminal import announced, escaped
from training.batches import MicroBatch
from training.loss import Loss, Objective, cross_entropy
from training.parallel.ranks import Ranks, lost_ranks_explained
from training.parallel.strategies import Strategy
from training.rehearsal import rehearse


def compile_loss(strategy: Strategy, batch: MicroBatch, eager: Loss, ranks: Ranks) -> Loss:
    """Return the loss compiled together with the strategy's net, or ``eager`` if that fails.

    Compiling them together saves, in one process, an fp32 copy of the logits. On a CPU, dropout draws torch's
    random numbers, as drawing the compiler's own takes longer than the rest of a step. On a GPU, forward and
    backward become one CUDA graph each, if the compiler can make one, as small models wait for kernel
    launches. No graphs are used with several ranks, which wait for each other, nor if gradients accumulate or
    a forward replaces buffers: the next run of a graph would overwrite the memory of such gradients and
    buffers.

    Raises:
        ConfigError: compiling fails on one of several ranks, which must all do the same.
    """
    device = eager.compute.device.type

    def loss_by(objective: Objective) -> Tensor:
        return replace(eager, objective=objective)(strategy.net, batch.x, batch.y)

    graphs = device == "cuda" and ranks.count == 1 and batch.is_last  # one process, no gradient accumulation
    graphs = graphs and not replaces_buffers(strategy.trained, partial(loss_by, cross_entropy))
    print("compile: compiling, which takes half a minute the first time, then a few seconds", flush=True)
    # also sets the compiler's own switch, which device.set_switches leaves out
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # hides warnings that do not help users
    torch.compiler.reset()  # the runs of a sweep share a process, and a function is compiled 8 times at most
    options: dict[str, Any] = {"fallback_random": device == "cpu", "triton.cudagraphs": graphs}
    compiled: Objective = torch.compile(cross_entropy, dynamic=False, options=options)
    failure = None
    try:
        with announced("compile: compiling"), lost_ranks_explained():
            for _ in range(3 if graphs else 1):  # run without a graph, record one, replay it
                rehearse(strategy.trained, partial(loss_by, compiled))
    except LostRankError:
        raise
    except Exception as error:  # a compiler may raise anything
        failure = escaped(described(error)[:200])
        if ranks.count > 1:
            raise ConfigError(f"compile: failed ({failure}); give compile=false") from None
    if failure:
        eager.compute.release()  # what the compiler kept
        print(f"compile: failed ({failure}); continuing uncompiled", flush=True)
        return eager
    return replace(eager, objective=compiled)


def replaces_buffers(model: nn.Module, loss: Callable[[], Tensor]) -> bool:
    """Return whether a forward replaces buffers by new tensors, instead of changing them in place."""
    with buffers_kept(model), torch.no_grad():
        buffers_before = [*model.buffers()]
        loss()
        return any(old is not new for old, new in zip(buffers_before, model.buffers(), strict=True))
