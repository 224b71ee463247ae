"""The questions of the causality certificate to a model in one mode; diagnostics/causality.py lists them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diagnostics import exchange
from diagnostics.hooks import forward_hooks
from diagnostics.repeatable import NUMBERS, Repeated, seed_all

GRADIENTS = 2  # cuts at which gradients are asked
SAME_CUTS = 64  # forwards in which all rows have one cut, at least; fewer if there are fewer cuts
SEEDS = 4  # of the random numbers with which a model is asked that draws some
SMALL = 1e-3  # standard deviations of the logits: a smaller change may be rounding, as fp64 tells
FP64_ROUNDING = 1e-12


class Questions:
    """The questions to a model in one mode, about a batch ``idx`` (B, T) and ``other`` tokens for it.

    Attributes:
        varies: what makes the output for the same tokens vary.
        rounding: the largest change of a logit that proved to be rounding, None if there was none.

    Raises:
        UntestableError: as Repeated.variations.
    """

    def __init__(self, repeated: Repeated, idx: Tensor, other: Tensor, generator: torch.Generator) -> None:
        self.repeated, self.idx, self.other, self.generator = repeated, idx, other, generator
        self.varies = repeated.variations(idx)
        self.rounding: float | None = None

    def leaks(self, rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the leaks by kind, and what was asked."""
        leaks, asked = self.changes(self.repeated, rounds)
        for seed in range(1, SEEDS if NUMBERS in self.varies else 1):
            more, _ = self.changes(self.repeated, 0, seed)
            leaks = {kind: max(leak, more[kind]) for kind, leak in leaks.items()}
        largest = max(leaks.values())
        leaks |= self.gradient_leaks()
        if largest < SMALL and any(leaks.values()):
            precise, _ = self.changes(self.repeated.in_fp64(), rounds)
            if max(precise.values()) < FP64_ROUNDING:
                self.rounding = largest
                leaks = dict.fromkeys(leaks, 0.0)
        return leaks, asked

    def changes(
        self, repeated: Repeated, rounds: int, seed: int = 0
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the largest changes of a logit, and what was asked. ``seed`` is of the random numbers."""
        B, T = self.idx.shape
        ask = exchange.of_logits(lambda tokens: repeated(tokens, seed), self.idx, self.other)
        rows = exchange.change_between_rows(ask, exchange.row_groups(B, self.generator), T)
        cuts = exchange.cut_rounds(B, T, rounds, self.generator)
        asked = {"cuts": T - 1, "all_cuts": T - 1, "rows": B, "cut_rows": len(cuts) / max(1, T - 1)}
        if rows:  # then other rows move a row as well as its own future
            cuts = [torch.full((B,), t) for t in self.draw_cuts(max(rounds, SAME_CUTS))]
            asked |= {"cuts": len(cuts), "cut_rows": len(cuts) / max(1, T - 1)}
        future = exchange.change_at_cuts(ask, cuts, T)
        return {"future": future.item(), "rows": rows.item()}, asked

    def draw_cuts(self, count: int) -> list[int]:
        """Return ``count`` of the cuts 0 … T−2, or all of them."""
        drawn: list[int] = torch.randperm(self.idx.shape[1] - 1, generator=self.generator)[:count].tolist()
        return drawn

    def gradient_leaks(self) -> dict[str, float]:
        """Return the leaks by gradients, each the largest of GRADIENTS cuts and rows."""
        model, embedded = self.repeated.copy(), list[Tensor]()
        tokens = model.get_submodule("embed.tokens")
        with forward_hooks([(tokens, lambda _, args, x: embedded.append(x.requires_grad_()))]):
            logits = self.repeated.logits(model, self.idx, gradients=True)
        if not logits.requires_grad:  # they depend on no token
            return dict.fromkeys(("future_gradient", "rows_gradient"), 0.0)
        direction = torch.randn_like(logits[0, 0])
        future, rows = [torch.zeros(())], [torch.zeros(())]
        for t in self.draw_cuts(GRADIENTS) or [0]:
            row = int(torch.randint(len(self.idx), (), generator=self.generator))
            (gradient,) = torch.autograd.grad(logits[row, t] @ direction, embedded, retain_graph=True)
            past, later = gradient[row, : t + 1].norm().clamp(min=1e-30), gradient[row, t + 1 :].norm()
            gradient[row] = 0
            future.append((later / past).cpu())
            rows.append((gradient.norm() / past).cpu())
        return {"future_gradient": max(future).item(), "rows_gradient": max(rows).item()}

    def memory(self) -> dict[str, float]:
        """Return the leak of a batch that was evaluated before: how far a logit moves if that was another."""
        after_same, after_other = (self.repeated.after(self.idx, before) for before in (self.idx, self.other))
        scale = after_same.std().clamp(min=1e-30)
        return {"memory": ((after_same - after_other).abs().max() / scale).item()}

    def compiled_leaks(self, loss: Callable[[Tensor, Tensor], Tensor]) -> dict[str, float]:
        """Return the leaks of the compiled loss; none if it varies for the same tokens."""

        def same_numbers(tokens: Tensor, targets: Tensor) -> Tensor:
            seed_all(0)
            return loss(tokens, targets)

        B, T = self.idx.shape
        if not torch.equal(*(same_numbers(self.idx, self.idx) for _ in range(2))):
            self.varies.append("its compiled form")
            return {}
        ask = exchange.of_loss(same_numbers, self.idx, self.other)
        rows = exchange.change_between_rows(ask, exchange.row_groups(B, self.generator), T)
        cuts = exchange.cut_rounds(B, T, 0, self.generator)
        if rows:
            cuts = [torch.full((B,), t) for t in self.draw_cuts(len(cuts))]
        future = exchange.change_at_cuts(ask, cuts, T)
        return {"future_compiled": future.item(), "rows_compiled": rows.item()}
