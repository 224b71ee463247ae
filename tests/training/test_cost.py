"""The operations of a run, and the choice to compile the run."""

import math
from functools import partial

import pytest

from tests.conftest import configured
from training.cost import (
    FIXED_FORWARDS,
    FORWARDS_A_BATCH,
    LEAST_ROUNDS,
    WORTH_COMPILING,
    certificate_rounds,
    operations_of_run,
    operations_per_step,
    seconds_per_operation,
    training_operations,
    worth_compiling,
)


def test_the_pace_can_be_measured_for_a_run_of_no_steps():
    config = configured("train.steps=0", "model.n_layer=1", "model.n_embd=8", "model.block_size=4")
    assert seconds_per_operation(config, 5, threads=1) > 0


def test_a_long_run_is_compiled_a_short_one_is_not_unless_the_user_chooses():
    on_two_threads = partial(worth_compiling, vocab_size=65, threads=2)
    short, long = configured("train.steps=100"), configured("train.steps=100000")
    assert not on_two_threads(short, device="cpu", precision="bf16")
    assert on_two_threads(long, device="cpu", precision="bf16")
    assert on_two_threads(long, device="cpu", precision="fp32")
    between = configured("train.steps=8000")  # compiling gains less in fp32
    assert on_two_threads(between, device="cpu", precision="bf16")
    assert not on_two_threads(between, device="cpu", precision="fp32")
    assert not on_two_threads(long, device="mps", precision="fp32")  # nobody has measured what pays there
    asked = configured("train.steps=100", "compile=true")
    refused = configured("train.steps=100000", "compile=false")
    assert on_two_threads(asked, device="mps", precision="fp32")
    assert not on_two_threads(refused, device="cpu", precision="bf16")


@pytest.mark.parametrize(("settings", "threads"), [("model.n_layer=4", 4), ("model.n_layer=16", 2)])
def test_on_a_cpu_more_threads_or_layers_need_more_operations_before_compiling_pays(settings, threads):
    per_step = operations_per_step(configured(settings), 65)
    enough = math.ceil(2 * WORTH_COMPILING["cpu", "bf16"] / per_step)
    few, many = (configured(settings, f"train.steps={steps}") for steps in (enough - 1, enough))
    assert not worth_compiling(few, 65, "cpu", "bf16", threads)
    assert worth_compiling(many, 65, "cpu", "bf16", threads)
    assert worth_compiling(few, 65, "cpu", "bf16", threads - 1)


@pytest.mark.parametrize("often", ["train.eval_every=1", "train.eval_windows=100000", "stats.every=1"])
def test_more_evaluations_never_decide_whether_a_run_is_compiled(often):
    config, more_often = configured("train.steps=4000"), configured("train.steps=4000", often)
    almost = WORTH_COMPILING["cpu", "bf16"]
    assert 0.3 < training_operations(config, 65) / almost < 1
    assert training_operations(more_often, 65) == training_operations(config, 65)
    assert not worth_compiling(more_often, 65, "cpu", "bf16", threads=2)


def test_the_operations_are_nanogpts_count_for_its_recipe():
    config = configured("experiment=nanogpt_cpu")
    n = 12 * 4 * 128**2 + 65 * 128
    tokens = 2000 * 12 * 64
    assert training_operations(config, 65) == tokens * (6 * n + 12 * 4 * 128 * 64)


def test_a_forward_of_evaluation_is_a_third_of_a_step():
    config = configured("train.steps=1000", "train.eval_every=500", "train.eval_windows=64")
    rows, T = config.train.batch_size, config.model.block_size
    step, n_val = operations_per_step(config, 65), 30 * rows * T
    # the whole split, three evaluations of 64 windows, and certificates for 3 % of training, in whole rounds
    extra = 30 / 3 + 3 * (64 / rows) / 3 + 30
    assert operations_of_run(config, 65, n_val) == pytest.approx((1000 + extra) * step, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ("block_size=64 batch_size=12 steps=20", 6),  # each of 63 positions once
        ("block_size=64 batch_size=12 steps=2000", 29),  # 3 % of the time of training
        ("block_size=1024 batch_size=12 steps=5000", 96),
        ("block_size=1024 batch_size=12 steps=2000", 86),  # each position once, for less than 10 %
        ("block_size=1024 batch_size=32 grad_accum=32 steps=20", 32),  # each once would take 1,023
        ("block_size=1024 batch_size=32 grad_accum=32 steps=50", 104),  # 10 %
    ],
)
def test_a_certificate_tests_each_position_once_unless_that_takes_a_tenth_of_training(settings, rounds):
    keys = [f"{'model' if 'block' in setting else 'train'}.{setting}" for setting in settings.split()]
    config = configured(*keys)
    assert certificate_rounds(config) == rounds
    steps = config.train.steps
    share = operations_of_run(config, 65, 0) / training_operations(config, 65) - 1
    forwards = 2 * (FIXED_FORWARDS + 2 * rounds) / (FORWARDS_A_BATCH * steps * config.train.grad_accum)
    assert share == pytest.approx(forwards)
    assert share < 0.101 or rounds <= LEAST_ROUNDS
