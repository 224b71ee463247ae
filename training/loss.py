"""The loss: mean cross-entropy of the next tokens, in nats per token."""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from data.windows import Batch
from training.device import Compute

Net = Callable[[Tensor], Tensor]  # tokens (B, T) -> logits (B, T, V)
Objective = Callable[[Net, Tensor, Tensor], Tensor]  # a net, tokens, targets (B, T) -> mean loss, 0-d


def cross_entropy(net: Net, idx: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of ``targets``, the tokens after ``idx``, in nats per token."""
    return F.cross_entropy(net(idx).flatten(0, 1).float(), targets.flatten())


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
