"""Where norms sit around a residual branch f (attention or MLP): settings of one equation,

    x ← post(a·x + b·out(f(c·pre(x))))        pre, out, post: a norm or the identity; a, b, c: scalars

A new placement is a class whose ``slots`` says, for each layer, which norms and scalars it uses, and a YAML
in conf/placement that names the class. What goes with a placement is said here too: whether a last norm
stands before the head, and how the branch's last projection is scaled at the start.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Slots:
    """Which of the equation's norms are there, and its scalars."""

    pre: bool = False
    out: bool = False
    post: bool = False
    a: float = 1.0
    b: float = 1.0
    c: float = 1.0


class Scale(nn.Module):
    """s·x"""

    def __init__(self, s: float) -> None:
        super().__init__()
        self.s = s

    def forward(self, x: Tensor) -> Tensor:
        return self.s * x


class Residual(nn.Module):
    """x ← post(a·x + b·out(f(c·pre(x)))); what is absent is the identity."""

    def __init__(self, branch: nn.Module, norm: Callable[[str], nn.Module], slots: Slots) -> None:
        super().__init__()
        self.pre = norm("pre") if slots.pre else nn.Identity()
        self.branch = branch
        self.out = norm("out") if slots.out else nn.Identity()
        self.post = norm("post") if slots.post else nn.Identity()
        self.a, self.b, self.c = (Scale(s) if s != 1 else nn.Identity() for s in (slots.a, slots.b, slots.c))

    def forward(self, x: Tensor) -> Tensor:  # (B, T, C) -> (B, T, C)
        return self.post(self.a(x) + self.b(self.out(self.branch(self.c(self.pre(x))))))


class Placement(ABC):
    """How every branch of a model is wired. A subclass gives ``slots``, and ``final_norm`` if it differs."""

    final_norm = True  # a norm between the last block and the head

    @abstractmethod
    def slots(self, layer: int, n_layer: int) -> Slots:
        """The norms and scalars of block ``layer`` = 0 … n_layer−1."""

    def projection_scale(self, n_layer: int) -> float:
        """Factor on the initial std of a branch's last projection. GPT-2's 1/√(2L): the stream is a sum of 2L
        branches, so its variance at the start does not grow with depth (Radford et al. 2019, §2.3)."""
        return (2 * n_layer) ** -0.5

    def __call__(
        self, branch: nn.Module, norm: Callable[[str], nn.Module], layer: int, n_layer: int
    ) -> Residual:
        """Wire ``branch`` into the stream of block ``layer``; ``norm(slot)`` makes the norm of that slot."""
        return Residual(branch, norm, self.slots(layer, n_layer))


class Pre(Placement):
    """x ← x + f(norm(x)), and a last norm before the head (GPT-2; Xiong et al. 2020, arXiv 2002.04745)."""

    def slots(self, layer: int, n_layer: int) -> Slots:
        return Slots(pre=True)


class Post(Placement):
    """x ← norm(x + f(x)), with no last norm, as each block already ends in one (Vaswani et al. 2017)."""

    final_norm = False

    def slots(self, layer: int, n_layer: int) -> Slots:
        return Slots(post=True)
