"""What cannot work is heard of before anything is written: the model is built and goes through one batch."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from model import GPT
from training.checking import ConfigError
from training.components import build_model
from training.config import RunConfig
from training.device import Compute
from training.evaluation import Net


def rehearsed(
    config: RunConfig, vocab_size: int, compute: Compute, loss_of: Callable[[Net], Tensor]
) -> tuple[GPT, Net]:
    """The model, which is the truth, and a fast view of it. ``loss_of`` is one batch's loss through either.

    Raises:
        ConfigError: the model cannot be built or does not fit into memory, or its norm refuses such a batch.
    """
    try:
        model = build_model(config, vocab_size).to(compute.device)
        rehearse(model, model, loss_of)
    except ConfigError:
        raise
    except (MemoryError, ValueError, RuntimeError) as error:
        why = (str(error) or "out of memory").splitlines()[0]
        raise ConfigError(
            f"{config.chosen()}: {why}; choose another norm, or other sizes of model and train.batch_size"
        ) from error
    if config.compile:
        print("compile: compiling; the first time takes some 20 seconds, later ones a few", flush=True)
        try:
            net: Net = torch.compile(model)
            rehearse(model, net, loss_of)
            return model, net
        except Exception as error:  # whatever a compiler may raise
            print(f"compile: failed, going on without ({type(error).__name__})", flush=True)
    return model, model


def rehearse(model: nn.Module, net: Net, loss_of: Callable[[Net], Tensor]) -> None:
    """One forward and backward through ``net``, a view of ``model``, that leaves no trace."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    loss_of(net).backward()
    model.zero_grad(set_to_none=True)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
