"""The certificate is exactly 0 without a leak, and finds the leaks of the collection, asked as a run asks."""

import copy
import math
import random
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from model import GPT
from model.attention import CausalSelfAttention
from model.batchnorms import BatchNorm
from model.embeddings import Embedding
from model.placements import Peri
from probe.causality import MODES, certificate, cut_rounds, describe, leak_metrics, row_groups
from tests.conftest import daily
from tests.probe import leaks
from tests.probe.leaks import END, HONEST, NEVER, START, over_time, square, unit

V, T, ROWS, EVAL_ROWS = 11, 64, 32, 64
CALLS = 60  # of a trained model, in training
BF16 = partial(torch.autocast, "cpu", torch.bfloat16)
REAL = F.scaled_dot_product_attention
SIZES = st.integers(1, 40)
LEAKING = (False, True), (True, False), (False, False)  # causal, independent_rows


def made(entry, **sizes) -> GPT:
    shape = {"vocab_size": V, "block_size": T, "n_layer": 2, "n_head": 2, "n_embd": 16}
    return GPT(**shape | leaks.arguments(entry) | sizes)


def ask(entry, at_end: bool = False, steps: int = T, **options) -> dict:
    """Return the certificate of a model as a run asks for it, at its start or after CALLS in training."""
    generator = torch.Generator().manual_seed(0)
    tokens, eval_tokens = (
        tuple(torch.randint(V, (2, rows, steps), generator=generator)) for rows in (ROWS, EVAL_ROWS)
    )
    model = made(entry, block_size=steps)
    with torch.no_grad():
        for _ in range(CALLS if at_end else 0):
            model(tokens[0][:4])
    initial = {"thorough": at_end, "initial": not at_end}
    return certificate(model, V, tokens, **{"eval_tokens": eval_tokens} | initial | options)


def said(answer: dict) -> tuple[bool | None, bool | None]:
    return answer["causal"], answer["independent_rows"]


def sampled(table: dict, *always: str) -> list:
    names = [*always, *(name for name in table if name not in always)]
    return daily(names, lambda number: number < len(always) or number % 8 == 0, "slow")


# ---------------------------------------------------------------------------------------------------
# The collection


@pytest.mark.parametrize("name", sampled(START, "slow_gate", "stochastic", "PreviousCallTail"))
def test_a_leak_is_found_at_the_start(name):
    assert said(ask(START[name])) in LEAKING


@pytest.mark.parametrize("name", sampled(END))
def test_a_leak_that_comes_with_training_is_found_at_the_end(name):
    assert said(ask(END[name])) == (True, True)
    assert said(ask(END[name], at_end=True)) in LEAKING


@pytest.mark.parametrize("name", sampled(NEVER))
def test_what_no_such_run_shows_is_not_found(name):
    assert said(ask(NEVER[name])) == said(ask(NEVER[name], at_end=True)) == (True, True)


NO_POSITIONS = {"embedding": partial(Embedding, positions=nn.Identity)}


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("autocast_only", {}, {"autocast": BF16}),
        ("HalfAmaxScale", {"placement": Peri}, {"at_end": True, "autocast": BF16}),
        ("LongSequencePooled", {}, {"steps": 128}),
        ("RepeatedTokenDamp", NO_POSITIONS, {}),
        ("SpikeGuard", {"embedding": partial(Embedding, scale=lambda _: Scaled(1000))}, {}),
    ],
)
def test_it_is_found_in_another_run_in_which_it_leaks(name, arguments, options):
    assert ask(leaks.arguments(NEVER[name]) | arguments, **options)["causal"] is False


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


@pytest.mark.parametrize("at_end", [False, True], ids=["start", "end"])
@pytest.mark.parametrize("name", sampled(HONEST))
def test_an_honest_model_is_not_accused(name, at_end):
    answer = ask(HONEST[name], at_end)
    assert said(answer) == (True, True), answer


def test_numbers_drawn_by_the_tokens_are_a_leak_under_one_seed():
    assert said(ask(leaks.ACCUSED["rejection_noise"])) == (False, False)


