"""``auto`` is the best that the machine has, and each choice for speed is made by device and precision."""

import numpy as np
import pytest
import torch

from data.errors import ConfigError
from training.device import Compute, choose, set_switches


def test_auto_is_the_best_that_the_machine_has(monkeypatch):
    expected = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert choose("auto", "fp32").device.type == expected
    for capabilities, precision in (({}, "fp32"), ({"avx512_bf16": True}, "bf16")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=capabilities: found)
        assert choose("cpu", "auto").precision == precision
        assert ("emulate" in str(choose("cpu", "bf16"))) is (precision == "fp32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device_is_an_error_that_lists_the_available_ones():
    with pytest.raises(ConfigError, match="device: cuda is not available here; choose one of .*cpu"):
        choose("cuda", "auto")


def test_a_tensor_of_tokens_is_contiguous_as_only_such_memory_is_copied_from_pinned_pages():
    tokens = np.arange(12).reshape(2, 6)[:, 1:]
    tensor = Compute(torch.device("cpu"), "fp32").tensor(tokens)
    assert tensor.is_contiguous()
    assert tensor.tolist() == tokens.tolist()


def test_switches_follow_the_run_and_not_the_one_before_it():
    try:
        assert set_switches(threads=2, deterministic=False) == 2
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        assert set_switches(threads=None) == 1  # as the tests set it
    assert torch.are_deterministic_algorithms_enabled()


def test_rows_of_an_evaluation_are_fewer_if_logits_are_many():
    cpu, gpu = (Compute(torch.device(kind), "bf16") for kind in ("cpu", "cuda"))
    assert [cpu.evaluation_rows(64, 65), gpu.evaluation_rows(64, 65)] == [64, 1024]
    assert cpu.evaluation_rows(64, 50257) * 64 * 50257 * 4 <= 2**25  # bytes in fp32
    assert cpu.evaluation_rows(8192, 65) == 1
