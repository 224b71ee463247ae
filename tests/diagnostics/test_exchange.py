"""The questions ask every cut and every pair of rows, and none twice."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diagnostics import exchange

SIZES = st.integers(1, 40)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(SIZES, SIZES, st.integers(0, 50), st.integers(0, 9))
def test_every_cut_is_asked_before_one_is_again_and_no_cut_of_a_row_twice(rows, steps, count, seed):
    rounds = exchange.cut_rounds(rows, steps, count, seeded(seed))
    assert len(rounds) == min(steps - 1, count)
    needed = exchange.needed_rounds(rows, steps)
    assert needed == math.ceil((steps - 1) / rows)
    first = {t for cuts in rounds[:needed] for t in cuts.tolist()}
    assert first <= {*range(steps - 1)}
    assert len(first) == min(steps - 1, rows * min(count, needed))
    asked = [(row, t) for cuts in rounds for row, t in enumerate(cuts.tolist())]
    assert len(asked) == len({*asked})


@pytest.mark.parametrize("rows", [*range(1, 36), 64, 100])
def test_every_row_is_exchanged_without_each_other_row_in_the_fewest_forwards(rows):
    groups = exchange.row_groups(rows, seeded(0))
    for exchanged in range(rows):
        for watched in range(rows):
            apart = any(group[exchanged] and not group[watched] for group in groups)
            assert apart == (exchanged != watched)
    assert len(groups) <= 2 * math.ceil(math.log2(rows))  # a bit of the row's number, and its complement


def test_a_change_is_that_of_what_is_watched_alone():
    idx, other = torch.zeros(2, 4, dtype=torch.long), torch.ones(2, 4, dtype=torch.long)
    logits = lambda tokens: tokens[..., None] * torch.tensor([1.0, 3.0]) + torch.arange(2.0)  # noqa: E731 position t sees t alone
    ask = exchange.of_logits(logits, logits(idx), idx, other)
    exchanged = torch.tensor([[False, False, True, True], [False] * 4])
    assert ask(exchanged, ~exchanged) == 0
    assert ask(exchanged, exchanged) == pytest.approx(3 / logits(idx).std())