@pytest.mark.parametrize("name", leaks.CANNOT_TELL)
def test_what_cannot_be_told_is_said_with_the_reason(name):
    reason, entry = leaks.CANNOT_TELL[name]
    answer = ask(entry)
    assert said(answer) == (None, None)
    assert answer["reason"] == reason
    assert describe(answer, "x") == f"causality: cannot tell whether x looks into the future: {reason}"


# ---------------------------------------------------------------------------------------------------
# One kind of leak each

AHEAD = {  # each when it is not asked as a training step: its name says when
    "other rows than training's": lambda m, x: len(x) != ROWS,
    "inference mode": lambda m, x: torch.is_inference_mode_enabled(),
    "evaluation with other rows": lambda m, x: not m.training and len(x) != ROWS,
}


@pytest.mark.parametrize("name", AHEAD)
def test_a_norm_that_looks_ahead_in_evaluation_alone_is_found(name):
    mean = lambda m, x: unit(x) + AHEAD[name](m, x) * over_time(unit(x))  # noqa: E731
    answer = ask(mean)
    assert said(answer) == (False, True)
    assert answer["train"]["future"] == 0 < answer["eval"]["future"]


def test_a_norm_that_pools_over_evaluation_s_rows_alone_is_found():
    pooled = lambda m, x: unit(x, square(x).mean(0, keepdim=True) if len(x) != ROWS else None)  # noqa: E731
    answer = ask(pooled)
    assert said(answer) == (True, False)
    assert answer["train"]["rows"] == 0 < answer["eval"]["rows"]


@pytest.mark.parametrize("share", [1.0, 1e-4], ids=["large", "as small as rounding"])
def test_a_leak_of_the_backward_alone_is_found(share):
    backward = partial(leaks.centred_backward, share=share)
    answer = ask(lambda m, x: leaks.WithBackward.apply(x, backward))
    assert said(answer) == (False, True)
    assert answer["train"]["future"] == answer["eval"]["future"] == 0
    assert share / 1000 < answer["train"]["future_gradient"] < share
    assert "a logit moves in training by less than a forward shows" in describe(answer, "x")


def test_a_leak_of_other_rows_is_not_called_one_of_later_tokens():
    answer = ask(START["SecondHalfRows"])
    assert said(answer) == (True, False)
    assert answer["train"]["rows_gradient"] > 0.01


def test_a_leak_that_keeps_the_sum_of_the_logits_is_found_by_the_gradient():
    model = made(START["time_instance"], vocab_size=12)
    with torch.no_grad():  # logits in pairs of w·x and −w·x, exactly as w are whole 1024ths
        model.head.weight[:6] = (model.head.weight[:6] * 1024).round() / 1024
        model.head.weight[6:] = -model.head.weight[:6]
    assert certificate(model, 12, initial=False)["train"]["future_gradient"] > 0.01


@pytest.mark.parametrize("dropout", [0, 0.2])
def test_batchnorm_leaks_in_training_alone(dropout):
    answer = certificate(made({"norm": BatchNorm}, dropout=dropout), V)
    assert said(answer) == (False, False)
    assert all(leak > 1e-3 for leak in answer["train"].values())
    assert not any(answer["eval"].values())
    assert answer["varies"] == []
    line = describe(answer, "norm=batchnorm")
    assert line.startswith("WARNING: norm=batchnorm LEAKS: a logit moves in training by up to ")
    assert " when later tokens change and " in line
    assert line.endswith("Its loss is not a causal language model's: do not compare train/loss")
    modes = {
        "train": ("future", "rows", "future_gradient", "rows_gradient"),
        "eval": ("future", "rows", "memory"),
    }
    assert [*leak_metrics(answer)] == [f"leak.{kind}/{mode}" for mode in modes for kind in modes[mode]]


@pytest.mark.parametrize(
    "site",
    [
        {"final_norm": BatchNorm},
        {"embedding": partial(Embedding, norm=BatchNorm)},
        {"attention": partial(CausalSelfAttention, qk_norm=BatchNorm)},
    ],
    ids=lambda site: next(iter(site)),
)
def test_a_leaking_norm_is_found_at_every_site(site):
    assert said(ask(site)) == (False, False)


