"""The first difference of two runs is the first in the order in which the forward pass is computed."""

import random

from comparison.two_runs import forward_order

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
