"""Rates of sampling are read off what the two programs print."""

import pytest

from bench import ours, peer, sample
from bench.measure import BenchError, Child


def child(seconds: float, *lines: tuple[float, str]) -> Child:
    return Child(seconds, 1000, list(lines))


def test_nanogpts_rate_is_that_of_the_median_time_between_the_ends_of_its_texts():
    ends = [2.0, 3.0, 3.5, 4.5, *(4.5 + 9 * i for i in range(1, 8))]

    def sampler(n: int, count: int) -> Child:
        if count == 1:
            return child(2.5, (2.0, peer.END_OF_TEXT))
        return child(99.0, *((end, line) for end in ends for line in ("a text", peer.END_OF_TEXT)))

    found = sample.take_peers(sampler, (64,))
    assert found["64_tokens_per_s"] == 64 / 9
    assert found["whole_64_s"] == 2.5
    with pytest.raises(BenchError, match="ended 11 texts, not 3"):
        sample.take_peers(sampler, (256,))


def test_ours_is_the_median_of_several_starts():
    rates = iter(["1,000", "3,000", "2,000"])

    def sampler(n: int, count: int) -> Child:
        rate = next(rates) if count == 1 else "9,000"
        return child(1.0, (1.0, f"{n * count:,} tokens, {rate} tokens/s"))

    found = sample.take_ours(sampler, (64,))
    assert found["64_tokens_per_s"] == 2000
    assert found["several_64_tokens_per_s"] == 9000


def test_the_precision_is_what_sample_py_says():
    said = child(
        1.0, (0.5, "runs/a/checkpoints/step-00000001.safetensors, step 1,000, cpu, bf16"), (0.6, "text")
    )
    assert ours.printed_precision(said) == "bf16"
    with pytest.raises(BenchError, match="in which precision"):
        ours.printed_precision(child(1.0, (0.5, "step 1")))