@pytest.mark.parametrize("diagonal", [1, 5])
def test_a_mask_that_shows_the_future_is_found_in_both_modes(monkeypatch, diagonal):
    def broken(q, k, v, dropout_p, is_causal):
        return REAL(q, k, v, attn_mask=torch.ones(q.shape[2], q.shape[2]).tril(diagonal).bool())

    monkeypatch.setattr(F, "scaled_dot_product_attention", broken)
    answer = ask({})
    assert said(answer) == (False, True)
    assert all(answer[mode]["future"] > 0.01 for mode in MODES)
    assert answer["train"]["future_gradient"] > 0.01


def test_memory_is_described_as_a_dependence_on_other_batches():
    line = describe(ask(START["eval_memory"]), "x")
    assert "in evaluation by up to " in line
    assert "when another batch was evaluated before" in line
    assert (
        "Its loss depends on other rows or batches: do not compare val/loss; its output for the same" in line
    )


# ---------------------------------------------------------------------------------------------------
# What is no leak


def test_rounding_is_told_from_a_leak_of_the_same_size():
    tiny, rounding = ask(START["tiny"]), ask(HONEST["padded_fft"])
    assert said(tiny) == (False, True)
    assert said(rounding) == (True, True)
    assert 0 < tiny["train"]["future"] < 1e-5
    assert 0 < rounding["rounding"] < 1e-5


def test_rounding_of_a_norm_that_casts_to_fp32_is_no_leak():
    def cast(m, x):  # a constant has the default dtype
        return (leaks.padded_fft(m, x.float()) @ torch.eye(x.shape[-1])).to(x.dtype, copy=True)

    answer = ask(cast)
    assert said(answer) == (True, True)
    assert answer["rounding"] > 0


NUMBERS = ["random numbers in training", "random numbers in evaluation"]
COUNT = ["the number of its calls in training", "the number of its calls in evaluation"]


@pytest.mark.parametrize(
    ("name", "varies"),
    [
        ("plain", []),
        ("noisy", NUMBERS),
        ("numpy_noise", NUMBERS),
        ("python_noise", NUMBERS),
        ("stochastic_depth", NUMBERS[:1]),
        ("own_generator", COUNT),
        ("buffer_counter", COUNT[1:]),  # in training it is a buffer's place to count
    ],
)
def test_what_varies_is_said_and_is_no_leak(name, varies):
    answer = ask(HONEST[name])
    assert said(answer) == (True, True)
    assert answer["varies"] == varies
    line = describe(answer, "x")
    assert line.startswith("causality: in x no logit depends on later tokens or on other rows (tested: ")
    assert all(what in line for what in varies)
    assert ("varies with" in line) == bool(varies)


