"""y is x one token later, and the windows drawn are a function of the seed alone."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.batches import Batches, fixed_windows, training_batch

SIZES = st.tuples(st.integers(2, 200), st.integers(1, 20), st.integers(1, 9)).filter(lambda s: s[0] > s[1])


@given(SIZES, st.integers(0, 2**63 - 1))
def test_a_training_batch_is_windows_of_the_text_that_a_seed_always_draws(sizes, seed):
    n, block_size, rows = sizes
    tokens = np.arange(n, dtype=np.uint16)
    x, y = training_batch(tokens, block_size, rows, seed)
    assert x.shape == (rows, block_size)
    assert x.dtype == y.dtype == np.int64
    assert (y == x + 1).all()
    assert (np.diff(x, axis=1) == 1).all()
    assert y.max() <= n - 1
    assert np.array_equal(x, training_batch(tokens, block_size, rows, seed)[0])


def test_every_window_can_be_drawn_and_none_beyond_and_another_seed_draws_others():
    x, others = (training_batch(np.arange(6, dtype=np.uint16), 3, 1000, seed)[0] for seed in (0, 1))
    assert set(x[:, 0]) == {0, 1, 2}
    assert not np.array_equal(x, others)


@given(SIZES)
def test_the_whole_split_has_every_token_but_the_first_as_a_target_once(sizes):
    n, block_size, rows = sizes
    batches = object.__new__(Batches)
    batches.tokens = SimpleNamespace(val=np.arange(n, dtype=np.uint16))
    batches.block_size, batches.evaluation_rows, batches.val_targets = block_size, rows, n - 1
    split = list(batches.whole_split())
    assert np.concatenate([y.ravel() for _, y in split]).tolist() == list(range(1, n))
    assert all((y == x + 1).all() and len(x) <= rows for x, y in split)


@given(SIZES, st.integers(1, 40))
def test_fixed_windows_do_not_overlap_and_reach_both_ends(sizes, count):
    n, block_size, rows = sizes
    tokens = np.arange(n, dtype=np.uint16)
    starts, others = (
        np.concatenate([x[:, 0] for x, _ in fixed_windows(tokens, block_size, count, size)])
        for size in (rows, rows + 1)
    )
    assert np.array_equal(starts, others)
    assert len(starts) == min(count, (n - 1) // block_size)
    assert starts[0] == 0
    assert len(starts) == 1 or starts[-1] + block_size == n - 1
    assert (np.diff(starts) >= block_size).all()
