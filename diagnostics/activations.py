"""Statistics of a model's activations and of the gradients at them, layer by layer, by hooks from outside.

    activations = Activations(model, names.selection(["act.rms", "grad.rms"], sites=["*"]))
    with activations as values:
        loss_of(without_effects(model)).backward()
    values["act.rms/00.mlp"]  # a 0-d tensor on the model's device

It is the eager model that is looked at, as hooks on a compiled one are silently not called. Outside of
``with`` there are no hooks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from diagnostics import statistics


def without_effects(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """A view of ``model``, tokens (B, T) to logits (B, T, V), that leaves no trace in it: its parameters are
    detached, its buffers copies. Gradients reach the activations and stop there, which saves a backward about
    half of its work."""
    state = {name: p.detach() for name, p in model.named_parameters()}
    state |= {name: buffer.clone() for name, buffer in model.named_buffers()}
    return lambda idx: functional_call(model, state, (idx,))


class Activations:
    """Measures what ``wanted`` names, of the one forward and backward that run inside ``with``.

    Args:
        model: a model.GPT.
        wanted: whether a name, as ``act.rms/03.mlp``, is to be measured; see diagnostics.names.
        histograms: also count the values of the residual stream, ``hist.act/<site>``: see
            ``statistics.histogram``.
    """

    def __init__(self, model: Any, wanted: Callable[[str], bool], histograms: bool = False) -> None:
        self.model, self.wanted, self.histograms = model, wanted, histograms
        self.values: dict[str, Tensor] = {}
        self.hooks: list[Any] = []
        self.device_type = next(model.parameters()).device.type

    def __enter__(self) -> dict[str, Tensor]:
        self.values = {}
        self.after(self.model.embed, lambda _, embedded: embedded.requires_grad_())  # gradients end here
        self.of_stream("embed", self.model.embed)
        for i, block in enumerate(self.model.blocks):
            self.of_block(f"{i:02d}", block)
        self.of_stream("final", self.model.final)
        self.of_norm("final", self.model.final)
        return self.values

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    # what is measured where

    def of_block(self, site: str, block: Any) -> None:
        self.of_residual(f"{site}.attn", block.attn)
        self.of_residual(f"{site}.mlp", block.mlp)
        n_head = block.attn.branch.n_head

        def attend(_: Tensor, qkv: Tensor) -> None:
            self.put(f"attn.entropy/{site}.attn", statistics.entropy, qkv, n_head)
            self.put(f"attn.max_logit/{site}.attn", statistics.max_logit, qkv, n_head)

        self.after(block.attn.branch.qkv, attend)
        self.before(
            block.mlp.branch.proj, lambda units: self.put(f"mlp.dead/{site}.mlp", statistics.dead, units)
        )
        self.after(block, lambda x, y: self.put(f"act.cosine/{site}", statistics.cosine, x, y))

    def of_residual(self, site: str, residual: Any) -> None:
        """x ← post(a·x + b·out(f(c·pre(x)))), in which a·x is computed first."""
        skipped: list[Tensor] = []  # a·x, until the branch is there

        def added(_: Tensor, branch: Tensor) -> None:
            self.put(f"act.ratio/{site}.branch", statistics.ratio, branch, skipped.pop())
            self.of_tensor(f"{site}.branch", branch)

        self.after(residual.a, lambda _, ax: skipped.append(ax))
        self.after(residual.b, added)
        for slot in ("pre", "out", "post"):
            norm = getattr(residual, slot)
            if not isinstance(norm, nn.Identity):
                self.of_norm(f"{site}.{slot}", norm)
                self.before(norm, partial(self.of_tensor, f"{site}.{slot}.in"))
                self.after(norm, partial(self.of_output, f"{site}.{slot}.out"))
        self.of_stream(site, residual)

    def of_stream(self, site: str, module: nn.Module) -> None:
        self.after(module, partial(self.of_output, site))
        if self.histograms:
            name = f"hist.act/{site}"
            self.after(module, lambda _, x: self.put(name, statistics.histogram, x, always=True))

    def of_norm(self, site: str, norm: nn.Module) -> None:
        def internals(x: Tensor) -> None:
            for name, internal in statistics.INTERNALS.items():
                self.put(f"norm.{name}/{site}", internal, norm, x)

        self.before(norm, internals)

    def of_output(self, site: str, _: Tensor, output: Tensor) -> None:
        self.of_tensor(site, output)

    def of_tensor(self, site: str, x: Tensor) -> None:
        for name, moment in statistics.MOMENTS.items():
            self.put(f"act.{name}/{site}", moment, x)
        if x.requires_grad:
            x.register_hook(lambda gradient: self.put(f"grad.rms/{site}", statistics.rms, gradient))

    # how

    @torch.no_grad()
    def put(self, name: str, statistic: Callable[..., Tensor | None], *of: Any, always: bool = False) -> None:
        if not (always or self.wanted(name)):
            return
        with torch.autocast(self.device_type, enabled=False):  # or the products of attention would be bf16
            value = statistic(*(x.float() if isinstance(x, Tensor) else x for x in of))
        if value is not None:
            self.values[name] = value

    def before(self, module: nn.Module, look: Callable[[Tensor], object]) -> None:
        """Call ``look(input)`` before the module's forward."""

        def hook(_: nn.Module, args: tuple[Tensor]) -> None:
            look(args[0])

        self.hooks.append(module.register_forward_pre_hook(hook))

    def after(self, module: nn.Module, look: Callable[[Tensor, Tensor], object]) -> None:
        """Call ``look(input, output)`` after the module's forward."""

        def hook(_: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
            look(args[0], output)

        self.hooks.append(module.register_forward_hook(hook))
