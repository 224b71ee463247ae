"""Compute a model's output from the same state every time, and find out what makes the output vary anyway.

A test that exchanges tokens can prove a leak only if the same tokens give the same output twice.
"""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.attention import Attend

CALLS, NUMBERS = "the number of its calls", "random numbers"
REPEATS = 3  # calls of one copy that show whether a model counts them


class UntestableError(Exception):
    """A model cannot be tested; the message says why."""


@contextmanager
def random_states_kept(device: torch.device) -> Iterator[None]:
    """Context manager: restore the states of torch's, NumPy's and Python's random numbers at the end."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def seed_all(seed: int) -> None:
    """Seed the random numbers of torch, NumPy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


class KeepsFp64(TorchFunctionMode):
    """Keep fp64 where a model casts to fp32, as by ``x.float()``: rounding would look like a leak."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            return args[0].to(torch.float64, copy=True)
        kwargs = kwargs or {}
        args = [torch.float64 if arg is torch.float32 else arg for arg in args]
        if kwargs.get("dtype") is torch.float32:
            kwargs = kwargs | {"dtype": torch.float64}
        return func(*args, **kwargs)

    def __enter__(self) -> "KeepsFp64":
        self.dtype = torch.get_default_dtype()  # of the constants that a forward makes
        torch.set_default_dtype(torch.float64)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.set_default_dtype(self.dtype)


class Repeated:
    """The logits of ``model``, tokens (B, T) -> (B, T, V). Every call is of a new copy, with the same
    parameters, buffers, attributes and random numbers; the model itself is not touched.

    Args:
        training: the mode of the copies; gradients are enabled in training only, as in a run.
        autocast: computes in the precision of the run.
        parameters: by name, used in place of the model's.
    """

    def __init__(
        self,
        model: nn.Module,
        training: bool,
        autocast: Callable[[], AbstractContextManager[Any]],
        parameters: dict[str, Tensor],
    ) -> None:
        self.model, self.training, self.autocast, self.parameters = model, training, autocast, parameters

    def __call__(self, tokens: Tensor, seed: int = 0) -> Tensor:
        return self.logits(self.copy(), tokens, seed)

    def copy(self) -> nn.Module:
        """Return a copy of the model in its mode, with ``parameters``, which need no gradients."""
        parameters = {
            id(old): nn.Parameter(self.parameters[name].clone(), requires_grad=False)
            for name, old in self.model.named_parameters()
        }
        return copy.deepcopy(self.model, parameters).train(self.training)

    def logits(
        self, model: nn.Module, tokens: Tensor, seed: int = 0, gradients: bool | None = None
    ) -> Tensor:
        """Return the logits of a copy, whose parameters, buffers and attributes the forward may move.

        Args:
            gradients: whether they are enabled; by default as in a run.
        """
        seed_all(seed)
        with self.autocast(), torch.set_grad_enabled(self.training if gradients is None else gradients):
            logits: Tensor = model(tokens)
        return logits

    def in_fp64(self) -> "Repeated":
        """Return the same in fp64, with rounding errors of 1e-16."""
        parameters = {n: p.double() if p.is_floating_point() else p for n, p in self.parameters.items()}
        return Repeated(copy.deepcopy(self.model).double(), self.training, KeepsFp64, parameters)

    def variations(self, tokens: Tensor, first: Tensor) -> tuple[list[str], Tensor]:
        """Return what makes the output for the same tokens vary, besides dropout: CALLS, NUMBERS; and the
        logits of a second call. In training, the state may move from call to call.

        Args:
            first: the logits of a call.

        Raises:
            UntestableError: the output is not finite, or varies although nothing else does.
        """
        if not first.isfinite().all():
            raise UntestableError("its logits are not finite")
        model = self.copy()
        state = copy.deepcopy(model.state_dict())
        equal = []
        for number in range(REPEATS):
            logits = self.logits(model, tokens)
            equal.append(torch.equal(logits, first))
            if number == 1:
                second = logits  # the others are dropped: for GPT-2, logits are gigabytes
            if self.training:
                model.load_state_dict(state, strict=False)
        if not equal[0]:
            raise UntestableError("it gives another output each time for the same tokens")
        varies = [] if all(equal) else [CALLS]
        plain = self.copy()
        if remove_dropout(plain) and self.training:
            first = self.logits(copy.deepcopy(plain), tokens)
        if not torch.equal(self.logits(plain, tokens, seed=1), first):
            varies.append(NUMBERS)
        return varies, second

    def after(self, tokens: Tensor, before: Tensor) -> Tensor:
        """Return the logits for ``tokens`` of a copy that was called with ``before`` first."""
        model = self.copy()
        self.logits(model, before)
        return self.logits(model, tokens)


def remove_dropout(model: nn.Module) -> bool:
    """Set the probability of every dropout module to 0. Returns whether one was above 0."""
    changed = False
    for module in model.modules():
        name = "dropout" if isinstance(module, Attend) else "p"
        if isinstance(module, Attend | nn.modules.dropout._DropoutNd) and getattr(module, name) > 0:
            setattr(module, name, 0.0)
            changed = True
    return changed
