"""Each statistic is its formula in fp64, up to a few roundings, at every scale and offset."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probe import statistics


def test_an_offset_does_not_spoil_centred_moments():
    x = torch.randn(8, 32, 32, generator=torch.Generator().manual_seed(0)) + 1000
    exact = x.double().numpy().ravel()
    assert statistics.std(x).item() == pytest.approx(exact.std(), rel=1e-5)
    assert statistics.kurtosis(x).item() == pytest.approx(scipy.stats.kurtosis(exact, fisher=False), rel=1e-5)


def test_kurtosis_is_3_for_a_normal_at_every_scale_and_nan_for_a_constant():
    x = torch.randn(100, 100, 100, generator=torch.Generator().manual_seed(0))
    for scale in (1e-15, 1.0, 1e15):
        assert statistics.kurtosis(x * scale).item() == pytest.approx(3, abs=0.02)
    assert math.isnan(statistics.kurtosis(torch.ones(2, 2, 2)).item())


@settings(max_examples=60)
@given(
    hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(width=32)),
)
def test_a_histogram_counts_every_number_once(array):
    low, high, nonfinite, *counts = statistics.histogram(torch.from_numpy(array)).tolist()
    finite = array[np.isfinite(array)]
    assert nonfinite == array.size - finite.size
    assert sum(counts) == finite.size
    assert len(counts) == statistics.BINS
    if finite.size:
        assert (low, high) == (finite.min(), finite.max())
        assert counts[0] > 0
        # half a range is clamped if it is below 1e-30
        if np.isfinite(float(finite.max()) - float(finite.min())) and high - low > 4e-30:
            assert counts[-1] > 0 or high == low


def test_all_values_are_copied_to_the_host_at_once(monkeypatch):
    calls = []
    copy = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: calls.append(x.shape) or copy(x))
    values = {
        "a": torch.tensor(1.5),
        "hist.act/embed": statistics.histogram(torch.arange(65.0)),
        "b": torch.tensor(2.0),
    }
    plain = statistics.on_host(values)
    assert calls == [torch.Size([69])]
    assert (plain["a"], plain["b"]) == (1.5, 2.0)
    assert plain["hist.act/embed"] == {"low": 0.0, "high": 64.0, "nonfinite": 0, "counts": [1] * 63 + [2]}
    assert statistics.on_host({}) == {}
