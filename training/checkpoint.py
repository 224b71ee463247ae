"""Checkpoints: all that a run needs to resume, as named tensors and one JSON text.

A checkpoint is one safetensors file: parameters and buffers, the optimizers' state as
``optimizer/<parameter>/<key>``, and the metadata (step, config, tokenizer, a digest of the tensors). Nothing
else is state: random numbers and the learning rate are functions of the step. The file is written under a
temporary name, synced and renamed, so a file with the final name is complete. No pickle is involved.
"""

import hashlib
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from cli.errors import checked
from cli.schema import Checked, RunConfig
from data.errors import CheckpointError, ConfigError, described
from training.signals import Interrupted, Stop

if TYPE_CHECKING:
    from torch import Tensor, nn

    from data.prepared import Prepared
    from training.ddp import Ranks
    from training.log import RunLog
    from training.optimizer import BaseOptimizer, Optimizer
    from training.run_folder import Run

# Torch is imported in functions, so that sample.py reports a wrong key at once.

FORMAT: Literal[8] = 8
KEEP = 2  # newest checkpoints that are kept, besides the best
OPTIMIZER = "optimizer/"  # prefix of the names of the optimizers' tensors


class Meta(Checked):
    """The metadata of a checkpoint."""

    format: Literal[8] = FORMAT
    step: Annotated[int, Field(ge=0)]
    config: RunConfig
    tokenizer: dict[str, Any]  # its spec: data/tokenizers.py
    fingerprint: str  # of the training tokens
    run: str  # the run's name
    best: dict[str, Any] | None  # step and val/loss of the best evaluation up to this step


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file: metadata, and tensors by name, on the CPU."""

    path: Path
    meta: Meta
    tensors: "dict[str, Tensor]"


# ---------------------------------------------------------------------------------------------------
# Files


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.safetensors"


def saved_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint in the folder, ascending."""
    matches = (re.fullmatch(r"step-(\d{8,})\.safetensors", file.name) for file in folder.glob("step-*"))
    return sorted(int(match[1]) for match in matches if match)


