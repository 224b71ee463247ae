"""Test a model in one mode for the leaks that diagnostics/causality.py lists."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diagnostics import exchange
from diagnostics.hooks import forward_hooks
from diagnostics.repeatable import NUMBERS, Repeated, seed_all

SAME_CUTS = 64  # if rows depend on each other: least number of forwards, each with one cut for all rows
ENOUGH = 8  # if this many of them show a leak, there are no others
SEEDS = 4  # a model that draws random numbers is tested under so many seeds
SMALL = 1e-3  # standard deviations of the logits: a smaller change may be rounding, which fp64 would show
FP64_ROUNDING = 1e-12


class Questions:
    """The questions to a model in one mode, about a batch ``idx`` (B, T) and ``other`` tokens for it.

    Attributes:
        reference, second: the logits for ``idx`` of the first and of the second call of a copy, (B, T, V).
        varies: what makes the output for the same tokens vary.
        rounding: the largest change of a logit that proved to be rounding, None if there was none.

    Raises:
        UntestableError: as Repeated.variations.
    """

    def __init__(self, repeated: Repeated, idx: Tensor, other: Tensor, generator: torch.Generator) -> None:
        self.repeated, self.idx, self.other, self.generator = repeated, idx, other, generator
        self.reference = repeated(idx)
        self.varies, self.second = repeated.variations(idx, self.reference)
        self.rounding: float | None = None

    def leaks(self, rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the leaks by kind, asked in ``rounds`` forwards, and how many cuts and rows were asked."""
        state = self.generator.get_state()
        leaks, asked = self.all_changes(self.repeated, rounds)
        largest = max(leaks.values())
        leaks |= self.gradient_leaks()
        if largest < SMALL and any(leaks.values()):
            self.generator.set_state(state)  # the same cuts again
            precise, _ = self.all_changes(self.repeated.in_fp64(), rounds)
            if max(precise.values()) < FP64_ROUNDING:
                self.rounding = largest
                leaks = dict.fromkeys(leaks, 0.0)
        return leaks, asked

    def all_changes(self, repeated: Repeated, rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
        """Return ``changes``, the largest over SEEDS if the model draws random numbers."""
        leaks, asked = self.changes(repeated, rounds)
        for seed in range(1, SEEDS if NUMBERS in self.varies else 1):
            more, _ = self.changes(repeated, min(rounds, exchange.needed_rounds(*self.idx.shape)), seed)
            leaks = {kind: max(leak, more[kind]) for kind, leak in leaks.items()}
        return leaks, asked

    def changes(
        self, repeated: Repeated, rounds: int, seed: int = 0
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the largest changes of a logit, and how many cuts and rows were asked; ``seed`` seeds the
        random numbers that the model draws."""
        B, T = self.idx.shape
        is_first = repeated is self.repeated and seed == 0
        reference = self.reference if is_first else repeated(self.idx, seed)
        ask = exchange.of_logits(lambda tokens: repeated(tokens, seed), reference, self.idx, self.other)
        rows = exchange.change_between_rows(ask, exchange.row_groups(B, self.generator), T)
        if rows:  # rows depend on each other: a change may come from another row and not from later tokens
            cuts = [torch.full((B,), t) for t in self.draw_cuts(max(rounds, SAME_CUTS))]
            future = exchange.change_at_cuts(ask, cuts[:ENOUGH], T)
            if future > SMALL:
                cuts = cuts[:ENOUGH]
            future = torch.maximum(future, exchange.change_at_cuts(ask, cuts[ENOUGH:], T))
        else:
            cuts = exchange.cut_rounds(B, T, rounds, self.generator)
            future = exchange.change_at_cuts(ask, cuts, T)
        asked_cuts = len(cuts) if rows else min(T - 1, B * len(cuts))
        asked = {"cuts": asked_cuts, "all_cuts": T - 1, "rows": B, "cut_rows": len(cuts) / max(1, T - 1)}
        return {"future": future.item(), "rows": rows.item()}, asked

    def draw_cuts(self, count: int) -> list[int]:
        """Return ``count`` of the cuts 0 … T−2, or all of them."""
        drawn: list[int] = torch.randperm(self.idx.shape[1] - 1, generator=self.generator)[:count].tolist()
        return drawn

    def gradient_leaks(self) -> dict[str, float]:
        """Return the leaks by gradients of half of the rows, each at a cut of its own; if there is one,
        those of one row alone, which tells later tokens from other rows."""
        model, embedded = self.repeated.copy(), list[Tensor]()
        tokens = model.get_submodule("embed.tokens")
        with forward_hooks([(tokens, lambda _, args, x: embedded.append(x.requires_grad_()))]):
            logits = self.repeated.logits(model, self.idx, gradients=True)
        leaks = dict.fromkeys(("future_gradient", "rows_gradient"), 0.0)
        if not logits.requires_grad:  # they depend on no token
            return leaks
        direction = torch.randn_like(logits[0, 0])
        B, T = self.idx.shape
        cuts = torch.randint(max(1, T - 1), (B,), generator=self.generator)
        half = torch.randperm(B, generator=self.generator)[: max(1, B // 2)]
        for rows in (half, half[:1]):
            picked = (logits[rows, cuts[rows]] @ direction).sum()
            (gradient,) = torch.autograd.grad(picked, embedded, retain_graph=True)
            later = exchange.later_than(cuts, T).to(gradient.device)[..., None]
            asked = torch.zeros_like(later)
            asked[rows] = True
            past = gradient.masked_fill(later | ~asked, 0).norm().clamp(min=1e-30)
            future, others = gradient.masked_fill(~(later & asked), 0), gradient.masked_fill(asked, 0)
            sizes = dict(zip(leaks, ((g.norm() / past).item() for g in (future, others)), strict=True))
            if not any(sizes.values()):
                break
            leaks = sizes
        return leaks

    def memory(self) -> dict[str, float]:
        """Return how far a logit moves if another batch was evaluated before."""
        after_other = self.repeated.after(self.idx, self.other)
        scale = self.second.std().clamp(min=1e-30)
        return {"memory": ((self.second - after_other).abs().max() / scale).item()}

    def compiled_leaks(self, loss: Callable[[Tensor, Tensor], Tensor], rounds: int) -> dict[str, float]:
        """Return the leaks of the compiled loss; none if that loss varies for the same tokens. Every cut is
        asked once at most."""

        def same_numbers(tokens: Tensor, targets: Tensor) -> Tensor:
            seed_all(0)
            return loss(tokens, targets)

        B, T = self.idx.shape
        if not torch.equal(*(same_numbers(self.idx, self.idx) for _ in range(2))):
            self.varies.append("its compiled form")
            return {}
        ask = exchange.of_loss(same_numbers, self.idx, self.other)
        rows = exchange.change_between_rows(ask, exchange.row_groups(B, self.generator), T)
        cuts = exchange.cut_rounds(B, T, min(rounds, exchange.needed_rounds(B, T)), self.generator)
        if rows:
            cuts = [torch.full((B,), t) for t in self.draw_cuts(len(cuts))]
        future = exchange.change_at_cuts(ask, cuts, T)
        return {"future_compiled": future.item(), "rows_compiled": rows.item()}
