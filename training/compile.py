"""torch.compile for the loss and the net in it; where compiling fails, the run goes on without."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from system.errors import ConfigError, LostRankError
from training.batches import Batches
from training.dry_run import rehearse
from training.loss import Loss, Objective, cross_entropy
from training.parallel.ranks import Ranks, lost_ranks_explained
from training.parallel.strategies import Strategy


def compile_loss(strategy: Strategy, batches: Batches, eager: Loss, ranks: Ranks) -> Loss:
    """Return the loss compiled together with the strategy's net; ``eager`` where that fails.

    Compiled together, logits are not copied in fp32. On a CPU, dropout draws torch's random numbers: the
    compiler's own take longer than all the rest of a step. On a GPU, forward and backward are a CUDA graph
    each where torch's compiler can make one, as small models wait for the launches of their kernels; not
    where gradients accumulate or a forward replaces buffers, which would lie in memory that the graph's next
    run writes to; and not where there are other ranks to wait for.

    Raises:
        ConfigError: compiling fails on one of several ranks, which must all do the same.
    """
    batch, device = batches.first_micro_batch(0), eager.compute.device.type

    def loss_by(objective: Objective) -> Tensor:
        return replace(eager, objective=objective)(strategy.net, batch.x, batch.y)

    alone = ranks.count == 1 and batch.is_last
    eager_loss = partial(loss_by, cross_entropy)
    graphs = device == "cuda" and alone and not replaces_buffers(strategy.trained, eager_loss)
    print("compile: compiling; the first time takes half a minute, later ones some seconds", flush=True)
    torch.use_deterministic_algorithms(True)  # device.set_switches leaves out the compiler's own switch
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # its warnings are not for our user
    torch.compiler.reset()  # the runs of a sweep share a process, and a function is compiled 8 times at most
    options: dict[str, Any] = {"fallback_random": device == "cpu", "triton.cudagraphs": graphs}
    compiled: Objective = torch.compile(cross_entropy, dynamic=False, options=options)
    try:
        with lost_ranks_explained():
            for _ in range(3 if graphs else 1):  # the first runs without a graph, the second records it
                rehearse(strategy.trained, partial(loss_by, compiled))
    except LostRankError:
        raise
    except Exception as error:  # whatever a compiler may raise
        failure = type(error).__name__
        if ranks.count > 1:
            raise ConfigError(f"compile: failed ({failure}); give compile=false") from None
        print(f"compile: failed, continuing without ({failure})", flush=True)
        return eager
    return replace(eager, objective=compiled)


def replaces_buffers(model: nn.Module, loss: Callable[[], Tensor]) -> bool:
    """Return whether a forward puts new tensors in the place of buffers, instead of changing these."""
    before = [*model.buffers()]
    rehearse(model, loss)
    return any(old is not new for old, new in zip(before, model.buffers(), strict=True))
