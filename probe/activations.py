"""Measure statistics of a model's activations and of their gradients, layer by layer, by hooks.

    activations = Activations(model, metric_names.selection(["act.rms", "grad.rms"], sites=["*"]))
    with activations as values:
        loss_of(without_effects(model)).backward()
    values["act.rms/00.mlp"]  # a 0-d tensor on the model's device

The model must be the eager one: hooks on a compiled model are silently ignored. The hooks exist only inside
``with``."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from probe import metric_names, statistics


def without_effects(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return ``model`` as a function, tokens (B, T) -> logits (B, T, V), without side effects: parameters are
    detached and buffers copied. Backward then computes only gradients of activations, which saves about half
    of its time."""
    state = {name: p.detach() for name, p in model.named_parameters()}
    state |= {name: buffer.clone() for name, buffer in model.named_buffers()}
    return lambda idx: functional_call(model, state, (idx,))


class Activations:
    """Record the statistics that ``wanted`` selects, for one forward and backward inside ``with``.

    Args:
        model: a model.GPT.
        wanted: returns True for the metrics to measure, such as ``act.rms/03.mlp``; see metric_names.py.
        histograms: also count the values of the residual stream, as ``hist.act/<site>``; see
            ``statistics.histogram``.
    """

    def __init__(self, model: nn.Module, wanted: Callable[[str], bool], histograms: bool = False) -> None:
        self.modules, self.wanted, self.histograms = dict(model.named_modules()), wanted, histograms
        self.device_type = next(model.parameters()).device.type
        self.hooks: list[Any] = []

    def __enter__(self) -> dict[str, Tensor]:
        self.values: dict[str, Tensor] = {}
        self.after("embed", lambda _, embedded: embedded.requires_grad_())  # backward ends here
        self.watch_stream("embed", "embed")
        for i in range(len(self.modules["blocks"])):
            self.watch_block(f"{i:02d}", f"blocks.{i}")
        self.watch_stream("final", "final")
        self.watch_norm("final", "final")
        return self.values

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    # ``site`` is the part of the metric's name after the slash, ``name`` the module's name

    def watch_block(self, site: str, name: str) -> None:
        for kind in ("attn", "mlp"):
            self.watch_residual(f"{site}.{kind}", f"{name}.{kind}")

        def record_attention(q: Tensor, k: Tensor, _: Tensor) -> None:  # after QK-norm and rotation
            self.record(f"attn.entropy/{site}.attn", statistics.entropy, q, k)
            self.record(f"attn.max_logit/{site}.attn", statistics.max_logit, q, k)

        self.before(f"{name}.attn.branch.attend", record_attention)
        self.before(f"{name}.mlp.branch.proj", partial(self.record, f"mlp.dead/{site}.mlp", statistics.dead))
        self.after(name, partial(self.record, f"act.cosine/{site}", statistics.cosine))

    def watch_residual(self, site: str, name: str) -> None:
        """Watch x ← post(a·x + b·out(f(c·pre(x)))), in which a·x is computed first."""
        skips: list[Tensor] = []  # holds a·x until the branch is computed

        def record_branch(_: Tensor, branch: Tensor) -> None:
            if skips:  # empty if a user's placement does not compute a·x
                self.record(f"act.ratio/{site}.branch", statistics.ratio, branch, skips.pop())
            self.watch_tensor(f"{site}.branch", branch)

        self.after(f"{name}.a", lambda _, ax: skips.append(ax))
        self.after(f"{name}.b", record_branch)
        for slot in metric_names.SLOTS:
            if not isinstance(self.modules.get(f"{name}.{slot}"), nn.Identity):
                self.watch_slot(f"{site}.{slot}", f"{name}.{slot}")
        self.watch_stream(site, name)

    def watch_slot(self, site: str, name: str) -> None:
        self.watch_norm(site, name)
        self.before(name, partial(self.watch_tensor, f"{site}.in"))
        self.after(name, lambda _, y: self.watch_tensor(f"{site}.out", y))

    def watch_stream(self, site: str, name: str) -> None:
        self.after(name, lambda _, x: self.watch_tensor(site, x))
        if self.histograms:
            self.after(name, lambda _, x: self.record(f"hist.act/{site}", statistics.histogram, x))

    def watch_norm(self, site: str, name: str) -> None:
        def record_internals(x: Tensor) -> None:
            for statistic, (function, names) in statistics.NORM_INTERNALS.items():
                if tensors := statistics.tensors_of(self.modules[name], names, x):
                    self.record(f"norm.{statistic}/{site}", function, x, *tensors)

        self.before(name, record_internals)

    def watch_tensor(self, site: str, x: Tensor) -> None:
        for name, moment in statistics.MOMENTS.items():
            self.record(f"act.{name}/{site}", moment, x)
        if x.requires_grad:
            x.register_hook(lambda gradient: self.record(f"grad.rms/{site}", statistics.rms, gradient))

    @torch.no_grad()
    def record(self, name: str, statistic: Callable[..., Tensor], *tensors: Tensor) -> None:
        if self.wanted(name) or name.startswith("hist."):
            with torch.autocast(self.device_type, enabled=False):  # autocast would compute q·k in bf16
                self.values[name] = statistic(*(x.float() for x in tensors))

    def before(self, name: str, callback: Callable[..., None]) -> None:
        """Call ``callback(*inputs)`` before the forward of the module ``name``, if it exists."""
        if name in self.modules:
            self.hooks.append(self.modules[name].register_forward_pre_hook(lambda _, args: callback(*args)))

    def after(self, name: str, callback: Callable[[Tensor, Tensor], object]) -> None:
        """Call ``callback(input, output)`` after the forward of the module ``name``, if it exists."""

        def hook(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            callback(inputs[0], output)

        if name in self.modules:
            self.hooks.append(self.modules[name].register_forward_hook(hook))
