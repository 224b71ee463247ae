"""Look at a model without changing it: a ``with`` block removes its hooks and restores buffers at its end."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def forward_hooks(hooks: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Context manager: call ``hook(module, args, output)`` after the forward of each ``module``. A result
    other than None replaces the output."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Context manager: restore the buffers of ``model`` at the end, also those that a forward replaced."""
    before = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for module, name, buffer, value in before:
            now = getattr(module, name, None)
            if isinstance(now, Tensor) and now.shape == value.shape:
                # into the old tensor: training cannot use a tensor made under inference_mode
                setattr(module, name, buffer.copy_(value))
