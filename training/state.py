"""Collect and restore the state of a run at a step, as tensors by name and plain data: the model's parameters
and buffers, and the optimizers' state.

Nothing else is state: random numbers and the learning rate are functions of the step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from interop.gpt2_layout import entries
from interop.pretrained import pretrained
from rundir.checkpoint_file import Checkpoint
from system.errors import CheckpointError
from training.optimizer_base import BaseOptimizer

OPTIMIZER = "optimizer/"  # prefix of the names of the optimizers' tensors


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; a tied head appears once, as the embedding."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def optimizer_state(
    model: nn.Module, optimizers: Sequence[BaseOptimizer]
) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """Return the optimizers' tensors by the name ``optimizer/<parameter>/<key>``, and a table of these names.
    An optimizer's options (betas, decay) are not part of its state: they come from the config."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    table: dict[str, dict[str, Any]] = {}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            paths = {key: f"{OPTIMIZER}{names[parameter]}/{key}" for key in state}
            tensors |= {path: state[key] for key, path in paths.items()}
            table[names[parameter]] = {key: {"$tensor": path} for key, path in paths.items()}
    return tensors, table


def initialise_from(model: nn.Module, name: str, vocab_size: int) -> None:
    """Copy the weights that ``init_from`` names into a model of the same architecture: all matrices, and the
    norm tensors that have the same name and shape. Raises ConfigError as Pretrained does."""
    state = model.state_dict()  # shares its memory with the model
    weights = pretrained(name).tensors(state["embed.positions.weight"].shape[0], vocab_size)
    with torch.no_grad():
        for key, tensor in weights.items():
            if key in state and state[key].shape == tensor.shape:
                state[key].copy_(tensor)


def describe_initialisation(model: nn.Module, name: str) -> str:
    """Return one line that says what ``initialise_from`` copied, and what it could not copy."""
    shapes = {key: parameter.shape for key, parameter in model.named_parameters()}
    weights = {entry.our_name: entry.shape for entry in entries(pretrained(name).config)}
    # a larger matrix is cut to the model's size: ``Pretrained.tensors``
    copied = {n for n, shape in weights.items() if n in shapes and (len(shape) > 1 or shape == shapes[n])}
    parts = {"left out, as this model has none of this name and shape": weights.keys() - copied}
    parts |= {"not copied, so at their initial values": shapes.keys() - copied}
    notes = [
        f"; {what}: {', '.join(sorted(names)[:2])}{', …' * (len(names) > 2)} ({len(names)})"
        for what, names in parts.items()
        if names
    ]
    return f"initialised from {name}{''.join(notes)}"


def restore_model(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Copy parameters and buffers into ``model``. Raises CheckpointError, which names a wrong tensor."""
    stored = {name: t for name, t in checkpoint.tensors.items() if not name.startswith(OPTIMIZER)}
    targets = model_tensors(model)
    has, needs = (
        {name: f"{t.dtype} of shape {tuple(t.shape)}" for name, t in tensors.items()}
        for tensors in (stored, targets)
    )
    for name in sorted(has | needs):
        if has.get(name) != needs.get(name):
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name} is {has.get(name, 'missing')}, but the model has "
                f"{needs.get(name, 'no such tensor')}; the checkpoint is of another model"
            )
    with torch.no_grad():
        for name, tensor in targets.items():
            tensor.copy_(stored[name])
    if wrong := first_not_finite(targets):
        raise CheckpointError(f"{checkpoint.path}: {wrong} is not finite; use another checkpoint")


def restore_optimizers(
    model: nn.Module,
    optimizers: Sequence[BaseOptimizer],
    checkpoint: Checkpoint,
    shard: Callable[[Tensor, Tensor], Tensor] = lambda tensor, parameter: tensor,
) -> None:
    """Restore the state of ``optimizers``; ``shard`` returns this rank's part of a tensor. The tensors are
    copied: a tensor read from a file starts at an arbitrary address, on which the order of a sum over it may
    depend. Raises CheckpointError if the state does not match the model."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    table = dict(checkpoint.meta.optimizer)
    try:
        for optimizer in optimizers:
            state = {}
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for i, parameter in enumerate(parameters):
                if paths := table.pop(names[parameter], None):
                    tensors = {key: checkpoint.tensors[at["$tensor"]].clone() for key, at in paths.items()}
                    tensors |= {key: shard(tensors[key], parameter) for key in tensors if key != "step"}
                    kinds = {key: (t.shape, t.is_floating_point()) for key, t in tensors.items()}
                    shapes = {key: () if key == "step" else parameter.shape for key in optimizer.state_keys}
                    # checked, as torch's fused optimizers write into the state unchecked
                    if kinds != {key: (shape, True) for key, shape in shapes.items()}:
                        raise ValueError(f"{names[parameter]}: {', '.join(kinds)}")
                    state[i] = tensors
            # torch moves each tensor to the device where it belongs
            optimizer.load_state_dict(
                {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
            )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{checkpoint.path}: optimizer state does not match the model ({error}); use another checkpoint"
        ) from None
    if table:
        raise CheckpointError(f"{checkpoint.path}: excess optimizer state of {min(table)}; use another file")


def first_not_finite(tensors: dict[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a number that is not finite; None if there is none."""
    finite = [tensor.isfinite().all() for tensor in tensors.values()]
    flags = torch.stack([flag.to(finite[0].device) for flag in finite]).tolist() if finite else []
    return next((name for name, flag in zip(tensors, flags, strict=True) if not flag), None)
