"""Norms are timed in steps and alone, and ceilings are measured."""

import json

import pytest

from bench import alone, ceiling, norms, steps
from bench.sizes import Size

SMALL = Size(1, 2, 16, 8, 2)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(alone, "BLOCK_SECONDS", 0.001)
    monkeypatch.setattr(steps, "BLOCK", 3)
    monkeypatch.setattr(norms, "NANO", SMALL)
    monkeypatch.setattr(norms, "SHAPES", {"small": SMALL})


@pytest.mark.parametrize("precision", alone.DTYPES)
@pytest.mark.parametrize("norm", ["layernorm", "torch_batchnorm", "rmsnorm_no_gain"])
def test_a_norm_alone(norm, precision):
    measured = alone.Alone(norm, SMALL, precision, compiled=False)()
    assert measured["alone_us"] > 0
    itemsize = 4 if precision == "fp32" else 2
    assert measured["bytes_per_s"] == pytest.approx(5 * 2 * 8 * 16 * itemsize * 1e6 / measured["alone_us"])
    assert alone.copy(SMALL, precision)["copy_bytes_per_s"] > 0


def test_its_share_of_a_step(bench, capsys):
    made = bench(rounds=2)
    norms.steps_in_turn(made, ["none", "layernorm", "torch_layernorm"], compiled=False)
    none, ours = (made.raw[f"step, eager: {norm}"] for norm in ("none", "layernorm"))
    assert "share_percent" not in none
    expected = [100 * (1 - a / b) for a, b in zip(none["step_s"], ours["step_s"], strict=True)]
    assert ours["share_percent"] == pytest.approx(expected)
    pairs = {(one["of"], one["to"]) for one in made.ratios()}
    assert pairs == {("step, eager: layernorm", "step, eager: torch_layernorm")}
    assert norms.shares(made).keys() == {"step, eager: layernorm", "step, eager: torch_layernorm"}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # the compiler's own
def test_compiled(bench):
    steps.prepare_torch()
    made = bench()
    norms.steps_in_turn(made, ["none", "rmsnorm", "batchnorm"], compiled=True)
    norms.alone_in_turn(made, ["rmsnorm", "batchnorm"], compiled=True)
    assert {"step, compiled: batchnorm", "alone, small bf16, compiled: rmsnorm"} <= made.raw.keys()


def test_what_the_machine_can_do_at_most(monkeypatch, capsys):
    monkeypatch.setattr(ceiling, "SIDE", {"cpu": 32, "cuda": 32})
    monkeypatch.setattr(ceiling, "COPIED", {"cpu": 2**12, "cuda": 2**12})
    monkeypatch.setattr("sys.argv", ["ceiling"])
    ceiling.main()
    found = json.loads(capsys.readouterr().out)
    assert found["flops"].keys() == {"fp32", "bf16"}
    assert all(value > 0 for value in (*found["flops"].values(), found["copy_bytes_per_s"], found["threads"]))
