"""What a run is at a step, as tensors by name and plain data: its model's parameters and buffers, and its
optimizers' state, whatever torch optimizers these are.

Nothing else is state: random numbers and the learning rate are functions of the step.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from interop.gpt2_layout import entries
from interop.pretrained import pretrained
from rundir.checkpoint_file import Checkpoint, load, newest, path_of
from system.errors import CheckpointError
from training.parallel.ranks import Ranks
from training.parallel.strategies import View

OPTIMIZER = "optimizer/"  # begins the name of every tensor that is not the model's


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; the tied head appears once, as the embedding it is."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def optimizer_state(
    model: nn.Module, optimizers: Sequence[Optimizer]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of each parameter: its tensors, ``optimizer/<parameter>/<key>``, and its structure.

    A state may hold tensors, numbers, None, and lists and tables of these, whose keys are strings. An
    optimizer's options (betas, decay) are no state: they are the config's.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    structure = {
        names[parameter]: taken_apart(state, OPTIMIZER + names[parameter], tensors)
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
    }
    return tensors, structure


def taken_apart(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` with {"$tensor": path} in the place of each tensor, which goes into ``tensors``."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"$tensor": path}
    if isinstance(value, dict):
        return {key: taken_apart(inner, f"{path}/{key}", tensors) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [taken_apart(inner, f"{path}/{i}", tensors) for i, inner in enumerate(value)]
    return value


def put_together(value: Any, tensors: dict[str, Tensor]) -> Any:
    """What ``taken_apart`` took apart. The tensors are copies: one read from a file begins at any address,
    and a sum over it may then be taken in another order."""
    if isinstance(value, dict):
        if value.keys() == {"$tensor"}:
            return tensors[value["$tensor"]].clone()
        return {key: put_together(inner, tensors) for key, inner in value.items()}
    if isinstance(value, list):
        return [put_together(inner, tensors) for inner in value]
    return value


def resume(folder: Path, run: str, view: View, optimizers: Sequence[Optimizer], ranks: Ranks) -> int:
    """Take a model, inside ``view.whole``, and its optimizers to where the newest usable checkpoint of
    ``run`` has them: that which the first rank finds. Returns its step, or 0 where there is none. Raises
    CheckpointError where there are some and none can be used."""
    found = newest(folder, run) if ranks.first else None
    step = ranks.told(found.meta.step if found else None)
    if step is None:
        return 0
    try:
        found = found or load(path_of(folder, step))
        if found.meta.step and not found.meta.optimizer:
            raise CheckpointError(f"{found.path}: has no state of an optimizer, so nothing can go on from it")
        restore_model(view.model, found)
        view.restored()
        restore_optimizers(view.trained, optimizers, found, view.cut)
    except CheckpointError as error:  # the code of the model has changed
        raise CheckpointError(f"{error}; fresh=true starts the run over") from None
    return found.meta.step


def begin(model: nn.Module, name: str, vocab_size: int) -> None:
    """Copy the weights of ``init_from`` into a model of their architecture: all of its matrices, and of its
    norms what has the same name and shape, so that a norm of another kind begins where theirs were, as far as
    it can. Raises ConfigError as Pretrained."""
    own = model.state_dict()  # the very tensors
    there = pretrained(name).tensors(own["embed.positions.weight"].shape[0], vocab_size)
    with torch.no_grad():
        for key, tensor in there.items():
            if key in own and own[key].shape == tensor.shape:
                own[key].copy_(tensor)


def begun_in_words(model: nn.Module, name: str) -> str:
    """What ``begin`` took, and where another norm or placement has no such tensors."""
    own = {key for key, _ in model.named_parameters()}
    there = {entry.ours for entry in entries(pretrained(name).said)}
    left, new = len(there - own), len(own - there)
    others = f", but {left} tensors of its norms, which this model has not; {new} of this one's begin anew"
    return f"begins with the weights of {name}" + others * bool(left or new)


def restore_model(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Copy parameters and buffers into ``model``. Raises CheckpointError naming what does not fit."""
    stored = {name: t for name, t in checkpoint.tensors.items() if not name.startswith(OPTIMIZER)}
    wanted = model_tensors(model)
    for name in sorted(stored.keys() ^ wanted.keys()):
        what = "is missing" if name in wanted else "is not of this model"
        raise CheckpointError(f"{checkpoint.path}: tensor {name} {what}; the checkpoint is of another model")
    with torch.no_grad():
        for name, tensor in wanted.items():
            if tensor.shape != stored[name].shape:
                raise CheckpointError(
                    f"{checkpoint.path}: tensor {name} has shape {tuple(stored[name].shape)}, not "
                    f"{tuple(tensor.shape)}; the checkpoint is of another model"
                )
            if tensor.dtype != stored[name].dtype:
                raise CheckpointError(
                    f"{checkpoint.path}: tensor {name} is of {stored[name].dtype}, not {tensor.dtype}; the "
                    "checkpoint is of another model"
                )
            tensor.copy_(stored[name])
    if not all_finite(wanted):
        raise CheckpointError(f"{checkpoint.path}: has weights that are not finite; use another one")


def restore_optimizers(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    checkpoint: Checkpoint,
    cut: Callable[[Tensor, Tensor], Tensor] = lambda tensor, parameter: tensor,
) -> None:
    """Give ``optimizers`` their state back: of a parameter's tensors what ``cut`` leaves, where a rank keeps
    a part. Raises CheckpointError where it does not fit them."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    try:
        whole = put_together(checkpoint.meta.optimizer, checkpoint.tensors)
        for optimizer in optimizers:
            groups = optimizer.param_groups
            groups_parameters = [parameter for group in groups for parameter in group["params"]]
            ours = [names[parameter] for parameter in groups_parameters]
            state = {i: whole.pop(name) for i, name in enumerate(ours) if name in whole}
            for i, kept in state.items():
                if keys := getattr(optimizer, "keeps", ()):
                    kept |= {k: cut(kept[k], groups_parameters[i]) for k in kept if k != "step"}
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
    """Whether that may be an optimizer's state of a parameter: torch's fused ones write into it unasked.
    Raises ValueError."""
    if kept.keys() != {*keys}:
        raise ValueError(f"it has {', '.join(kept)}, not {', '.join(keys)}")
    for name, value in kept.items():
        wanted = torch.Size() if name == "step" else parameter.shape
        if not isinstance(value, Tensor) or value.shape != wanted or not value.is_floating_point():
            raise ValueError(f"{name} is no tensor of shape {tuple(wanted)}")


def all_finite(tensors: dict[str, Tensor]) -> bool:
    """Whether no number is NaN or infinite."""
    found = [tensor.isfinite().all() for tensor in tensors.values()]
    return bool(torch.stack([one.to(found[0].device) for one in found]).all()) if found else True
