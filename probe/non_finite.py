"""Find the first place where a model's numbers become non-finite.

    first_non_finite(model, lambda net: loss_of(net, batch))  # for example "blocks.1.mlp.branch.fc"

The search follows the order of computation: forward, then backward.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from probe.hooks import forward_hooks


def first_non_finite(
    model: nn.Module,
    loss_of: Callable[[Callable[[Tensor], Tensor]], Tensor],
    agree: Callable[[str | None], str | None] = lambda place: place,
) -> str | None:
    """Return the name of the first place with a non-finite number, or None. The search looks, in this order,
    at the parameters; the outputs of modules, inner modules first; the loss; the gradients of the parameters,
    the last parameter first, because backward begins there; the gradient's norm; the buffers. Under
    torch.no_grad it skips gradients.

    ``model`` is left unchanged: the forward uses copies of its buffers, and no gradient is stored.

    Args:
        loss_of: computes the loss of the batch, 0-d; its argument is a function from tokens (B, T) to logits
            (B, T, V).
        agree: maps this rank's place to the place that all ranks report. Each rank searches its share of the
            batch, and no rank stops early: in forward and backward a norm may wait for the other ranks.
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return name
    places: list[str] = []

    def check(name: str, _: nn.Module, args: Any, output: Any) -> None:
        if not places and isinstance(output, Tensor) and not output.isfinite().all():
            places.append(name)

    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with forward_hooks((module, partial(check, name)) for name, module in model.named_modules() if name):
        loss = loss_of(lambda idx: functional_call(model, buffers, (idx,)))
    in_forward = places[0] if places else None if loss.isfinite() else "the loss"
    if in_forward := agree(in_forward):
        return in_forward
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad and loss.requires_grad}
    gradients = torch.autograd.grad(loss, [*trainable.values()], allow_unused=True) if trainable else ()
    return agree(in_backward([*trainable], gradients) or in_buffers(model))


def in_backward(names: Sequence[str], gradients: Sequence[Tensor | None]) -> str | None:
    for name, gradient in reversed([*zip(names, gradients, strict=True)]):
        if gradient is not None and not gradient.isfinite().all():
            return f"the gradient of {name}"
    if not torch.nn.utils.get_total_norm([g for g in gradients if g is not None]).isfinite():
        return "the gradient's norm, as the squares of its numbers are too large"
    return None


def in_buffers(model: nn.Module) -> str | None:
    return next((name for name, buffer in model.named_buffers() if not buffer.isfinite().all()), None)
