"""Our programs are run as a user runs them, and what they leave is read."""

import pytest

from bench import ours
from bench.measure import BenchError
from tests.conftest import TINY


def row(step: int, rate: float, seconds: float) -> ours.Row:
    return {"step": step, "train/tokens_per_s": rate, "seconds": seconds, "tokens": 100 * step}


def test_the_rate_of_a_run_leaves_out_its_first_steps():
    rows = [row(step, 1.0 if step <= 10 else 50.0, 2.0 * step) for step in range(0, 100, 10)]
    rows.append({"step": 100, "val/full_loss": 1.0, "seconds": 900.0, "tokens": 10_000})
    assert ours.tokens_per_s(rows) == (50.0, 50.0)
    few = [row(step, 10.0 * step, 1.0 * step) for step in range(4)]
    assert ours.tokens_per_s(few) == (25.0, 100.0)  # of 4 rows two are left
    with pytest.raises(BenchError, match="more --steps"):
        ours.tokens_per_s(few[:1])


def test_a_run_as_its_user_starts_it(bench, text_file, tmp_path):
    made = bench()
    data = ["data=text", f"data.path={text_file}"]
    settings = [*TINY, "train.steps=3"]
    runs_dir = tmp_path / "runs"
    run = ours.train(made, settings, data=data, runs_dir=runs_dir)
    rate, with_statistics = ours.tokens_per_s(run.rows())
    assert rate > 0
    assert with_statistics > 0
    assert 0 < run.first_step < run.child.seconds
    assert run.child.peak_memory > 50e6
    assert run.environment()["precision"] == "fp32"
    assert 0 < run.final_loss() < 10
    again = ours.train(made, settings, data=data, runs_dir=runs_dir)
    assert again.folder == run.folder
    assert "nothing left to do" in again.child.lines[-1][1]


@pytest.mark.long
def test_a_sample_and_a_sweep(bench, text_file):
    made = bench()
    data = ["data=text", f"data.path={text_file}"]
    run = ours.train(made, [*TINY, "train.steps=1"], data=data)
    drawn = ours.sample(made, run.folder, ["max_new_tokens=5", "num_samples=2", "prompt=Now"])
    assert sum(line.startswith("Now") for _, line in drawn.lines) == 2
    swept = ours.train(made, [*TINY, "train.steps=1", "seed=0,1", "-m"], data=data)
    assert len(swept.folders) == 2
    assert swept.rows(1)


@pytest.mark.long
def test_made_up_tokens_train(bench, tmp_path):
    made = bench()
    data = ours.made_up_corpus(tmp_path / "made-up", 100_000, 50_304)
    run = ours.train(made, [*TINY, "experiment=nanogpt_cpu", "train.steps=1"], data=data)
    assert run.environment()["data"]["vocab_size"] == 50_304
    sparse = ours.made_up_corpus(tmp_path / "sparse", 10_000_000, 65, sparse=True)
    file = tmp_path / "sparse" / "train.bin"
    assert file.stat().st_size == 20_000_000
    assert ours.train(made, [*TINY, "train.steps=1"], data=sparse).rows()


def test_a_failure_is_our_programs_own_line(bench, text_file):
    with pytest.raises(BenchError, match=r"failed with status .*: error: norm"):
        ours.train(bench(), ["norm=nonorm"], data=["data=text", f"data.path={text_file}"])


def test_a_result_names_no_path():
    assert not any("/" in said for said in ours.told(["train.steps=1"]))
