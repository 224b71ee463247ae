"""Each measurement runs whole programs. A stand-in for nanoGPT prints nanoGPT's lines."""

import json
import sys
from argparse import Namespace
from itertools import islice
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import beside_nanogpt, norms
from bench.programs import SIZES, BenchError, Programs, Size
from tests.conftest import TINY, configured

TRAIN = """\
import sys
print("step 0: train loss 4.1676, val loss 4.1648")
for step in range(6):
    print(f"iter {step}: loss nan, time {1500.0 if step < 2 else 32.0}ms, mfu -100.00%")
"""
SAMPLE = """\
import time
for _ in range(10):
    time.sleep(0.05)
    print("a text", "-" * 15, sep="\\n")
"""
OPTIONS = Namespace(size=["tiny"], steps=3, device="cpu")


@pytest.fixture
def programs(tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    data = tmp_path / "nanoGPT" / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    (data / "input.txt").write_text(text_file.read_text())
    (data / "train.bin").touch()
    (tmp_path / "nanoGPT" / "train.py").write_text(TRAIN)
    (tmp_path / "nanoGPT" / "sample.py").write_text(SAMPLE)
    monkeypatch.setitem(SIZES, "tiny", Size(2, 2, 16, 8, 0.0, 4))
    overrides = ("data=text", *TINY, "train.steps=3")
    return Programs(tmp_path / "nanoGPT", tmp_path, "cpu", compiled=False, overrides=overrides)


def test_what_nanogpt_prints_is_read_with_its_time(programs, tmp_path):
    ended = programs.nanogpt_train(tmp_path)
    times = ended.numbers(r"^iter .* time ([\d.]+)ms")
    assert (times, beside_nanogpt.steady(times)) == ([1500.0] * 2 + [32.0] * 4, 32.0)
    ends = [second for second, line in programs.nanogpt_sample(tmp_path).lines if line == "-" * 15]
    assert len(ends) == 10
    assert ends[-1] - ends[0] > 0.4
    (programs.peer / "train.py").write_text("print('it began')\nraise SystemExit('it broke')")
    with pytest.raises(BenchError, match=r"train\.py failed: it broke"):
        programs.nanogpt_train(tmp_path)


def test_sizes_are_those_of_the_recipes():
    for size, recipe in {"4x128": "nanogpt_cpu", "6x384": "nanogpt_gpu"}.items():
        assert configured(f"experiment={recipe}", *SIZES[size].ours()) == configured(f"experiment={recipe}")


def test_norms_are_timed_beside_torchs_layernorm(programs, monkeypatch):
    monkeypatch.setattr(norms, "BLOCK", 0.001)
    monkeypatch.setattr(norms, "NORMS", ["batchnorm", "none"])
    rows = dict(islice(norms.norms(None, OPTIONS, 0), 2))  # the others are compiled
    assert rows.keys() == {"tiny, eager, batchnorm", "tiny, eager, none"}
    for values in rows.values():
        assert values["ratio"] == values["torch_layernorm"] / values["microseconds"] > 0


@pytest.mark.slow
def test_a_benchmark_writes_its_rounds_and_where_they_were_measured(programs, monkeypatch, tmp_path, capsys):
    out = tmp_path / "result.json"
    words = f"bench train --peer={programs.peer} --size=tiny --rounds=1 --steps=3 --out={out}".split()
    monkeypatch.setattr(sys, "argv", [*words[:2], *programs.overrides, *words[2:]])
    bench.main()
    result = json.loads(out.read_text())
    values = result["rows"]["tiny, fp32"]
    assert values["nanoGPT"] == [4 * 8 / 0.032]
    assert values["ratio"] == [values["ours"][0] / values["nanoGPT"][0]]
    assert result["what"].endswith("train.steps=3")
    assert result.keys() == {"what", "machine", "versions", "date", "rows"}
    assert str(out) in capsys.readouterr().out


@pytest.mark.slow
def test_sampling_and_whole_commands_are_timed(programs):
    rows = dict(beside_nanogpt.sample(programs, OPTIONS, 0))
    assert rows["tiny, 64 tokens"]["nanoGPT"] == pytest.approx(64 / 0.05, rel=0.3)
    assert 0.05 < rows["tiny, 64 tokens and start"]["nanoGPT"] < rows["tiny, 64 tokens and start"]["ours"]
    rows = dict(beside_nanogpt.quality(programs, OPTIONS, 0))
    assert rows["nanoGPT, loss"] == {"nats": 4.1648}
    assert 0 < rows["speedrun, loss"]["nats"] < 10
    assert rows["nanogpt_cpu"]["ratio"] == rows["nanogpt_cpu"]["nanoGPT"] / rows["nanogpt_cpu"]["ours"]


@pytest.mark.long
def test_eight_runs_are_timed_as_one_sweep(programs):
    [(title, values)] = beside_nanogpt.ablation(programs, OPTIONS, 0)
    assert title == "8 runs"
    assert values["ours"] > values["nanoGPT"] > 0


def test_without_a_prepared_checkout_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "train", "--peer=nowhere"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "nowhere: give a checkout of nanoGPT" in capsys.readouterr().err
