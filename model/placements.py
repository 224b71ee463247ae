"""Placements of norms around a residual branch f (attention or MLP). Each is a setting of one equation:

    x ← post(a·x + b·out(f(c·pre(x))))        pre, out, post: a norm or the identity; a, b, c: scalars

A new placement is a class whose ``slots`` gives each branch its norms and scalars, and a YAML in
conf/placement that names the class. A placement also decides whether there is a final norm before the head,
and how the branches' weights are scaled at the start.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Scale(nn.Module):
    """s·x"""

    def __init__(self, s: float) -> None:
        super().__init__()
        self.s = s

    def forward(self, x: Tensor) -> Tensor:
        return self.s * x


class LearnedScale(nn.Module):
    """weight·x, with one learned number, initialised to s."""

    def __init__(self, s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(float(s)))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


@dataclass(frozen=True)
class Slots:
    """One branch's norms and scalars in the equation. With ``learn_b``, b is learned and begins at this
    value."""

    pre: bool = False
    out: bool = False
    post: bool = False
    a: float = 1.0
    b: float = 1.0
    c: float = 1.0
    learn_b: bool = False


class Residual(nn.Module):
    """x ← post(a·x + b·out(f(c·pre(x)))), with the identity for each slot that is absent."""

    def __init__(self, branch: nn.Module, norm: Callable[[str], nn.Module], slots: Slots) -> None:
        super().__init__()
        self.pre = norm("pre") if slots.pre else nn.Identity()
        self.branch = branch
        self.out = norm("out") if slots.out else nn.Identity()
        self.post = norm("post") if slots.post else nn.Identity()
        self.a = Scale(slots.a) if slots.a != 1 else nn.Identity()
        self.b = LearnedScale(slots.b) if slots.learn_b else Scale(slots.b) if slots.b != 1 else nn.Identity()
        self.c = Scale(slots.c) if slots.c != 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:  # (B, T, C) -> (B, T, C)
        return self.post(self.a(x) + self.b(self.out(self.branch(self.c(self.pre(x))))))


class Placement(ABC):
    """The wiring of every branch of a model of ``n_layer`` blocks. A subclass defines ``slots`` and overrides
    attributes as needed.

    Attributes:
        final_norm: put a norm between the last block and the head.
        depth_scaled_init: draw the last projection of a branch with std/√(2·n_layer), as GPT-2 does, so that
            the initial variance of the stream, a sum of 2·n_layer branches, does not grow with depth (Radford
            et al. 2019, §2.3). False if the placement limits this growth in another way.
        branch_gain: factor on the initial std of a branch's matrices except queries and keys.
    """

    final_norm = True
    depth_scaled_init = True
    branch_gain = 1.0

    def __init__(self, n_layer: int) -> None:
        self.n_layer = n_layer

    @abstractmethod
    def slots(self, layer: int, site: str) -> Slots:
        """Return the norms and scalars of block ``layer`` = 0 … n_layer−1 at ``site``, "attn" or "mlp"."""

    def __call__(
        self, branch: nn.Module, norm: Callable[[str], nn.Module], layer: int, site: str
    ) -> Residual:
        """Return ``branch`` wired into the residual stream; ``norm(slot)`` makes the norm of a slot."""
        return Residual(branch, norm, self.slots(layer, site))


class Pre(Placement):
    """x ← x + f(norm(x)), and a final norm before the head (GPT-2; Xiong et al. 2020, arXiv 2002.04745)."""

    def slots(self, layer: int, site: str) -> Slots:
        return Slots(pre=True)


class Post(Placement):
    """x ← norm(x + f(x)), without a final norm, as each block ends in a norm (Vaswani et al. 2017).

    As in Pre, GPT-2's initialization scales the last projection of a branch by depth, so that Post and Pre
    differ only in the place of the norm. Published post-norm models do not scale it;
    model.depth_scaled_init=false follows them.
    """

    final_norm = False

    def slots(self, layer: int, site: str) -> Slots:
        return Slots(post=True)


class Peri(Placement):
    """x ← x + norm(f(norm(x))), and a final norm (Kim et al. 2025, arXiv 2502.02732; Gemma 2 and 3).

    At the start each branch adds a variance of 1, whatever the scale of its weights (unless ε matters). So
    the stream's variance grows by 1 per branch, and the scale need not depend on depth. This needs a norm
    that normalizes: dyt and none do not.
    """

    depth_scaled_init = False

    def slots(self, layer: int, site: str) -> Slots:
        return Slots(pre=True, out=True)


class Output(Placement):
    """x ← x + norm(f(x)), and a final norm (OLMo 2, arXiv 2501.00656; Swin v2).

    The norm is on the output of the branch, not on its input: the branch sees the stream unscaled. If stream
    and weights are small, the output's variance is below ε, and the normed output adds less than 1 to the
    stream's variance. This happens in the first attention of a narrow model that starts at GPT-2's std of
    0.02. OLMo 2 adds a norm of queries and keys, and says that neither does well alone (§3.3.2).
    """

    depth_scaled_init = False

    def slots(self, layer: int, site: str) -> Slots:
        return Slots(out=True)


class DeepNorm(Placement):
    """x ← norm(α·x + f(x)), without a final norm; α = (2·n_layer)^¼ (Wang et al. 2022, arXiv 2203.00555, for
    decoders).

    The initial std of a branch's weights, except queries and keys, is multiplied by β = (8·n_layer)^−¼. α and
    β bound how far one update moves the output, so that post-norm trains at 1,000 layers. The paper derives
    both for Xavier's initialization, which model.init=xavier gives. In docs/atlas.md, at 4 blocks, GPT-2's
    initialization ends at a lower loss.

    Args:
        alpha, beta: other values; None: the paper's, by depth. The values in use are attributes.
    """

    final_norm = False
    depth_scaled_init = False

    def __init__(self, n_layer: int, alpha: float | None = None, beta: float | None = None) -> None:
        super().__init__(n_layer)
        self.alpha = (2 * n_layer) ** 0.25 if alpha is None else alpha
        self.beta = self.branch_gain = (8 * n_layer) ** -0.25 if beta is None else beta

    def slots(self, layer: int, site: str) -> Slots:
        return Slots(post=True, a=self.alpha)


class LayerNormScaling(Placement):
    """x ← x + f(norm(x) / √ℓ) in block ℓ = 1 … n_layer, and a final norm (Sun et al. 2025, arXiv 2502.05795).

    In pre-norm the stream's variance grows with depth, and deep blocks come close to the identity. Here the
    input of a branch, and so its output, shrinks with depth. The authors advise against also scaling the
    initialization by depth.
    """

    depth_scaled_init = False

    def slots(self, layer: int, site: str) -> Slots:
        return Slots(pre=True, c=(layer + 1) ** -0.5)


class Mix(Placement):
    """Post-norm in the first quarter of the blocks, pre-norm in the others, and a final norm (Li et al. 2024,
    arXiv 2412.13795, Mix-LN).

    Post-norm gives the upper blocks large gradients, pre-norm the lower ones; the mix gives them to all.
    The authors' code does not scale the initialization by depth; model.depth_scaled_init=false follows it.

    Args:
        fraction: share of post-norm blocks. Their number is rounded down: a quarter of 3 blocks is 0 blocks.
    """

    def __init__(self, n_layer: int, fraction: float = 0.25) -> None:
        super().__init__(n_layer)
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction = {fraction} of the blocks is not between 0 and 1")
        n_post = int(fraction * n_layer + 1e-9)  # as 0.29 · 100 is 28.999999999999996
        self.by_layer = [Slots(post=True)] * n_post + [Slots(pre=True)] * (n_layer - n_post)

    def slots(self, layer: int, site: str) -> Slots:
        return self.by_layer[layer]


class Keel(Placement):
    """x ← norm(α·x + f(norm(x))), without a final norm; α = 2·n_layer, the number of branches (arXiv
    2601.19895).

    Post-norm in which the skip dominates, so that gradients reach the first block at any depth. In the first
    block α is 1, and no norm follows the attention: "we remove the Post-LN for the very first attention layer
    as well as the scaling factor α for both the very first attention and FFN layers" (§3). The paper advises
    against Keel for small data.

    Args:
        alpha: another value; None: the paper's, by depth. For small models the paper tunes α, above 1.
    """

    final_norm = False
    depth_scaled_init = False

    def __init__(self, n_layer: int, alpha: float | None = None) -> None:
        super().__init__(n_layer)
        self.alpha = 2.0 * n_layer if alpha is None else alpha

    def slots(self, layer: int, site: str) -> Slots:
        first = layer == 0
        return Slots(pre=True, post=not (first and site == "attn"), a=1.0 if first else self.alpha)


class ReZero(Placement):
    """x ← x + α·f(x), with a learned α for each branch, initialised to 0 (Bachlechner et al. 2020, arXiv
    2003.04887).

    At the start each block is the identity, at any depth, so no norm is needed. The paper has no norm at all,
    and one α for both branches of a block. Here each branch has its own α, and a final norm stands before the
    head (model.final_norm=none removes it).
    """

    depth_scaled_init = False

    def slots(self, layer: int, site: str) -> Slots:
        return Slots(b=0.0, learn_b=True)
