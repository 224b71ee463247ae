"""Every benchmark describes itself, rejects invalid input in one line, and reads what the programs print."""

import importlib
import json
import os
from types import SimpleNamespace

import pytest

from bench import nanogpt, norms, ours, quality, sample
from bench.child import BenchError, Child
from bench.memory import write_made_up_corpus
from tests.conftest import TINY, configured
from training import device

NAMES = ("train", "sample", "quality", "compiling", "ablation", "norms", "memory")
NANOGPT_PRINTS = """\
tokens per iteration will be: 768
step 0: train loss 4.1676, val loss 4.1648
iter 0: loss 4.1805, time 1500.00ms, mfu -100.00%
iter 1: loss 4.1573, time 30.00ms, mfu -100.00%
iter 2: loss nan, time 10.00ms, mfu -100.00%
step 2: train loss 3.9, val loss 3.95
"""


def started(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a benchmark in this process and return its exit status."""
    monkeypatch.setattr("sys.argv", [f"bench.{name}", *arguments])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"bench.{name}").main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", NAMES)
def test_help_describes_the_measurement(name, monkeypatch, capsys):
    assert started(name, "--help", monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert f"python -m bench.{name}" in text
    assert all(option in text for option in ("--peer", "--data", "--out", "--rounds"))


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("train", ("--rounds", "0"), "--rounds: invalid value '0'; expected an integer of at least 1"),
        ("train", ("--size", "nosize"), "argument --size: invalid choice: 'nosize'"),
        ("norms", ("--norm", "nonorm"), "argument --norm: invalid choice: 'nonorm'"),
        ("ablation", (), "error: --data: file is missing; give tinyshakespeare's text\n"),
        ("memory", ("--data", "nowhere"), "nowhere is missing; give tinyshakespeare's text\n"),
        ("memory", ("--steps", "5"), "--steps: 5 is too few; give at least 10\n"),
        ("sample", ("--length", "0"), "--length: invalid value '0'; expected an integer of at least 1"),
        ("sample", ("--peer", "nowhere"), "nowhere: train.py is missing; give a checkout of nanoGPT\n"),
    ],
)
def test_invalid_input_is_rejected(name, arguments, error, monkeypatch, capsys):
    assert started(name, *arguments, monkeypatch=monkeypatch) == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "recipe"),
    [("nano", ()), ("cpu", ("experiment=nanogpt_cpu",)), ("baby", ("experiment=nanogpt_gpu",))],
)
def test_sizes_are_those_of_the_recipes(size, recipe):
    assert configured(*recipe, *ours.size_overrides(size)) == configured(*recipe)


def test_the_rate_of_a_run_leaves_out_its_first_steps():
    def row(step: int, rate: float) -> dict[str, float]:
        return {"step": step, "train/tokens_per_s": rate, "seconds": 2.0 * step, "tokens": 100 * step}

    rows = [row(step, 1.0 if step < 10 else 50.0) for step in range(30)]
    assert ours.tokens_per_s([*rows, {"step": 30, "val/full_loss": 1.0, "seconds": 900.0}]) == (50.0, 50.0)
    assert ours.tokens_per_s([row(step, 10.0 * step) for step in range(4)]) == (25.0, 50.0)
    with pytest.raises(BenchError, match="more --steps"):
        ours.tokens_per_s(rows[:1])


def test_the_first_step_is_dated_back_from_the_last_row(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 0, "seconds": 2.0}\n{"step": 9, "seconds": 7.0}\n')
    os.utime(file, (1020.0, 1020.0))
    assert ours.Run(Child(30.0, 1, []), 1000.0, [tmp_path]).first_step() == 15.0


def test_what_nanogpt_prints_is_read():
    run = Child(9.0, 1, [(float(n), line) for n, line in enumerate(NANOGPT_PRINTS.splitlines())])
    assert run.find(nanogpt.LOSS)[0] == (2.0, "4.1805")
    assert run.numbers(nanogpt.LOSS)[:2] == [4.1805, 4.1573]
    assert run.numbers(nanogpt.MILLISECONDS) == [1500.0, 30.0, 10.0]
    assert run.numbers(nanogpt.VAL_LOSS) == [4.1648, 3.95]


def test_nanogpts_sampling_rate_is_that_of_the_median_time_between_texts(bench):
    def drawn(flags: list[str]) -> Child:
        count = int(flags[-1].removeprefix("--num_samples="))
        ends = [2.0, 3.0, 3.5, *(12.5 + 9 * i for i in range(8))][:count]
        return Child(2.5, 1, [(end, line) for end in ends for line in ("a text", "-" * 15)])

    peer = SimpleNamespace(bench=bench(), sample=drawn)
    assert sample.measure_peer(peer, [64]) == {"64_tokens_per_s": 64 / 9, "whole_64_s": 2.5}


def test_a_curve_is_the_mean_over_each_eighth():
    found = quality.as_metrics(1.0, 1.9, [float(i) for i in range(16)])
    assert [found[f"train_loss_{i}/8"] for i in range(1, 9)] == [0.5 + 2 * i for i in range(8)]
    assert found["reached"] is True
    assert quality.as_metrics(1.0, 1.91, [])["reached"] is False


@pytest.mark.slow
def test_a_run_as_a_user_starts_it(bench, text_file):
    made, data = bench(), ["data=text", f"data.path={text_file}"]
    made.variant = "ours"
    run = ours.train(made, [*TINY, "train.steps=3"], data=data)
    assert all(rate > 0 for rate in ours.tokens_per_s(run.rows()))
    assert 0 < run.first_step() < run.child.seconds
    assert 0 < run.final_loss() < 10
    assert made.settings["ours"][:2] == ["data=text", "data.path=PATH"]
    assert made.notes == ["ours: precision fp32, compile False"]
    with pytest.raises(BenchError, match=r"train\.py: failed with status .*: error: norm"):
        ours.train(made, ["norm=nonorm"], data=data)


@pytest.mark.slow
def test_made_up_tokens_train(bench, tmp_path):
    data = write_made_up_corpus(tmp_path, 0.02)
    assert (tmp_path / "train.bin").stat().st_size == 20_000_000
    assert ours.train(bench(), [*TINY, "train.steps=1"], data=data).rows()


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["none", "torch_batchnorm", "rmsnorm_no_gain"])
def test_a_norm_is_timed(norm, monkeypatch):
    monkeypatch.setattr(norms, "BLOCK", 0.001)
    monkeypatch.setitem(ours.SIZES, "nano", (1, 2, 16, 8, 0.0, 2))
    compute = device.choose("cpu", "bf16")
    step = norms.make_step(norm, compute, compiled=False)
    call = norms.make_norm_call(norm, "nano", compute, compiled=False)
    assert all(gradient.isfinite().all() for gradient in call())
    assert all(value > 0 for value in norms.measure_calls({"step_us": step, "nano_bf16_us": call}).values())


@pytest.mark.long
@pytest.mark.parametrize("name", ["train", "quality", "sample", "compiling"])
def test_a_small_one_side_by_side(name, monkeypatch, tmp_path):
    if not {"BENCH_PEER", "BENCH_DATA"} <= os.environ.keys():
        pytest.skip("BENCH_PEER and BENCH_DATA do not name nanoGPT and tinyshakespeare")
    small = {"train": "--size cpu --steps 3", "sample": "--size cpu --length 64", "compiling": "--steps 20"}
    small["quality"] = "--preset nanogpt_cpu --override train.steps=8 --peer-steps 8"
    places = [os.environ["BENCH_PEER"], os.environ["BENCH_DATA"]]
    out = tmp_path / "result.json"
    shared = ["--peer", places[0], "--data", places[1], "--rounds", "1", "--out", str(out)]
    monkeypatch.setattr("bench.nanogpt.EVAL_BATCHES", 2)
    monkeypatch.setattr("sys.argv", [f"bench.{name}", *shared, *small[name].split()])
    importlib.import_module(f"bench.{name}").main()
    result = json.loads(out.read_text())
    assert result["complete"]
    ours_are = {"uncompiled", "auto", "compiled"} if name == "compiling" else {"ours"}
    assert {variant.split(": ")[-1].split(",")[0] for variant in result["raw"]} == {"nanoGPT", *ours_are}
    assert not any(place in out.read_text() for place in places)
