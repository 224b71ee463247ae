"""The first difference of two runs is the first in the order in which the forward pass is computed."""

import random

from comparison.load import load
from comparison.two_runs import first_difference, forward_order, render, shared_statistics
from tests.helpers.run_folders import made

FORWARD = """
    act.rms/embed
    act.rms/00.attn.pre.in norm.gain/00.attn.pre act.rms/00.attn.pre.out attn.entropy/00.attn
    act.rms/00.attn.branch act.rms/00.attn.post.in act.rms/00.attn.post.out act.rms/00.attn
    act.rms/00.mlp.pre.out mlp.dead/00.mlp act.rms/00.mlp.out.in act.rms/00.mlp.branch
    act.rms/00.mlp act.cosine/00
    act.rms/01.attn.branch act.cosine/01 act.rms/final
    grad.rms/00.attn grad.rms/final
""".split()


def test_metrics_are_sorted_in_the_order_of_the_forward_with_gradients_last():
    shuffled = random.Random(0).sample(FORWARD, len(FORWARD))
    assert sorted(shuffled, key=forward_order) == FORWARD


def test_the_first_difference_is_the_first_step_then_the_first_site(tmp_path):
    def run(name, at_5, at_9):
        sites = ("act.rms/01.mlp", "act.rms/00.attn", "train/loss")
        curve = {5: dict(zip(sites, at_5, strict=True)), 9: dict(zip(sites, at_9, strict=True))}
        return load(made(tmp_path / name, curve=curve))[0]

    same = run("a", (1.0, 1.0, 3.0), (1.0, 2.0, 2.0))
    shared = shared_statistics(same, run("b", (1.001, 1.001, 9.0), (1.0, 3.0, 9.0)))
    assert first_difference(shared, 0.0) == "from step 5, first act.rms/00.attn: 1 and 1.001"
    assert first_difference(shared, 0.01) == "from step 9, first act.rms/00.attn: 2 and 3"
    assert first_difference(shared, 0.5) == "nowhere"


def test_a_site_of_another_version_comes_after_the_others():
    assert sorted(["act.rms/00.ffn", *FORWARD[:3]], key=forward_order) == [*FORWARD[:3], "act.rms/00.ffn"]


def test_runs_without_statistics_are_not_said_to_differ_nowhere(tmp_path):
    a, b = (load(made(tmp_path / str(loss), "seed=1", final=loss))[0] for loss in (2.0, 2.5))
    lines = [str(part) for part in render(a, b).renderables]
    assert "statistics: none at the same step of both" in lines
    assert not any("nowhere" in line for line in lines)
