"""Where a model's numbers first are not finite.

    first_not_finite(model, lambda net: loss_of(net, batch))  # "blocks.1.mlp.branch.fc", say

The forward is looked at as the backward is: in the order in which it is computed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def first_not_finite(
    model: nn.Module,
    loss_of: Callable[[Callable[[Tensor], Tensor]], Tensor],
    agreed: Callable[[str | None], str | None] = lambda found: found,
) -> str | None:
    """The parameter that is not; else the innermost module whose output is not; else the parameter whose
    gradient is not, the last one, at which a backward begins; else the gradient's norm; else the buffer. None
    where all is finite. Without gradients (in torch.no_grad) these are left out.

    It leaves no trace in ``model``: its buffers are copies, its gradients stay as they are.

    Args:
        loss_of: a net, tokens (B, T) to logits (B, T, V) -> the loss, 0-d, of the batch in question.
        agreed: what was found here -> what all ranks go by, each of which looks at its share of the batch. A
            norm may wait for them in forward and backward.
    """
    found: list[str] = []

    def looking(name: str) -> Callable[..., None]:
        def look(module: nn.Module, args: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not output.isfinite().all():
                found.append(name)

        return look

    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return name
    hooks = [module.register_forward_hook(looking(name)) for name, module in model.named_modules() if name]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        loss = loss_of(lambda idx: functional_call(model, buffers, (idx,)))
    finally:
        for hook in hooks:
            hook.remove()
    in_forward = found[0] if found else None if loss.isfinite() else "the loss"
    if in_forward := agreed(in_forward):
        return in_forward
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad and loss.requires_grad}
    gradients = torch.autograd.grad(loss, [*learned.values()], allow_unused=True) if learned else ()
    return agreed(in_backward([*learned], gradients) or in_buffers(model))


def in_backward(names: Sequence[str], gradients: Sequence[Tensor | None]) -> str | None:
    for name, gradient in reversed([*zip(names, gradients, strict=True)]):
        if gradient is not None and not gradient.isfinite().all():
            return f"the gradient of {name}"
    if not torch.nn.utils.get_total_norm([g for g in gradients if g is not None]).isfinite():
        return "the gradient's norm, of numbers whose squares are too large"
    return None


def in_buffers(model: nn.Module) -> str | None:
    return next((name for name, buffer in model.named_buffers() if not buffer.isfinite().all()), None)
