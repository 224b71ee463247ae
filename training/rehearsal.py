"""Try a run: build the model and put one batch through it before anything is written to disk."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cli.schema import RunConfig
from diagnostics import contract, trainable
from model import GPT
from model.placements import Residual
from system.errors import ConfigError, UserError
from training import memory
from training.build import initial_model, norms_of
from training.device import Compute
from training.loss import Net
from training.parallel.ranks import Ranks, lost_ranks_explained
from training.parallel.strategies import Strategy, wrap


def build_and_try(
    config: RunConfig,
    vocab_size: int,
    compute: Compute,
    loss_of: Callable[[Net], Tensor],
    evaluate: Callable[[GPT], object] = lambda model: None,
    ranks: Ranks | None = None,
) -> Strategy:
    """Build the model of a config, wrap it in its strategy, and put one batch through it.

    Args:
        loss_of: returns the loss of a net on one batch.
        evaluate: evaluates another batch.

    Raises:
        ConfigError: the model cannot be built or does not fit into memory, or its norm rejects the batch or
            breaks the contract of diagnostics/contract.py.
    """
    try:
        with memory.explained(config), lost_ranks_explained():
            memory.check_fits(config, vocab_size, compute.device)
            attend, head = compute.attend(config.model.dropout), compute.head(vocab_size)
            model = initial_model(config, vocab_size, attend, head)
            norms = norms_of(config, model)
            trainable.check_branches(model)
            trainable.check_tensors(norms)
            trainable.check_tensors(wirings := foreign_wirings(model))
            strategy = wrap(model, config.distributed, ranks or Ranks(), compute.device)
            # take as much memory as the optimizer's moments will, on a GPU
            moments = [torch.empty_like(p) for p in strategy.trained.parameters() for _ in range(2)]

            def train() -> Tensor:
                return rehearse(strategy.trained, lambda: loss_of(strategy.net))

            def evaluated() -> Tensor:
                with strategy.full_model():
                    return evaluated_loss(loss_of, strategy.model)

            def disturb() -> None:
                with strategy.full_model():
                    evaluate(strategy.model)

            with contract.watched(wirings | norms):
                contract.check_repeatable(model, wirings | norms, train, evaluated, disturb)
            del moments
    except UserError:
        raise
    except contract.BrokenContractError as error:
        raise ConfigError(f"{config.label()}: {error}") from error
    except Exception as error:
        if not isinstance(error, ValueError | RuntimeError) and not has_foreign_parts(config):
            raise
        what = str(error).strip().partition("\n")[0] or type(error).__name__
        why = ", ".join([what, *getattr(error, "__notes__", [])])
        remedy = "choose another norm, model size or train.batch_size"
        if "does not have a deterministic implementation" in what:  # torch says so of some operations on GPUs
            remedy = "choose another norm, or give deterministic=false"
        raise ConfigError(f"{config.label()}: {why}; {remedy}") from error
    return strategy


def foreign_wirings(model: GPT) -> dict[str, nn.Module]:
    """Return by name the modules around the branches that are of another class than our Residual."""
    blocks = enumerate(model.blocks)
    sites = {f"blocks.{i}.{site}": part for i, block in blocks for site, part in block.named_children()}
    return {name: module for name, module in sites.items() if type(module) is not Residual}


def has_foreign_parts(config: RunConfig) -> bool:
    """Return whether a norm or the placement is of another project."""
    return any(
        part.target.partition(".")[0] not in ("model", "torch") for part in config.components().values()
    )


def rehearse(model: nn.Module, loss_of: Callable[[], Tensor]) -> Tensor:
    """Run one forward and backward that leaves no trace in ``model``. Return the loss, 0-d. Raises
    BrokenContractError if a parameter got no gradient."""
    with contract.buffers_kept(model):
        try:
            loss = loss_of()
            loss.backward()
            trainable.check_gradients(model)
            return loss.detach()
        finally:
            model.zero_grad(set_to_none=True)


@torch.no_grad()
def evaluated_loss(loss_of: Callable[[Net], Tensor], model: GPT) -> Tensor:
    """Return the loss of a batch in evaluation, 0-d."""
    model.eval()
    try:
        return loss_of(model)
    finally:
        model.train()
