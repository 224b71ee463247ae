"""Initialization: every matrix and embedding is drawn from N(0, std²); an Init gives the std."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model.placements import Placement


@dataclass(frozen=True)
class Init:
    """An initialization.

    Attributes:
        matrix: (n_in, n_out) -> std of a linear map's weight.
        table: n_embd -> std of an embedding.
        width: the n_embd that these are meant for; None: any, as they depend on it.
        depth_scaled: draw the last projection of each branch with std/√(2·n_layer); None: the placement
            decides, as it may keep the residual stream from growing in another way.
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
        """Return whether the last projection of each branch is scaled by depth: as this initialization says
        or, if it leaves this open, as the placement says."""
        return placement.depth_scaled_init if self.depth_scaled is None else self.depth_scaled

    def gains(self, placement: "Placement", n_layer: int) -> dict[str, float]:
        """Return two factors on the std of a branch's matrices: ``projection_gain`` for the last projection,
        ``gain`` for all others except queries and keys."""
        depth_scale = (2 * n_layer) ** -0.5 if self.is_depth_scaled(placement) else 1.0
        return {"gain": placement.branch_gain, "projection_gain": placement.branch_gain * depth_scale}


# Radford et al. 2019: the residual stream is a sum of 2·n_layer branches (§2.3), hence the scale by depth.
GPT2 = Init(matrix=lambda n_in, n_out: 0.02, table=lambda n_embd: 0.02, width=768, depth_scaled=None)

# Glorot & Bengio 2010, used by Xiong et al. 2020; embeddings of norm 1. (Vaswani et al. 2017 multiply them by
# √C: model.embedding_scale=true, which learns the factor, and multiplies learned positions, too.)
XAVIER = Init(
    matrix=lambda n_in, n_out: (2 / (n_in + n_out)) ** 0.5,
    table=lambda n_embd: n_embd**-0.5,
    width=None,
    depth_scaled=False,
)

INITS = {"gpt2": GPT2, "xavier": XAVIER}
