"""The state of a run at a step, as tensors by name and plain data: its model's parameters and buffers, and
its optimizers' state.

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
from training.muon import Muon
from training.optimizer import AdamW

OPTIMIZER = "optimizer/"  # begins the name of every tensor that is not the model's


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; a tied head appears once, as the embedding."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def optimizer_state(
    model: nn.Module, optimizers: Sequence[AdamW | Muon]
) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """Return the state of each parameter, tensors by the name ``optimizer/<parameter>/<key>``, and a table of
    these names. An optimizer's options (betas, decay) are no state: they are the config's."""
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
    has, needs = (
        {name: f"{t.dtype} of shape {tuple(t.shape)}" for name, t in tensors.items()}
        for tensors in (stored, wanted)
    )
    for name in sorted(has | needs):
        if has.get(name) != needs.get(name):
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name} is {has.get(name, 'missing')}, not "
                f"{needs.get(name, 'of this model')}; the checkpoint is of another model"
            )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(stored[name])
    if not all_finite(wanted):
        raise CheckpointError(f"{checkpoint.path}: has non-finite weights; use another one")


def restore_optimizers(
    model: nn.Module,
    optimizers: Sequence[AdamW | Muon],
    checkpoint: Checkpoint,
    shard: Callable[[Tensor, Tensor], Tensor] = lambda tensor, parameter: tensor,
) -> None:
    """Restore the state of ``optimizers``; ``shard`` leaves of a parameter's tensors what this rank keeps.
    The tensors are copies: one read from a file begins at any address, and a sum over it may then be taken in
    another order. Raises CheckpointError where the state does not fit."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    table = dict(checkpoint.meta.optimizer)
    try:
        for optimizer in optimizers:
            state = {}
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for i, parameter in enumerate(parameters):
                if paths := table.pop(names[parameter], None):
                    kept = {key: checkpoint.tensors[at["$tensor"]].clone() for key, at in paths.items()}
                    kept |= {key: shard(kept[key], parameter) for key in kept if key != "step"}
                    shapes = {key: (t.shape, t.is_floating_point()) for key, t in kept.items()}
                    whole = parameter.shape, True
                    needed = {k: (torch.Size(), True) if k == "step" else whole for k in optimizer.state_keys}
                    if shapes != needed:  # torch's fused optimizers write into it without a check
                        raise ValueError(f"{names[parameter]}: {', '.join(shapes)}")
                    state[i] = kept
            # through torch's own loading, which knows the device that each tensor belongs on
            optimizer.load_state_dict(
                {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
            )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{checkpoint.path}: its optimizer state does not fit ({error}); use another one"
        ) from None
    if table:
        raise CheckpointError(f"{checkpoint.path}: has optimizer state of {min(table)}; use another one")


def all_finite(tensors: dict[str, Tensor]) -> bool:
    """Return whether no number is NaN or infinite."""
    finite = [tensor.isfinite().all() for tensor in tensors.values()]
    return bool(torch.stack([flag.to(finite[0].device) for flag in finite]).all()) if finite else True
