"""nanoGPT's output is read, and what is no checkout of it is refused."""

import pytest

from bench import curves, peer
from bench.measure import BenchError, Child
from bench.sizes import CPU

OUTPUT = """\
tokens per iteration will be: 768
found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)
Initializing a new model from scratch
number of parameters: 0.80M
step 0: train loss 4.1676, val loss 4.1648
iter 0: loss 4.1805, time 1500.00ms, mfu -100.00%
iter 1: loss 4.1573, time 30.00ms, mfu -100.00%
iter 2: loss 4.1002, time 20.00ms, mfu -100.00%
iter 3: loss nan, time 10.00ms, mfu -100.00%
step 4: train loss 3.9, val loss 3.95
saving checkpoint to out
iter 4: loss 4.0103, time 20.00ms, mfu 0.02%
"""


def child(text: str) -> Child:
    return Child(1.0, 1, [(number / 10, line) for number, line in enumerate(text.splitlines())])


def test_its_iterations_and_evaluations():
    run = peer.parsed(child(OUTPUT))
    assert run.milliseconds == [1500.0, 30.0, 20.0, 10.0, 20.0]
    assert run.evaluations == [(0, 4.1648), (4, 3.95)]
    assert run.tokens_per_s(CPU.tokens) == 768 / 0.020  # the first two steps are left out
    assert run.child.seconds_to("iter 0:") == 0.5
    with pytest.raises(BenchError, match="too few iterations"):
        peer.parsed(child("iter 0: loss 4.1, time 1.00ms, mfu -100.00%")).tokens_per_s(1)


def test_what_is_no_checkout(tmp_path):
    with pytest.raises(BenchError, match="no such folder"):
        peer.check(tmp_path / "nowhere")
    (tmp_path / "train.py").write_text("")
    with pytest.raises(BenchError, match=r"has no sample\.py; give a checkout of nanoGPT"):
        peer.check(tmp_path)


def test_the_flags_of_its_recipe_are_the_size_cpu():
    assert {*CPU.flags()} <= {*peer.CPU_RECIPE}
    assert "--eval_interval=250" in curves.recipe(2000)


@pytest.mark.long
def test_the_program_itself(bench, nanogpt, tinyshakespeare):
    """It prepares its data, trains, saves, samples, and its checkpoint is evaluated."""
    made = bench(peer=nanogpt, data=tinyshakespeare)
    theirs = peer.of(made)
    assert theirs
    small = ["--n_layer=1", "--n_embd=16", "--n_head=1", "--block_size=8", "--batch_size=2", "--eval_iters=1"]
    saving = ["--log_interval=1", "--max_iters=2", "--eval_interval=2", "--always_save_checkpoint=True"]
    run = theirs.train([*small, *saving])
    assert len(run.milliseconds) == 3
    assert [step for step, _ in run.evaluations] == [0, 2]
    assert 0 < run.child.seconds_to("iter 0:") < run.child.seconds
    assert theirs.sample(["--max_new_tokens=3", "--num_samples=1", "--top_k=65"]).lines
    again = theirs.train([*small, "--init_from=resume", "--max_iters=2", "--eval_interval=2"])
    assert again.evaluations[0][0] == 2
    assert made.versions["peer"]["files"].keys() == {"train.py", "model.py", "sample.py"}
