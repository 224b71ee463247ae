"""How weights begin: each matrix and embedding is drawn from N(0, std²), and this says which std."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Init:
    """An initialization.

    Attributes:
        matrix: (n_in, n_out) -> std of a linear map's weight.
        table: n_embd -> std of an embedding.
        depth_scaled: the last projection of each branch is drawn 1/√(2·n_layer) as wide, unless the placement
            has another way to keep the stream from growing.
    """

    matrix: Callable[[int, int], float]
    table: Callable[[int], float]
    depth_scaled: bool

    def scaled(self, scale: float) -> "Init":
        """The same with every std multiplied by ``scale``."""
        return Init(
            matrix=lambda n_in, n_out: scale * self.matrix(n_in, n_out),
            table=lambda n_embd: scale * self.table(n_embd),
            depth_scaled=self.depth_scaled,
        )


# Radford et al. 2019: the stream is a sum of 2·n_layer branches (§2.3), hence the scale by depth.
GPT2 = Init(matrix=lambda n_in, n_out: 0.02, table=lambda n_embd: 0.02, depth_scaled=True)

# Glorot & Bengio 2010, which Vaswani et al. 2017 and Xiong et al. 2020 begin with; embeddings of norm 1.
XAVIER = Init(
    matrix=lambda n_in, n_out: (2 / (n_in + n_out)) ** 0.5,
    table=lambda n_embd: n_embd**-0.5,
    depth_scaled=False,
)

INITS = {"gpt2": GPT2, "xavier": XAVIER}
