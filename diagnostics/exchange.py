"""Exchange tokens of a batch, and measure how far those outputs move that must not depend on them.

A question is two masks (B, T): the tokens that are exchanged, and the positions whose outputs are watched. An
``Ask`` answers one by a forward: how far the watched outputs move, 0-d. Shapes: B rows, T time steps, n = T−1
cuts; after cut t come the tokens t+1 … T−1.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

Ask = Callable[[Tensor, Tensor], Tensor]  # exchanged (B, T), watched (B, T), both bool -> change, 0-d
IGNORED = -100  # a target that cross-entropy leaves out


def needed_rounds(rows: int, steps: int) -> int:
    """Return how many forwards ask every cut once, each row one of its own: ⌈(T−1)/B⌉."""
    return math.ceil((steps - 1) / rows)


def cut_rounds(rows: int, steps: int, count: int, generator: torch.Generator) -> list[Tensor]:
    """Return the cuts of each row, (B,), in ``count`` rounds. There are at most T−1, which ask every cut of
    every row. No cut of a row is asked twice, and every cut is asked of one row before any is asked of a
    second."""
    n = steps - 1
    order = torch.randperm(n, generator=generator)
    starts = [round_ * rows for round_ in range(needed_rounds(rows, steps))]
    first = {*starts}
    starts += [start for start in torch.randperm(n, generator=generator).tolist() if start not in first]
    return [order[(start + torch.arange(rows)) % n] for start in starts[:count]] if n else []


def row_groups(rows: int, generator: torch.Generator) -> list[Tensor]:
    """Return sets of rows, (B,) bool, the fewest by which each row is exchanged at least once without each
    other row: n sets of which every row is in ⌊n/2⌋, no two rows in the same ones (Sperner 1928)."""
    if rows == 1:
        return []
    n = next(n for n in itertools.count(2) if math.comb(n, n // 2) >= rows)
    memberships = itertools.islice(itertools.combinations(range(n), n // 2), rows)
    member = torch.zeros(rows, n, dtype=torch.bool)
    for row, sets in zip(torch.randperm(rows, generator=generator), memberships, strict=True):
        member[row, list(sets)] = True
    return [*member.unbind(1)]


def later_than(cuts: Tensor, steps: int) -> Tensor:
    """Return the tokens after each row's cut, (B,) -> (B, T) bool."""
    return torch.arange(steps) > cuts[:, None]


def change_at_cuts(ask: Ask, rounds: Iterable[Tensor], steps: int) -> Tensor:
    """Return the largest change before a cut when the tokens after it are exchanged."""
    return largest(ask(later, ~later) for later in (later_than(cuts, steps) for cuts in rounds))


def change_between_rows(ask: Ask, groups: Iterable[Tensor], steps: int) -> Tensor:
    """Return the largest change in a row when other rows are exchanged."""
    masks = (group[:, None].expand(-1, steps) for group in groups)
    return largest(ask(exchanged, ~exchanged) for exchanged in masks)


def largest(changes: Iterator[Tensor]) -> Tensor:
    """Return the largest of 0-d tensors, NaN if one is; 0 for none."""
    return torch.stack([torch.zeros(()), *(change.cpu() for change in changes)]).max()


def of_logits(logits: Callable[[Tensor], Tensor], reference: Tensor, idx: Tensor, other: Tensor) -> Ask:
    """Return an Ask that measures logits in standard deviations of ``reference``, the logits for ``idx``."""
    scale = reference.std().clamp(min=1e-30)

    def ask(exchanged: Tensor, watched: Tensor) -> Tensor:
        tokens = torch.where(exchanged.to(idx.device), other, idx)
        moved = (logits(tokens) - reference).detach().abs().amax(-1)  # (B, T)
        return moved[watched.to(idx.device)].max() / scale

    return ask


def of_loss(loss: Callable[[Tensor, Tensor], Tensor], idx: Tensor, other: Tensor) -> Ask:
    """Return an Ask that measures, in nats and by two forwards, how far the mean loss of the watched
    positions moves; the targets are ``idx`` itself. It is for a compiled model, which has no logits to
    compare."""

    def ask(exchanged: Tensor, watched: Tensor) -> Tensor:
        targets = torch.where(watched.to(idx.device), idx, IGNORED)
        tokens = torch.where(exchanged.to(idx.device), other, idx)
        return (loss(tokens, targets) - loss(idx, targets)).detach().abs()

    return ask
