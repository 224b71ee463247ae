"""Check what a run needs of a norm or a placement, in the forwards of a model: docs/own-norm.md lists it.

The modules of both return one tensor of their input's shape, change neither their input nor their parameters,
and keep their state in buffers, as a resumed run has nothing else.
"""

import hashlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.placements import Residual

NOT_STATE = frozenset(vars(nn.Module())) - {"training"}  # parameters, buffers, modules, hooks


class BrokenContractError(Exception):
    """A norm or a placement breaks the contract; the message says which one, how, and what to do."""


@contextmanager
def watched(norms: Mapping[str, nn.Module]) -> Iterator[None]:
    """Context manager: check every forward of ``norms``, and of a placement's modules, by name in the model.

    Raises:
        BrokenContractError: a norm raises an exception, returns something else than a tensor of its input's
            shape, changes its input in place, changes or replaces its parameters, or adds or reshapes a
            buffer, which a checkpoint could not restore.
        MemoryError, RuntimeError, ValueError: from a norm, with a note that names it and its line.
    """
    inside: list[str] = []  # the norms whose forward has begun and not ended
    copies: dict[str, Tensor] = {}  # their inputs
    parameters = {name: parameters_of(norm) for name, norm in norms.items()}
    buffers = {name: forms_of_buffers(norm) for name, norm in norms.items()}

    def begin(name: str, norm: nn.Module, args: tuple[Tensor, ...]) -> None:
        inside.append(name)
        copies[name] = args[0].detach().clone()

    def end(name: str, norm: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        now = forms_of_buffers(norm)  # here, as ``buffers_kept`` restores them later
        problem = wrong_output(output, args[0], copies.pop(name)) or changed_buffers(buffers[name], now)
        if problem:
            raise BrokenContractError(f"{title(name, norm)} {problem}")
        inside.pop()

    def check_tensors() -> None:
        for name, norm in norms.items():
            if problem := changed_parameters(parameters[name], parameters_of(norm)):
                raise BrokenContractError(f"{title(name, norm)} {problem}")

    with ExitStack() as stack:
        for name, norm in norms.items():
            stack.callback(norm.register_forward_pre_hook(partial(begin, name)).remove)
            stack.callback(norm.register_forward_hook(partial(end, name)).remove)
        try:
            yield
        except (Exception, SystemExit) as error:
            if not inside and isinstance(error, BrokenContractError):  # of the whole model
                check_tensors()  # may explain it
            # a signal is of a subclass of SystemExit
            if not inside or isinstance(error, BrokenContractError) or is_signal(error):
                raise
            where, line = title(inside[-1], norms[inside[-1]]), line_of(error)
            if isinstance(error, MemoryError | RuntimeError | ValueError):  # perhaps a run's sizes are wrong
                error.add_note(f"in {where}{line}")
                raise
            raise BrokenContractError(f"{where} raises {described(error)}{line}; correct it") from error
    check_tensors()


def is_signal(error: BaseException) -> bool:
    """Return whether an error is a signal's, of a subclass of SystemExit, and not one of sys.exit."""
    return isinstance(error, SystemExit) and type(error) is not SystemExit


def title(name: str, norm: nn.Module) -> str:
    return f"{name} ({type(norm).__module__}.{type(norm).__qualname__})"


def described(error: BaseException) -> str:
    """Return type and first line of an error, as system.errors.described, which may not be imported here."""
    return ": ".join(filter(None, [type(error).__name__, str(error).strip().partition("\n")[0]]))


def line_of(error: BaseException) -> str:
    """Return ", at mynorms.py:12": the last line that an error came through, outside of torch and this
    project's packages; "" if there is none."""
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if not is_known(frame.f_globals.get("__name__", "")):
            return f", at {Path(frame.f_code.co_filename).name}:{line}"
    return ""


def is_known(module: str) -> bool:
    """Return whether a module is of torch or of this project, whose packages are beside this one."""
    package = module.partition(".")[0]
    return package == "torch" or (Path(__file__).parents[1] / package / "__init__.py").is_file()


def wrong_output(output: Any, x: Tensor, before: Tensor) -> str | None:
    """Return what is wrong with the output of a norm for x, which was ``before``; None if nothing is."""
    if not isinstance(output, Tensor):
        kind = "nothing (None)" if output is None else f"a {type(output).__name__}"
        return f"returns {kind}; return one tensor"
    if output.shape != x.shape:
        shapes = f"shape {tuple(output.shape)} for an input of shape {tuple(x.shape)}"
        return f"returns a tensor of {shapes}; keep the shape"
    if not output.is_floating_point():
        return f"returns a tensor of {output.dtype}; return floating-point numbers"
    if not torch.allclose(x.detach(), before, rtol=0, atol=0, equal_nan=True):
        return "changes its input in place, on which other modules depend; compute a new tensor"
    return None


def parameters_of(norm: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Return each parameter of a norm by name, with a copy of its value."""
    return {name: (p, p.detach().clone()) for name, p in norm.named_parameters()}


def changed_parameters(
    before: Mapping[str, tuple[Tensor, Tensor]], after: Mapping[str, tuple[Tensor, Tensor]]
) -> str | None:
    """Return what a forward did to the parameters of a norm; None if nothing."""
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or before[name][0] is not after[name][0]:
            return f"replaces its parameter {name}, so that it is not trained; create it in __init__"
        if not torch.equal(before[name][1], after[name][1]):
            return f"changes its parameter {name} in forward; change a buffer or leave it to the optimizer"
    return None


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Context manager: restore the buffers of ``model`` at the end, also those that a forward replaced; one
    that was added or reshaped stays."""
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
                setattr(module, name, buffer.copy_(value))  # in evaluation, a new one cannot be trained with


def forms_of_buffers(norm: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Return shape and dtype of each buffer, and whether it requires a gradient."""
    return {name: (b.shape, b.dtype, b.requires_grad) for name, b in norm.named_buffers()}


def changed_buffers(before: dict[str, tuple[Any, ...]], after: dict[str, tuple[Any, ...]]) -> str | None:
    """Return what a forward did to the buffers of a norm besides changing their numbers; None if nothing."""
    for name in sorted(before | after):
        if name not in before or name not in after or before[name][0] != after[name][0]:
            return f"adds, removes or reshapes its buffer {name}; create it in __init__"
        if before[name][1] != after[name][1]:
            return f"changes the dtype of its buffer {name} to {after[name][1]}; add .to({before[name][1]})"
        if before[name] != after[name]:
            return f"keeps the graph of its gradient in its buffer {name}; add .detach()"
    return None


def other_state(module: nn.Module) -> dict[str, object]:
    """Return, by name, ``content`` of each attribute of a module that is not a parameter, buffer, submodule
    or hook."""
    return {name: content(value) for name, value in vars(module).items() if name not in NOT_STATE}


def content(value: Any, depth: int = 8, seen: dict[int, tuple[int, int]] | None = None) -> object:
    """Return what is equal for an object before and after a call that did not change it. ``seen``: number
    and depth of each object by id, as a logger, for example, leads to all others and back to itself."""
    seen = {} if seen is None else seen
    if isinstance(value, torch.Generator):
        value = value.get_state()
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        return str(value.dtype), tuple(value.shape), hashlib.sha256(data.tobytes()).hexdigest()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()
    is_collection = isinstance(value, dict | list | tuple | set) and depth > 0
    if not is_collection and (not hasattr(value, "__dict__") or isinstance(value, type) or callable(value)):
        return repr(value)
    number, depth_seen = seen.get(id(value), (len(seen), -1))
    if depth_seen >= depth:
        return f"object {number}"
    seen[id(value)] = number, depth
    if not is_collection:
        return content(vars(value), depth, seen)
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return [(repr(key), content(each, depth - 1, seen)) for key, each in pairs]


def check_repeatable(
    model: nn.Module,
    norms: Mapping[str, nn.Module],
    train: Callable[[], Tensor],
    evaluate: Callable[[], Tensor],
    disturb: Callable[[], object],
) -> None:
    """Check that a call with the same parameters, buffers and seed gives the same loss, whatever was called
    before it, and that norms and placements have no other state that changes.

    Args:
        train, evaluate: return the loss of a batch, one number, in training and in evaluation.
        disturb: evaluates another batch.

    Raises:
        BrokenContractError: a resumed run would have other losses.
    """

    def call(function: Callable[[], Any]) -> Any:
        torch.manual_seed(0)
        with buffers_kept(model):
            return function()

    residuals = {name: module for name, module in model.named_modules() if isinstance(module, Residual)}
    inside = {f"{n}.{i}".rstrip("."): part for n, norm in norms.items() for i, part in norm.named_modules()}
    modules = residuals | inside
    evaluated = [call(evaluate)]  # before any training, as when a model is only sampled from
    losses, states = [], []
    for _ in range(2):
        losses.append(call(train))
        states.append({name: other_state(module) for name, module in modules.items()})
    for name, module in modules.items():
        for key, value in states[1][name].items():
            if states[0][name].get(key) != value:
                why = f"changes its attribute {key} in forward, which a checkpoint does not have"
                raise BrokenContractError(f"{title(name, module)} {why}; register a buffer for it")
    call(disturb)
    losses.append(call(train))
    evaluated.append(call(evaluate))
    for mode, values in {"training": losses, "evaluation": evaluated}.items():
        if any(value != values[0] for value in values) and all(map(torch.isfinite, values)):
            raise BrokenContractError(
                f"the loss of a batch in {mode} depends on the calls before it, at the same parameters, "
                "buffers and seed; draw random numbers by torch's global generator alone, and keep state in "
                "buffers"
            )
