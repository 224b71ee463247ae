"""What cannot work is heard of before anything is written: the model is built, compiled where that is wanted,
and goes through one batch."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cli.schema import RunConfig
from model import GPT
from system.errors import ConfigError, LostRankError
from training.build import initial_model
from training.device import Compute
from training.evaluation import Net
from training.memory import lacking_memory, training_sizes
from training.parallel.ranks import Ranks, lost
from training.parallel.strategies import View, view_of


def rehearsed(
    config: RunConfig,
    vocab_size: int,
    compute: Compute,
    loss_of: Callable[[Net], Tensor],
    evaluate: Callable[[GPT], object] = lambda model: None,
    ranks: Ranks | None = None,
) -> View:
    """The model of a config, on its device, and how it is to train; ``loss_of`` is one batch's loss, and
    ``evaluate`` an evaluation on one.

    Raises:
        ConfigError: the model cannot be built or does not fit into memory, or its norm refuses such a batch.
    """
    try:
        with lacking_memory(training_sizes(config)), lost():
            attend, head = compute.attend(config.model.dropout), compute.head(vocab_size)
            model = initial_model(config, vocab_size, attend=attend, head=head)
            view = view_of(config.distributed, ranks or Ranks(), model, compute.device)
            moments = [torch.empty_like(p) for p in view.trained.parameters() for _ in range(2)]
            rehearse(view.trained, lambda: loss_of(view.net))
            with view.whole():
                evaluate(view.model)
            del moments
    except (ConfigError, LostRankError):
        raise
    except (ValueError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(
            f"{config.chosen()}: {why}; choose another norm, or other sizes of model and train.batch_size"
        ) from error
    return view


def rehearse(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    """One forward and backward that leaves no trace in ``model``."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        loss().backward()
    finally:
        model.zero_grad(set_to_none=True)
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
