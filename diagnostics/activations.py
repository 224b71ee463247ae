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
        wanted: whether a name, as ``act.rms/03.mlp``, is to be measured; see diagnostics.metric_names.
        histograms: also count the values of the residual stream, ``hist.act/<site>``: see
            ``statistics.histogram``.
    """

    def __init__(self, model: nn.Module, wanted: Callable[[str], bool], histograms: bool = False) -> None:
        self.modules, self.wanted, self.histograms = dict(model.named_modules()), wanted, histograms
        self.device_type = next(model.parameters()).device.type
        self.values: dict[str, Tensor] = {}
        self.hooks: list[Any] = []

    def __enter__(self) -> dict[str, Tensor]:
        self.values = {}
        self.after("embed", lambda _, embedded: embedded.requires_grad_())  # gradients end here
        self.of_stream("embed", "embed")
        for i in range(len(self.modules["blocks"])):
            self.of_block(f"{i:02d}", f"blocks.{i}")
        self.of_stream("final", "final")
        self.of_norm("final", "final")
        return self.values

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    # what is measured where: site is the metric's, name the module's

    def of_block(self, site: str, name: str) -> None:
        for kind in ("attn", "mlp"):
            self.of_residual(f"{site}.{kind}", f"{name}.{kind}")

        def attend(q: Tensor, k: Tensor, _: Tensor) -> None:  # normed and turned, as they are multiplied
            self.put(f"attn.entropy/{site}.attn", statistics.entropy, q, k)
            self.put(f"attn.max_logit/{site}.attn", statistics.max_logit, q, k)

        def fire(units: Tensor) -> None:
            self.put(f"mlp.dead/{site}.mlp", statistics.dead, units)

        self.before(f"{name}.attn.branch.attend", attend)
        self.before(f"{name}.mlp.branch.proj", fire)
        self.after(name, lambda x, y: self.put(f"act.cosine/{site}", statistics.cosine, x, y))

    def of_residual(self, site: str, name: str) -> None:
        """x ← post(a·x + b·out(f(c·pre(x)))), in which a·x is computed first."""
        skipped: list[Tensor] = []  # a·x, until the branch is there

        def added(_: Tensor, branch: Tensor) -> None:
            if skipped:
                self.put(f"act.ratio/{site}.branch", statistics.ratio, branch, skipped.pop())
            self.of_tensor(f"{site}.branch", branch)

        self.after(f"{name}.a", lambda _, ax: skipped.append(ax))
        self.after(f"{name}.b", added)
        for slot in ("pre", "out", "post"):
            self.of_norm(f"{site}.{slot}", f"{name}.{slot}")
            if not isinstance(self.modules.get(f"{name}.{slot}"), nn.Identity):
                self.before(f"{name}.{slot}", partial(self.of_tensor, f"{site}.{slot}.in"))
                self.after(f"{name}.{slot}", partial(self.of_output, f"{site}.{slot}.out"))
        self.of_stream(site, name)

    def of_stream(self, site: str, name: str) -> None:
        self.after(name, partial(self.of_output, site))
        if self.histograms:
            metric = f"hist.act/{site}"
            self.after(name, lambda _, x: self.put(metric, statistics.histogram, x, always=True))

    def of_norm(self, site: str, name: str) -> None:
        def internals(x: Tensor) -> None:
            for statistic, internal in statistics.INTERNALS.items():
                self.put(f"norm.{statistic}/{site}", internal, self.modules[name], x)

        self.before(name, internals)

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

    def before(self, name: str, look: Callable[..., object]) -> None:
        """Call ``look(*inputs)`` before the forward of the module of that name; a model may have none."""

        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            look(*args)

        if name in self.modules:
            self.hooks.append(self.modules[name].register_forward_pre_hook(hook))

    def after(self, name: str, look: Callable[[Tensor, Tensor], object]) -> None:
        """Call ``look(input, output)`` after it."""

        def hook(_: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
            look(args[0], output)

        if name in self.modules:
            self.hooks.append(self.modules[name].register_forward_hook(hook))
