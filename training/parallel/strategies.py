"""How a model trains: by itself in one process, as replicas (DDP), or in shards (FSDP).

Evaluation, statistics and the certificate run the whole model, eagerly. A training step uses the
``net`` of a strategy.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from model import GPT
from training.parallel.ranks import Ranks


class Strategy:
    """A model that trains by itself, in one process: ``model``, ``trained`` and ``net`` are the same GPT.

    Attributes:
        model: the whole model, eager; up to date inside ``full_model``, on every rank.
        trained: the same modules and names; its parameters are those that the optimizers update.
        net: the forward of a training step, tokens (B, T) -> logits (B, T, V). With several ranks, its
            backward leaves the mean of the ranks' gradients.
    """

    def __init__(self, model: GPT) -> None:
        self.model = self.trained = model
        self.net: Any = model

    def sync_gradients(self, sync: bool) -> None:
        """Choose whether the next backward averages gradients over the ranks; the last of a step must."""

    @contextmanager
    def full_model(self) -> Iterator[None]:
        """Context manager: gather the weights into ``model`` for the block. All ranks enter together."""
        yield

    def load_full_model(self) -> None:
        """Copy weights that were loaded into ``model``, inside ``full_model``, to ``trained``."""

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return each tensor of ``trained`` or its optimizers as a whole, by its name in a checkpoint."""
        return tensors

    def shard(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """Return this rank's part of a whole tensor: the value of ``parameter``, one of
        ``trained``'s, or a part of its optimizer state."""
        return tensor


class DDP(Strategy):
    """Every rank has the whole model (DistributedDataParallel, Li et al. 2020, arXiv 2006.15704)."""

    def __init__(self, model: GPT) -> None:
        super().__init__(model)
        from torch.nn.parallel import DistributedDataParallel

        self.net: Any = DistributedDataParallel(
            model,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,  # the gradient itself is sent, not a copy
        )

    def sync_gradients(self, sync: bool) -> None:
        self.net.require_backward_grad_sync = sync


class FSDP(Strategy):
    """Every rank keeps some rows of each parameter, of its gradient and of its moments, and has all of a
    block's parameters while that block computes (Zhao et al. 2023, arXiv 2304.11277; torch's fully_shard).
    Gradients are averaged after every micro-batch, or each rank would have to keep them whole.

    ``model`` has memory inside ``full_model`` only. Only rank 0 gets the tensors that ``gather`` returns.

    Args:
        model: on the CPU. It becomes ``trained``, so no device needs room for a second whole model.
    """

    def __init__(self, model: GPT, device: torch.device, ranks: Ranks) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(model)
        self.first = ranks.first
        empty = {id(p): without_storage(p, device) for p in model.parameters()}
        self.model = copy.deepcopy(model, empty).to(device)
        self.scalars = {name for name, p in model.named_parameters() if p.dim() == 0}
        for module in model.modules():
            for name, p in module.named_parameters(recurse=False):
                if p.dim() == 0:  # FSDP shards rows; a scalar computes the same as one row
                    setattr(module, name, nn.Parameter(p.detach().reshape(1), p.requires_grad))
        mesh = init_device_mesh(device.type, (ranks.count,))
        for part in (*model.blocks, model):  # leaves this rank's shard of each on the device
            fully_shard(part, mesh=mesh)

    @contextmanager
    def full_model(self) -> Iterator[None]:
        for p, sharded in zip(self.model.parameters(), self.trained.parameters(), strict=True):
            p.data = full_tensor(sharded.detach()).view_as(p)
        for buffer, trained in zip(self.model.buffers(), self.trained.buffers(), strict=True):
            buffer.copy_(trained)
        try:
            yield
        finally:
            for p in self.model.parameters():
                p.untyped_storage().resize_(0)

    @torch.no_grad()
    def load_full_model(self) -> None:
        for p, sharded in zip(self.model.parameters(), self.trained.parameters(), strict=True):
            sharded.copy_(self.shard(p, sharded))
        for buffer, trained in zip(self.model.buffers(), self.trained.buffers(), strict=True):
            trained.copy_(buffer)

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        gathered = {}
        for name, tensor in tensors.items():
            full = full_tensor(tensor.detach())
            if self.scalars & {*name.split("/")} and full.shape == (1,):
                full = full.view(())
            if self.first:
                gathered[name] = full.cpu()  # one at a time: a GPU may lack room for all
        return gathered

    def shard(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        from torch.distributed.tensor import distribute_tensor

        like: Any = parameter  # a DTensor
        rows = tensor.to(like.device).reshape(tensor.shape or (1,))
        return distribute_tensor(rows, like.device_mesh, like.placements, src_data_rank=None)


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a whole tensor, of which each rank may have a shard. All ranks call this together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def without_storage(parameter: Tensor, device: torch.device) -> nn.Parameter:
    """Return a parameter of this shape on ``device`` whose storage is freed."""
    empty = nn.Parameter(torch.empty_like(parameter, device=device), parameter.requires_grad)
    empty.untyped_storage().resize_(0)
    return empty


def wrap(model: GPT, distributed: str, ranks: Ranks, device: torch.device) -> Strategy:
    """Return the strategy by which a model, built on the CPU, trains on ``device``; with several ranks,
    ``distributed`` (ddp or fsdp) selects it."""
    if ranks.count == 1:
        return Strategy(model.to(device))
    return FSDP(model, device, ranks) if distributed == "fsdp" else DDP(model.to(device))
