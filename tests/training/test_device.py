"""``auto`` is the best that the machine has, and every run sets the process-wide switches again."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data.errors import ConfigError
from model.attention import Attend, PlainAttend
from tests.conftest import ROOT
from training.device import Compute, choose, set_switches


def test_auto_precision_on_a_cpu_is_bf16_if_the_processor_multiplies_it():
    has = torch.cpu.get_capabilities()
    expected = "bf16" if has.get("avx512_bf16") or has.get("amx_bf16") else "fp32"
    assert choose("cpu", "auto").precision == expected
    assert choose("cpu", "fp32").precision == "fp32"


def test_a_run_in_bf16_says_if_the_processor_only_emulates_it(monkeypatch):
    for capabilities, slow in [({}, True), ({"avx512_bf16": True}, False)]:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=capabilities: found)
        assert ("emulate" in str(choose("cpu", "bf16"))) is slow
        assert str(choose("cpu", "fp32")) == "cpu in fp32"


def test_tokens_are_contiguous_on_the_device_as_only_such_memory_is_copied_from_pinned_pages():
    both = np.arange(12).reshape(2, 6)
    for tokens in (both[:, :-1], both[:, 1:]):
        tensor = Compute(torch.device("cpu"), "fp32").tensor(tokens)
        assert tensor.is_contiguous()
        assert tensor.tolist() == tokens.tolist()


def test_auto_device_is_a_gpu_if_there_is_one():
    expected = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert choose("auto", "fp32").device.type == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device_is_an_error_that_lists_the_available_ones():
    with pytest.raises(ConfigError, match="device: cuda is not available here; choose one of .*cpu"):
        choose("cuda", "auto")


def test_switches_follow_the_run_and_not_the_one_before_it():
    for _ in range(2):
        set_switches(threads=1)
        assert torch.are_deterministic_algorithms_enabled()
    assert set_switches(threads=2) == 2
    assert set_switches(threads=None) == 1  # as the tests set it


def test_other_algorithms_are_allowed_only_to_a_run_that_gives_up_the_same_numbers():
    try:
        set_switches(threads=1, deterministic=False)
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        set_switches(threads=1)
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("kind", "precision", "dropout", "expected"),
    [
        ("cpu", "bf16", 0.0, PlainAttend),
        ("cpu", "fp32", 0.2, PlainAttend),
        ("cpu", "fp32", 0.0, Attend),
        ("cuda", "bf16", 0.2, Attend),
    ],
)
def test_attention_is_plain_if_torchs_is_slower(kind, precision, dropout, expected):
    assert Compute(torch.device(kind), precision).attend(dropout) is expected


def test_autocast_is_on_in_bf16_only():
    a = torch.ones(2, 2)
    for precision, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        with choose("cpu", precision).autocast():
            assert (a @ a).dtype == dtype


def test_rows_of_an_evaluation_are_fewer_if_logits_are_many():
    cpu, gpu = (Compute(torch.device(kind), "bf16") for kind in ("cpu", "cuda"))
    assert [cpu.evaluation_rows(64, 65), gpu.evaluation_rows(64, 65)] == [64, 1024]
    assert cpu.evaluation_rows(64, 50257) * 64 * 50257 * 4 <= 2**25  # bytes in fp32
    assert gpu.evaluation_rows(1024, 50257) * 1024 * 50257 * 4 <= 2**29
    assert cpu.evaluation_rows(8192, 65) == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the pages of Linux")
def test_large_tensors_lie_in_large_pages_if_the_system_leaves_it_to_programs():
    policy = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not policy.exists() or "[madvise]" not in policy.read_text():
        pytest.skip("this system does not leave it to programs")
    program = (
        "import training.device, torch; x = torch.ones(2**25);"
        "print(max(int(l.split()[1]) for l in open('/proc/self/smaps') if l.startswith('AnonHugePages')))"
    )
    fresh = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=fresh, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 2**17 / 2  # KiB; not all of it if memory is fragmented