def digest(tensors: "dict[str, Tensor]") -> str:
    """Return the SHA-256 of all names and numbers."""
    import torch

    sha256 = hashlib.sha256()
    for name in sorted(tensors):
        sha256.update(name.encode())
        sha256.update(tensors[name].detach().reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def write(path: Path, meta: Meta, tensors: "dict[str, Tensor]") -> None:
    """Write a checkpoint atomically. Raises CheckpointError if it cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temporary = path.with_name(f".{path.name}.tmp")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({**meta.model_dump(by_alias=True), "digest": digest(tensors)}, sort_keys=True)
    try:
        save_file(tensors, temporary, metadata={"normgpt": text})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(path.parent.stat().st_mode & 0o666)  # safetensors lets only the owner read the file
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        needed = sum(tensor.nbytes for tensor in tensors.values())
        why = f"cannot be written ({error}; {needed:,} bytes are needed)"
        raise CheckpointError(f"{path}: {why}; make room or choose another runs_dir") from None


def prune(folder: Path, best: int | None) -> None:
    """Remove all checkpoints but the newest KEEP and that of step ``best``."""
    for step in saved_steps(folder)[:-KEEP]:
        if step != best:
            path_of(folder, step).unlink()


def load(path: Path) -> Checkpoint:
    """Read and verify a checkpoint. Raises CheckpointError if it is missing, damaged or of another format."""
    from safetensors import SafetensorError, safe_open

    from interop.pretrained import PICKLES, pickle_advice

    if path.suffix in PICKLES:
        raise CheckpointError(pickle_advice(path))
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint; give run=FOLDER or checkpoint=FILE")
    try:
        with safe_open(path, framework="pt") as content:  # checks the header against the file's size
            meta = dict(json.loads((content.metadata() or {})["normgpt"]))
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 not a dict
        if meta.pop("digest") != digest(tensors):
            raise ValueError("the tensors do not match their digest")
        return Checkpoint(path, checked(Meta, meta), tensors)
    except OSError as error:  # of this machine, not of the file
        raise ConfigError(f"{path}: {error.strerror or error}; check the file and its permissions") from None
    except (SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        why = f"damaged, or not a checkpoint of this version ({described(error)[:200]})"
        raise CheckpointError(f"{path}: {why}; use another file") from None


def newest(folder: Path, run: str) -> Checkpoint | None:
    """Return the newest usable checkpoint of ``run``; None if the folder has no checkpoint. Rename unusable
    ones that are newer, and print a line about each. Raises CheckpointError if none is usable."""
    unusable: dict[Path, str] = {}  # file -> what is wrong with it, without the advice
    for step in reversed(saved_steps(folder)):
        path = path_of(folder, step)
        try:
            checkpoint = load(path)
            if (checkpoint.meta.run, checkpoint.meta.step) != (run, step):
                raise CheckpointError(f"{path}: belongs to another run or step; remove it")
        except CheckpointError as error:
            unusable[path] = str(error).rpartition(";")[0]
            continue
        for damaged, why in unusable.items():
            damaged.rename(f"{damaged}.unusable")
            print(f"warning: {why}; renamed it; resuming from {path.name}", file=sys.stderr)
        return checkpoint
    for why in unusable.values():
        raise CheckpointError(f"{why}; no older file is usable; fresh=true starts the run over")
    return None


# ---------------------------------------------------------------------------------------------------
# State


def model_tensors(model: "nn.Module") -> "dict[str, Tensor]":
    """Return parameters and buffers by name; a tied head appears once, as the embedding."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def optimizer_tensors(model: "nn.Module", optimizers: "Sequence[BaseOptimizer]") -> "dict[str, Tensor]":
    """Return the optimizers' state as ``optimizer/<parameter>/<key>``. Their options (betas, decay) are not
    saved: they come from the config."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{OPTIMIZER}{names[parameter]}/{key}": tensor
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for key, tensor in state.items()
    }


def tensor_of(checkpoint: Checkpoint, name: str, shape: Sequence[int]) -> "Tensor":
    """Return a tensor of a checkpoint. Raises CheckpointError if it has another shape or is missing."""
    tensor = checkpoint.tensors.get(name)
    if tensor is None or tensor.shape != shape:
        has = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}"
        needs = f"but the model needs {tuple(shape)}; the checkpoint is of another model"
        raise CheckpointError(f"{checkpoint.path}: tensor {name} is {has}, {needs}")
    return tensor


def restore_model(model: "nn.Module", checkpoint: Checkpoint) -> None:
    """Copy parameters and buffers into ``model``. Raises CheckpointError if a tensor is missing, has another
    shape, or is not the model's."""
    import torch

    targets = model_tensors(model)
    with torch.no_grad():
        for name, tensor in targets.items():
            tensor.copy_(tensor_of(checkpoint, name, tensor.shape))
    for name in checkpoint.tensors.keys() - targets.keys():
        if not name.startswith(OPTIMIZER):
            raise CheckpointError(f"{checkpoint.path}: has {name}; the checkpoint is of another model")


def restore_optimizers(
    model: "nn.Module", optimizers: "Sequence[BaseOptimizer]", checkpoint: Checkpoint
) -> None:
    """Restore the optimizers' state. Raises CheckpointError if the state does not fit the model, as torch's
    fused optimizers do not check this. Tensors are copied, because the order of a sum may depend on a
    tensor's address, and the addresses of tensors that were read from a file are arbitrary."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        state: dict[int, dict[str, Tensor]] = defaultdict(dict)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for (i, parameter), key in product(enumerate(parameters), optimizer.state_keys):
            shape = () if key == "step" else parameter.shape
            state[i][key] = tensor_of(checkpoint, f"{OPTIMIZER}{names[parameter]}/{key}", shape).clone()
        # torch moves each tensor to the device where it belongs
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def resume(
    run: "Run", model: "nn.Module", optimizer: "Optimizer", ranks: "Ranks"
) -> tuple[int, dict[str, Any] | None]:
    """Restore the newest usable checkpoint, which rank 0 finds. Return the step at which the run starts, and
    its best evaluation so far. Raises CheckpointError if there are checkpoints, but none is usable."""
    if run.config.fresh:
        return 0, None
    found = newest(run.checkpoints, run.folder.name) if ranks.first else None
    step: int = ranks.broadcast(found.meta.step if found else 0)
    if step == 0:  # no checkpoint, or one of the initial weights, which the model has already
        return 0, None
    checkpoint = found or load(path_of(run.checkpoints, step))
    try:
        restore_model(model, checkpoint)
        restore_optimizers(model, optimizer.optimizers, checkpoint)
    except CheckpointError as error:  # for example, the model's code has changed
        raise CheckpointError(f"{error}; fresh=true starts the run over") from None
    return step, checkpoint.meta.best


# ---------------------------------------------------------------------------------------------------
# During a run


@dataclass(frozen=True)
class Checkpoints:
    """Writes the checkpoints of a run."""

    run: "Run"
    model: "nn.Module"
    optimizer: "Optimizer"
    tokens: "Prepared"
    ranks: "Ranks"
    log: "RunLog"
    stop: Stop  # knows whether a signal came; ``ending_on_signal`` then saves and ends the run

    def save(self, step: int) -> None:
        """Save this step, unless it is saved already. After a skipped update, save nothing: the run is about
        to end as diverged. If a tensor is not finite, print a warning instead: such a checkpoint could not be
        used."""
        if step == self.run.status["saved"] or self.optimizer.skipped:
            return
        with self.log.clock.aside("checkpoints"):
            tensors = model_tensors(self.model) | optimizer_tensors(self.model, self.optimizer.optimizers)
            not_finite = (name for name, tensor in tensors.items() if not tensor.isfinite().all())
            if name := self.ranks.broadcast(next(not_finite, None)):
                print(f"warning: no checkpoint of step {step}: {name} is not finite", file=sys.stderr)
                return
            if self.run.writes:
                meta = Meta(
                    step=step,
                    config=self.run.config,
                    tokenizer=self.tokens.tokenizer.spec,
                    fingerprint=self.tokens.fingerprint,
                    run=self.run.folder.name,
                    best=self.log.best,
                )
                self.log.sync()
                write(path_of(self.run.checkpoints, step), meta, tensors)
                prune(self.run.checkpoints, self.log.best["step"] if self.log.best else None)
            self.run.write_status(step=step, saved=step, best=self.log.best)

    @contextmanager
    def ending_on_signal(self, step: int) -> Iterator[None]:
        """Context manager around code that does not change the weights: if a signal came before or in the
        block, save this step and raise Interrupted."""
        try:
            self.stop.check()
            yield
        except Interrupted:
            self.save(step)
            self.ranks.broadcast()  # no rank ends before the checkpoint is written
            raise
