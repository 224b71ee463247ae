"""How a model trains: by itself, as replicas, one to each rank, or in shards, a part to each rank.

The whole model is the truth: evaluation, statistics and the certificate look at it, eagerly. A view of it is
what a training step computes with.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from model import GPT
from training.distributed import Ranks


class View:
    """The model itself, as one process trains it.

    Attributes:
        model: inside ``whole`` it is as it was trained so far, on every rank.
        trained: the same modules and names; its parameters are those that the optimizers update.
        net: what the forward of a step goes through, tokens (B, T) -> logits (B, T, V). Of several ranks, its
            backward leaves the mean of their gradients.
    """

    def __init__(self, model: GPT) -> None:
        self.model = self.trained = model
        self.net: Any = model

    def averages(self, does: bool) -> None:
        """Whether the next backward averages over ranks: not before the last micro-batch of a step."""

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, ``model`` may be looked at. All ranks enter it together."""
        yield

    def restored(self) -> None:
        """Train on what ``model`` was changed to inside ``whole``."""

    def gathered(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """All of each tensor of ``trained`` or its optimizers, by its name in a checkpoint."""
        return tensors

    def cut(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """What this rank keeps of an optimizer's tensor, whole, for a parameter of ``trained``."""
        return tensor


class Replicas(View):
    """Each rank has all of the model (DistributedDataParallel, Li et al. 2020, arXiv 2006.15704)."""

    def __init__(self, model: GPT) -> None:
        super().__init__(model)
        from torch.nn.parallel import DistributedDataParallel

        self.net: Any = DistributedDataParallel(
            model,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,  # what is sent is the gradient itself, not a copy
        )

    def averages(self, does: bool) -> None:
        self.net.require_backward_grad_sync = does


class Shards(View):
    """Each rank keeps some rows of every parameter, of its gradient and of its moments, and has all of a
    block's parameters while that computes (FSDP, Zhao et al. 2023, arXiv 2304.11277; torch's second).

    ``model`` has memory inside ``whole`` only. What is gathered is for the first rank; others get nothing.
    """

    def __init__(self, model: GPT, ranks: Ranks) -> None:
        super().__init__(model)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.first = ranks.first
        self.numbers = {name for name, p in model.named_parameters() if p.dim() == 0}
        self.trained = copy.deepcopy(model)
        for module in self.trained.modules():
            for name, p in module.named_parameters(recurse=False):
                if p.dim() == 0:  # has no row; of one row it computes the same
                    setattr(module, name, nn.Parameter(p.detach().reshape(1), p.requires_grad))
        mesh = init_device_mesh(next(model.parameters()).device.type, (ranks.count,))
        for block in self.trained.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.trained, mesh=mesh)
        self.net = self.trained
        self.give_memory(0)

    def give_memory(self, share: int) -> None:
        """To the whole model: 1, all that it needs, or 0, none."""
        for p in self.model.parameters():
            p.untyped_storage().resize_(share * p.nbytes)

    def averages(self, does: bool) -> None:
        trained: Any = self.trained
        trained.set_requires_gradient_sync(does)

    @contextmanager
    def whole(self) -> Iterator[None]:
        self.give_memory(1)
        with torch.no_grad():
            for p, shard in zip(self.model.parameters(), self.trained.parameters(), strict=True):
                p.copy_(all_of(shard).view_as(p))
            for buffer, own in zip(self.model.buffers(), self.trained.buffers(), strict=True):
                buffer.copy_(own)
        try:
            yield
        finally:
            self.give_memory(0)

    @torch.no_grad()
    def restored(self) -> None:
        for p, shard in zip(self.model.parameters(), self.trained.parameters(), strict=True):
            shard.copy_(self.cut(p, shard))
        for buffer, own in zip(self.model.buffers(), self.trained.buffers(), strict=True):
            own.copy_(buffer)

    def gathered(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, tensor in tensors.items():
            whole = all_of(tensor.detach())
            if self.numbers & {*name.split("/")} and whole.shape == (1,):
                whole = whole.view(())
            if self.first:
                found[name] = whole.cpu()  # one after another: a GPU need not have room for all
        return found

    def cut(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        from torch.distributed.tensor import distribute_tensor

        of: Any = parameter  # a DTensor
        rows = tensor.to(of.device).reshape(tensor.shape or (1,))
        return distribute_tensor(rows, of.device_mesh, of.placements, src_data_rank=None)


def all_of(tensor: Tensor) -> Tensor:
    """A tensor of which each rank may have a shard. All ranks call it together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def view_of(kind: str, ranks: Ranks, model: GPT) -> View:
    """That of a model on its device. ``kind`` says how several ranks train it: ddp or fsdp."""
    if ranks.count == 1:
        return View(model)
    return Shards(model, ranks) if kind == "fsdp" else Replicas(model)
