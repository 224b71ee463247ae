"""The loss: mean cross-entropy of the next tokens, in nats per token."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from data.windows import Batch
from training.device import Compute

Net = Callable[[Tensor], Tensor]  # tokens (B, T) -> logits (B, T, V)
Objective = Callable[[Net, Tensor, Tensor], Tensor]  # a net, tokens, targets (B, T) -> mean loss, 0-d
AT_ONCE = 2**26  # logits: 256 MB in fp32


def cross_entropy(net: Net, idx: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of ``targets``, the tokens after ``idx``, in nats per token.

    More than AT_ONCE logits are computed in fp32 in parts, and each part again in the backward, as the copies
    need more memory than the rest: for GPT-2's 50,257 logits of 12 · 1,024 tokens 3.1 GB in place of 7.3, in
    bf16.
    """
    logits, targets = net(idx).flatten(0, 1), targets.flatten()  # (N, V), (N,)
    if logits.numel() <= AT_ONCE or torch.compiler.is_compiling():  # compiled, nothing is copied
        return F.cross_entropy(logits.float(), targets)
    rows = max(1, AT_ONCE // logits.shape[1])
    parts = zip(logits.split(rows), targets.split(rows), strict=True)
    sums = [checkpoint(summed, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
    return torch.stack(sums).sum() / (targets >= 0).sum()  # a negative target is ignored


def summed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), targets, reduction="sum")


@dataclass(frozen=True)
class Loss:
    """``loss(net, x, y)`` is the mean loss of a net on tokens (B, T) and targets (B, T), 0-d, computed in the
    precision of the run.

    Attributes:
        objective: ``cross_entropy``, possibly compiled together with the net.
    """

    compute: Compute
    objective: Objective = cross_entropy

    @property
    def is_compiled(self) -> bool:
        return self.objective is not cross_entropy

    def __call__(self, net: Net, x: Tensor, y: Tensor) -> Tensor:
        with self.compute.autocast():
            return self.objective(net, x, y)

    def of_batch(self, net: Net, batch: Batch) -> Tensor:
        """Return the loss on a batch that is not on the device yet."""
        return self(net, *map(self.compute.tensor, batch))
