"""torch.compile, with a fallback."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from model.gpt import GPT
from system.errors import ConfigError, LostRankError
from training.device import Compute
from training.dry_run import rehearse
from training.evaluation import Objective, cross_entropy
from training.parallel.ranks import Ranks, lost


def compiled(
    model: GPT, compute: Compute, loss_of: Callable[[Objective], Tensor], accumulates: bool, ranks: Ranks
) -> Objective:
    """``cross_entropy`` compiled, the model in it; where that fails, as it is. ``loss_of`` is one batch's
    loss by either.

    The loss is compiled together with the model, so that logits are not copied in fp32. On a CPU, dropout
    draws torch's random numbers: the compiler's own take longer than all the rest of a step. On a GPU forward
    and backward are a CUDA graph each where torch's compiler can make one, as small models wait for the
    launches of their kernels; not where gradients accumulate or a forward replaces buffers: these would lie
    in memory that the graph's next run writes to; and not where there are other ranks to wait for.

    Raises:
        ConfigError: it fails on one of several ranks, which must all do the same.
    """
    cpu, gpu = (compute.device.type == kind for kind in ("cpu", "cuda"))
    alone = ranks.count == 1 and not accumulates
    graphs = gpu and alone and not replaces_buffers(model, lambda: loss_of(cross_entropy))
    print("compile: compiling; the first time takes half a minute, later ones some seconds", flush=True)
    torch.use_deterministic_algorithms(True)  # device.set_switches leaves out the compiler's own switch
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # its warnings are not for our user
    torch.compiler.reset()  # the runs of a sweep share a process, and a function is compiled 8 times at most
    options: dict[str, Any] = {"fallback_random": cpu, "triton.cudagraphs": graphs}
    fast: Objective = torch.compile(cross_entropy, dynamic=False, options=options)
    why = None
    try:
        with lost():
            for _ in range(3 if graphs else 1):  # the first runs without a graph, the second records it
                rehearse(model, lambda: loss_of(fast))
    except LostRankError:
        raise
    except Exception as error:  # whatever a compiler may raise
        why = type(error).__name__
    if why and ranks.count > 1:
        raise ConfigError(f"compile: failed ({why}); give compile=false")
    if why:
        print(f"compile: failed, going on without ({why})", flush=True)
    return cross_entropy if why else fast


def replaces_buffers(model: nn.Module, loss: Callable[[], Tensor]) -> bool:
    """Whether a forward puts new tensors in the place of buffers, instead of changing these."""
    before = [*model.buffers()]
    rehearse(model, loss)
    return any(old is not new for old, new in zip(before, model.buffers(), strict=True))
