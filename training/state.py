"""The state of a run at a step, as tensors by name and plain data: its model's parameters and buffers, and
its optimizers' state, whatever torch optimizers these are.

Nothing else is state: random numbers and the learning rate are functions of the step.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from interop.gpt2_layout import entries
from interop.pretrained import pretrained
from rundir.checkpoint_file import Checkpoint
from system.errors import CheckpointError

OPTIMIZER = "optimizer/"  # begins the name of every tensor that is not the model's


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; a tied head appears once, as the embedding."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def optimizer_state(
    model: nn.Module, optimizers: Sequence[Optimizer]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state of each parameter: its tensors, ``optimizer/<parameter>/<key>``, and its structure.

    A state may hold tensors, numbers, None, and lists and tables of these, whose keys are strings. An
    optimizer's options (betas, decay) are no state: they are the config's.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    structure = {
        names[parameter]: take_apart(state, OPTIMIZER + names[parameter], tensors)
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
    }
    return tensors, structure


def take_apart(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return ``value`` with {"$tensor": path} in the place of each tensor, which goes into ``tensors``."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"$tensor": path}
    if isinstance(value, dict):
        return {key: take_apart(inner, f"{path}/{key}", tensors) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [take_apart(inner, f"{path}/{i}", tensors) for i, inner in enumerate(value)]
    return value


def put_together(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Reverse ``take_apart``. The tensors are copies: one read from a file begins at any address, and a sum
    over it may then be taken in another order."""
    if isinstance(value, dict):
        if value.keys() == {"$tensor"}:
            return tensors[value["$tensor"]].clone()
        return {key: put_together(inner, tensors) for key, inner in value.items()}
    if isinstance(value, list):
        return [put_together(inner, tensors) for inner in value]
    return value


def initialise_from(model: nn.Module, name: str, vocab_size: int) -> None:
    """Copy the weights of ``init_from`` into a model of their architecture: all matrices, and those norm
    tensors that have the same name and shape. Raises ConfigError as Pretrained."""
    state = model.state_dict()  # shares its memory with the model
    weights = pretrained(name).tensors(state["embed.positions.weight"].shape[0], vocab_size)
    with torch.no_grad():
        for key, tensor in weights.items():
            if key in state and state[key].shape == tensor.shape:
                state[key].copy_(tensor)


def describe_initialisation(model: nn.Module, name: str) -> str:
    """Return one line: what ``initialise_from`` copied, and what it could not."""
    parameters = {key for key, _ in model.named_parameters()}
    weights = {entry.our_name for entry in entries(pretrained(name).config)}
    skipped, fresh = len(weights - parameters), len(parameters - weights)
    exceptions = f"; {skipped} norm tensors were skipped (not in this model), {fresh} keep their fresh values"
    return f"initialised from {name}" + exceptions * bool(skipped or fresh)


def restore_model(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Copy parameters and buffers into ``model``. Raises CheckpointError, with the tensor that misfits."""
    stored = {name: t for name, t in checkpoint.tensors.items() if not name.startswith(OPTIMIZER)}
    wanted = model_tensors(model)
    for name in sorted(stored.keys() ^ wanted.keys()):
        problem = "is missing" if name in wanted else "is not of this model"
        raise CheckpointError(
            f"{checkpoint.path}: tensor {name} {problem}; the checkpoint is of another model"
        )
    with torch.no_grad():
        for name, tensor in wanted.items():
            has, needs = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (stored[name], tensor))
            if has != needs:
                raise CheckpointError(
                    f"{checkpoint.path}: tensor {name} is {has}, not {needs}; the checkpoint is of another "
                    "model"
                )
            tensor.copy_(stored[name])
    if not all_finite(wanted):
        raise CheckpointError(f"{checkpoint.path}: has non-finite weights; use another one")


def restore_optimizers(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    checkpoint: Checkpoint,
    shard: Callable[[Tensor, Tensor], Tensor] = lambda tensor, parameter: tensor,
) -> None:
    """Restore the state of ``optimizers``; ``shard`` leaves of a parameter's tensors what this rank keeps.
    Raises CheckpointError where the state does not fit."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    try:
        whole = put_together(checkpoint.meta.optimizer, checkpoint.tensors)
        for optimizer in optimizers:
            groups = optimizer.param_groups
            groups_parameters = [parameter for group in groups for parameter in group["params"]]
            ours = [names[parameter] for parameter in groups_parameters]
            state = {i: whole.pop(name) for i, name in enumerate(ours) if name in whole}
            for i, kept in state.items():
                if keys := getattr(optimizer, "state_keys", ()):
                    kept |= {k: shard(kept[k], groups_parameters[i]) for k in kept if k != "step"}
                    check_fits(kept, groups_parameters[i], keys)
            # through torch's own loading, which knows the device that each tensor belongs on
            optimizer.load_state_dict(
                {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
            )
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{checkpoint.path}: its optimizer state does not fit ({error}); use another one"
        ) from None
    if whole:
        raise CheckpointError(f"{checkpoint.path}: has optimizer state of {min(whole)}; use another one")


def check_fits(kept: dict[str, Any], parameter: Tensor, keys: Collection[str]) -> None:
    """Check an optimizer's state of a parameter: torch's fused optimizers write into it without a check.
    Raises ValueError."""
    if kept.keys() != {*keys}:
        raise ValueError(f"it has {', '.join(kept)}, not {', '.join(keys)}")
    for name, value in kept.items():
        wanted = torch.Size() if name == "step" else parameter.shape
        if not isinstance(value, Tensor) or value.shape != wanted or not value.is_floating_point():
            raise ValueError(f"{name} is no tensor of shape {tuple(wanted)}")


def all_finite(tensors: dict[str, Tensor]) -> bool:
    """Return whether no number is NaN or infinite."""
    finite = [tensor.isfinite().all() for tensor in tensors.values()]
    return bool(torch.stack([flag.to(finite[0].device) for flag in finite]).all()) if finite else True