class Masked(nn.LayerNorm):
    """A causal norm: the mean of earlier tokens is subtracted, by a mask that is a constant parameter."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.mask = nn.Parameter(torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None], False)
        self.count = nn.Parameter(torch.tensor(1), False)

    def forward(self, x):
        return super().forward(x - self.mask @ x * self.count)


def test_constants_are_not_moved_so_that_a_causal_mask_stays_causal():
    assert said(ask({"norm": Masked})) == (True, True)


# ---------------------------------------------------------------------------------------------------
# What is asked, and what is left alone


@pytest.mark.parametrize(("norm", "most"), [(nn.LayerNorm, 12), (BatchNorm, 24)])
def test_a_run_s_start_takes_few_forwards(monkeypatch, norm, most):
    forward, rows = GPT.forward, []
    monkeypatch.setattr(GPT, "forward", lambda model, idx: rows.append(len(idx)) or forward(model, idx))
    ask({"norm": norm})
    assert len(rows) <= most
    assert {*rows} == {ROWS, EVAL_ROWS}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "entry",
    [
        {"norm": BatchNorm, "dropout": 0.2},
        *(START[name] for name in ("tiny", "PreviousCallTail")),
        HONEST["noisy"],
    ],
    ids=["buffers", "fp64", "attributes", "random numbers"],
)
def test_the_model_and_the_random_states_are_left_as_they_were(entry, training):
    def states():
        np_state = np.random.get_state()
        return torch.get_rng_state().tolist(), random.getstate(), np_state[1].tolist(), np_state[2]

    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(5)
    model = made(entry).train(training)
    tensors, before = copy.deepcopy(model.state_dict()), states()
    certificate(model, V, thorough=False)
    assert states() == before
    assert torch.get_default_dtype() == torch.float32
    assert {name: t.dtype for name, t in tensors.items()} == {
        n: t.dtype for n, t in model.state_dict().items()
    }
    assert all(torch.equal(t, tensors[name]) for name, t in model.state_dict().items())
    assert all(m.training is training and not m._forward_hooks for m in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(getattr(m, "memory", None) is None for m in model.modules())


@pytest.mark.parametrize(("thorough", "cuts"), [(False, 8), (True, 63)])
def test_dependent_rows_share_each_of_more_cuts(thorough, cuts):
    answer = certificate(made({"norm": BatchNorm}), V, thorough=thorough)
    assert answer["asked"]["train"] == {"cuts": cuts, "all_cuts": 63, "rows": 4, "cut_rows": cuts / 63}


def test_a_vocabulary_of_one_token_cannot_be_tested():
    answer = certificate(made({}, vocab_size=1), 1)
    assert said(answer) == (None, None)
    assert describe(answer, "x").endswith(": its vocabulary has one token, which cannot be exchanged")


def test_a_model_that_cannot_run_on_the_batch_is_not_certified():
    answer = ask(lambda m, x: x.view(-1, 7, *x.shape[1:]).view(x.shape))
    assert said(answer) == (None, None)
    assert leak_metrics(answer) == {}
    assert ": on a batch of 32 x 64 it raises RuntimeError: shape '[-1, 7, 64, 16]' is " in describe(
        answer, "x"
    )
    assert "at test_causality.py:" in describe(answer, "x")  # where the norm is written


def test_an_error_in_evaluation_leaves_a_leak_in_training_said():
    def norm(m, x):
        return x - x.mean((0, 1)) if m.training else x.view(7, -1)

    answer = ask(norm)
    assert said(answer) == (False, False)
    assert answer["reason"].startswith("on a batch of 64 x 64 it raises RuntimeError")


@pytest.mark.parametrize(
    ("steps", "options", "extent"),
    [
        (1, {}, "tested: 4 rows; there are no later tokens"),
        (2, {}, "tested: all 1 positions, 4 rows"),
        (16, {}, "tested: all 15 positions, 4 rows"),
        (64, {"thorough": False}, "tested: 4 of 63 positions, 4 rows"),
        (300, {"thorough": False}, "tested: 4 of 255 positions in a context of 256, not 300, 4 rows"),
    ],
)
def test_how_much_was_tested_is_said(steps, options, extent):
    answer = certificate(made({}, block_size=steps), V, **options)
    what = "causality: in norm=x no logit depends on later tokens or on other rows"
    assert describe(answer, "norm=x") == f"{what} ({extent})"


@given(SIZES, SIZES, st.integers(0, 50), st.integers(0, 9))
def test_every_cut_is_asked_once_before_any_twice_and_no_cut_of_a_row_twice(rows, steps, count, seed):
    rounds = cut_rounds(rows, steps, count, torch.Generator().manual_seed(seed))
    assert len(rounds) == min(steps - 1, count)
    needed = math.ceil((steps - 1) / rows)
    first = {t for cuts in rounds[:needed] for t in cuts.tolist()}
    assert first <= {*range(steps - 1)}
    assert len(first) == min(steps - 1, rows * min(count, needed))
    asked = [(row, t) for cuts in rounds for row, t in enumerate(cuts.tolist())]
    assert len(asked) == len({*asked}) or rows > steps - 1  # then rows share cuts


@given(st.integers(1, 100), st.integers(0, 9))
def test_every_row_is_exchanged_without_each_other_row_in_the_fewest_forwards(rows, seed):
    groups = row_groups(rows, torch.Generator().manual_seed(seed))
    if rows == 1:
        assert groups == []
        return
    member = torch.stack(groups)  # (groups, B)
    apart = (member[:, :, None] & ~member[:, None, :]).any(0)
    assert torch.equal(apart, ~torch.eye(rows, dtype=torch.bool))
    fewer = len(groups) - 1
    assert math.comb(fewer, fewer // 2) < rows  # Sperner: no antichain of subsets is larger
