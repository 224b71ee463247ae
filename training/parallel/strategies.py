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
from training.parallel.ranks import Ranks


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
        """Whether the next backward has to average over ranks: not before a step's last micro-batch."""

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
    Gradients are averaged after every micro-batch: a rank would else have to keep them whole.

    ``model`` has memory inside ``whole`` only. What is gathered is for the first rank; others get nothing.

    Args:
        model: on the CPU. It becomes ``trained``: no device has to have room for a second whole one.
    """

    def __init__(self, model: GPT, device: torch.device, ranks: Ranks) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(model)
        self.first = ranks.first
        self.model = copy.deepcopy(model, {id(p): hollow(p, device) for p in model.parameters()}).to(device)
        self.numbers = {name for name, p in model.named_parameters() if p.dim() == 0}
        for module in model.modules():
            for name, p in module.named_parameters(recurse=False):
                if p.dim() == 0:  # has no row; of one row it computes the same
                    setattr(module, name, nn.Parameter(p.detach().reshape(1), p.requires_grad))
        mesh = init_device_mesh(device.type, (ranks.count,))
        for part in (*model.blocks, model):  # moves each to the device and leaves a rank's shard of it there
            fully_shard(part, mesh=mesh)

    @contextmanager
    def whole(self) -> Iterator[None]:
        for p, shard in zip(self.model.parameters(), self.trained.parameters(), strict=True):
            p.data = all_of(shard.detach()).view_as(p)
        for buffer, own in zip(self.model.buffers(), self.trained.buffers(), strict=True):
            buffer.copy_(own)
        try:
            yield
        finally:
            for p in self.model.parameters():
                p.untyped_storage().resize_(0)

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


def hollow(parameter: Tensor, device: torch.device) -> nn.Parameter:
    """One of its shape, on that device, without memory."""
    alike = nn.Parameter(torch.empty_like(parameter, device=device), parameter.requires_grad)
    alike.untyped_storage().resize_(0)
    return alike


def view_of(kind: str, ranks: Ranks, model: GPT, device: torch.device) -> View:
    """That of a model that was made on the CPU. ``kind`` says how several ranks train it: ddp or fsdp."""
    if ranks.count == 1:
        return View(model.to(device))
    return Shards(model, device, ranks) if kind == "fsdp" else Replicas(model.to(device))
