"""The small layers of the network (linear maps, the head, dropout), and the initialization of all weights.
Every matrix and embedding is drawn from N(0, std²); an Init gives the std."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from model.placements import Placement


@dataclass(frozen=True)
class Init:
    """An initialization.

    Attributes:
        matrix: (n_in, n_out) -> std of a linear map's weight.
        table: n_embd -> std of an embedding.
        width: the n_embd for which these stds are meant; None: any, because they depend on n_embd.
        depth_scaled: draw the last projection of each branch with std/√(2·n_layer); None: the placement
            decides, because it may limit the growth of the residual stream in another way.
    """

    matrix: Callable[[int, int], float]
    table: Callable[[int], float]
    width: int | None
    depth_scaled: bool | None

    def scale_for(self, n_embd: int) -> float:
        """Return the factor on every std for another width: a matrix's outputs keep their size if its std
        falls as 1/√n_embd."""
        return 1.0 if self.width is None else (self.width / n_embd) ** 0.5

    def scaled(self, scale: float) -> "Init":
        """Return this initialization with every std multiplied by ``scale``."""
        return replace(
            self,
            matrix=lambda n_in, n_out: scale * self.matrix(n_in, n_out),
            table=lambda n_embd: scale * self.table(n_embd),
        )

    def is_depth_scaled(self, placement: "Placement") -> bool:
        """Return whether the last projection of each branch is scaled by depth. The placement decides if this
        initialization leaves it open."""
        return placement.depth_scaled_init if self.depth_scaled is None else self.depth_scaled

    def gains(self, placement: "Placement", n_layer: int) -> dict[str, float]:
        """Return two factors on the std of a branch's matrices: ``projection_gain`` for the last projection,
        ``gain`` for all others except queries and keys."""
        depth_scale = (2 * n_layer) ** -0.5 if self.is_depth_scaled(placement) else 1.0
        return {"gain": placement.branch_gain, "projection_gain": placement.branch_gain * depth_scale}


# Radford et al. 2019: the residual stream is a sum of 2·n_layer branches (§2.3), hence the scale by depth.
GPT2 = Init(matrix=lambda n_in, n_out: 0.02, table=lambda n_embd: 0.02, width=768, depth_scaled=None)

# Glorot & Bengio 2010, used by Xiong et al. 2020; embeddings of norm 1. (Vaswani et al. 2017 multiply them by
# √C. model.embedding_scale=true does so, but learns the factor, and multiplies learned positions, too.)
XAVIER = Init(
    matrix=lambda n_in, n_out: (2 / (n_in + n_out)) ** 0.5,
    table=lambda n_embd: n_embd**-0.5,
    width=None,
    depth_scaled=False,
)

INITS = {"gpt2": GPT2, "xavier": XAVIER}


class Linear(nn.Linear):
    """y = x Wᵀ + b. At the start W ~ N(0, std²), with the std that ``init`` gives, and b = 0.

    Args:
        n_in, n_out: number of input and output features.
        bias: learn b.
        init: the initialization.
        gains: factors on the std. W stacks one matrix for each of them along n_out.
    """

    def __init__(
        self, n_in: int, n_out: int, *, bias: bool, init: Init = GPT2, gains: tuple[float, ...] = (1.0,)
    ) -> None:
        # set first: super().__init__ calls reset_parameters; GPT draws again, each weight from its own stream
        self.stds = [init.matrix(n_in, n_out // len(gains)) * gain for gain in gains]
        super().__init__(n_in, n_out, bias=bias)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for part, std in zip(self.weight.chunk(len(self.stds)), self.stds, strict=True):
            nn.init.normal_(part, std=std, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Head(Linear):
    """logits = x Wᵀ"""

    def __init__(self, n_embd: int, vocab_size: int, init: Init = GPT2) -> None:
        super().__init__(n_embd, vocab_size, bias=False, init=init)


class PaddedHead(Head):
    """Head's logits. W is padded with rows of zeros to a multiple of 64, and these rows' logits are cut off.

    GPUs multiply matrices faster if sizes are multiples of 64; GPT-2's vocabulary of 50,257 is not one.
    training/device.py decides which head is used.
    """

    def forward(self, input: Tensor) -> Tensor:  # (…, C) -> (…, V)
        padded = F.pad(self.weight, (0, 0, 0, -self.out_features % 64))
        return F.linear(input, padded)[..., : self.out_features]


class Dropout(nn.Dropout):
    """In training, each element is 0 with probability p, else divided by 1 - p (Srivastava et al. 2014).

    Args:
        p: in [0, 1); see ``dropout``.

    Raises:
        ValueError: p is not in [0, 1).
    """

    def __init__(self, p: float) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"dropout = {p} is not a probability in [0, 1)")
        super().__init__(p)

    def forward(self, input: Tensor) -> Tensor:  # any shape -> the same
        return dropout(input, self.p, self.training)


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Drop elements as ``torch.nn.functional.dropout`` does; on a CPU, other elements than torch.

    On a CPU, torch spends most of its time on drawing one random number per element. Here one number of 64
    bits decides about four elements, with 16 bits for each. (torch.func.vmap does not support this.)

    Args:
        x: floating point, any shape.
        p: in [0, 1). On a CPU it is rounded to a multiple of 1/65,536, but never down to 0.
        training: False returns x.
    """
    if not training or p == 0 or not x.is_cpu:
        return F.dropout(x, p, training)
    n = x.numel()
    random = torch.randint(-(2**63), 2**63 - 1, ((n + 3) // 4,), device=x.device)  # int64
    random = random.view(torch.int16)[:n].view(x.shape)
    kept = min(max(round((1 - p) * 2**16), 1), 2**16 - 1)  # x is kept for so many of the 2^16 numbers
    mask = torch.lt(random, kept - 2**15, out=torch.empty(x.shape, dtype=x.dtype, device=x.device))
    return x * mask.mul_(2**16 / kept)
