"""The certificate is exactly 0 without a leak, and finds the leaks of the collection, asked as a run asks."""

from functools import partial

import pytest
import torch
from torch import nn

from model import GPT
from model.batchnorms import BatchNorm
from model.embeddings import Embedding
from probe.causality import certificate, describe, leak_metrics
from tests.conftest import daily
from tests.probe import leaks
from tests.probe.leaks import END, HONEST, NEVER, START, unit

V, T, ROWS, EVAL_ROWS = 11, 64, 32, 64
CALLS = 60  # of a trained model, in training
BF16 = partial(torch.autocast, "cpu", torch.bfloat16)
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


# the collection ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sampled(START, "slow_gate", "stochastic", "PreviousCallTail", "tiny"))
def test_a_leak_is_found_at_the_start(name):
    assert said(ask(START[name])) in LEAKING


@pytest.mark.parametrize("name", sampled(END))
def test_a_leak_that_comes_with_training_is_found_at_the_end(name):
    assert said(ask(END[name])) == (True, True)
    assert said(ask(END[name], at_end=True)) in LEAKING


@pytest.mark.parametrize("name", sampled(NEVER))
def test_what_no_such_run_shows_is_not_found(name):
    assert said(ask(NEVER[name])) == said(ask(NEVER[name], at_end=True)) == (True, True)


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("autocast_only", {}, {"autocast": BF16}),
        ("LongSequencePooled", {}, {"steps": 128}),
        ("RepeatedTokenDamp", {"embedding": partial(Embedding, positions=nn.Identity)}, {}),
        ("SpikeGuard", {"embedding": partial(Embedding, scale=lambda _: Scaled())}, {}),
    ],
)
def test_it_is_found_in_another_run_in_which_it_leaks(name, arguments, options):
    assert ask(leaks.arguments(NEVER[name]) | arguments, **options)["causal"] is False


class Scaled(nn.Module):
    def forward(self, x):
        return 1000 * x


@pytest.mark.parametrize("at_end", daily([False, True]), ids=["start", "end"])
@pytest.mark.parametrize("name", sampled(HONEST, "padded_fft", "cast", "masked"))
def test_an_honest_model_is_not_accused(name, at_end):
    answer = ask(HONEST[name], at_end)
    assert said(answer) == (True, True), answer


@pytest.mark.parametrize("name", leaks.CANNOT_TELL)
def test_what_cannot_be_told_is_said_with_the_reason(name):
    reason, entry = leaks.CANNOT_TELL[name]
    answer = ask(entry)
    assert said(answer) == (None, None)
    assert leak_metrics(answer) == {}
    assert describe(answer, "x").startswith("causality: cannot tell whether x looks into the future: ")
    assert reason in describe(answer, "x")


# one kind of leak each ---------------------------------------------------------------------------------

IN_EVALUATION = {
    "inference mode": lambda m, x: torch.is_inference_mode_enabled(),
    "evaluation's rows": lambda m, x: len(x) != ROWS,
}


@pytest.mark.parametrize("name", IN_EVALUATION)
@pytest.mark.parametrize("dim", [1, 0], ids=["future", "rows"])
def test_a_norm_that_leaks_in_evaluation_alone_is_found(name, dim):
    answer = ask(lambda m, x: unit(x) + IN_EVALUATION[name](m, x) * unit(x).mean(dim, keepdim=True))
    assert said(answer) == ((False, True) if dim else (True, False))
    kind = "future" if dim else "rows"
    assert answer["train"][kind] == 0 < answer["eval"][kind]


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


def test_batchnorm_leaks_in_training_alone():
    answer = certificate(made({"norm": BatchNorm}, dropout=0.2), V)
    assert said(answer) == (False, False)
    assert all(leak > 1e-3 for leak in answer["train"].values())
    assert not any(answer["eval"].values())
    assert answer["varies"] == []
    line = describe(answer, "norm=batchnorm")
    assert line.startswith("WARNING: norm=batchnorm LEAKS: a logit moves in training by up to ")
    assert line.endswith("Its loss is not a causal language model's: do not compare train/loss")
    assert {*leak_metrics(answer)} == {
        *(f"leak.{kind}/train" for kind in ("future", "rows", "future_gradient", "rows_gradient")),
        *(f"leak.{kind}/eval" for kind in ("future", "rows", "memory")),
    }


def test_memory_is_described_as_a_dependence_on_other_batches():
    line = describe(ask(START["eval_memory"]), "x")
    assert "when another batch was evaluated before" in line
    assert "Its loss depends on other rows or batches: do not compare val/loss; its output" in line


NUMBERS = ["random numbers in training", "random numbers in evaluation"]
COUNT = ["the number of its calls in training", "the number of its calls in evaluation"]


@pytest.mark.parametrize(
    ("name", "varies"),
    [
        ("plain", []),
        ("noisy", NUMBERS),
        ("stochastic_depth", NUMBERS[:1]),
        ("own_generator", COUNT),
        ("buffer_counter", COUNT[1:]),  # in training it is a buffer's place to count
    ],
)
def test_what_varies_is_said_and_is_no_leak(name, varies):
    answer = ask(HONEST[name])
    assert answer["varies"] == varies
    line = describe(answer, "x")
    assert line.startswith("causality: in x no logit depends on later tokens or on other rows (tested: ")
    assert all(what in line for what in varies)
    assert ("varies with" in line) == bool(varies)


# what is asked, and what is left alone -----------------------------------------------------------------


@pytest.mark.parametrize(("norm", "most"), [(nn.LayerNorm, 12), (BatchNorm, 24)])
def test_a_run_s_start_takes_few_forwards(monkeypatch, norm, most):
    forward, rows = GPT.forward, []
    monkeypatch.setattr(GPT, "forward", lambda model, idx: rows.append(len(idx)) or forward(model, idx))
    ask({"norm": norm})
    assert len(rows) <= most
    assert {*rows} == {ROWS, EVAL_ROWS}


@pytest.mark.parametrize(
    "entry",
    [{"norm": BatchNorm, "dropout": 0.2}, START["tiny"], START["PreviousCallTail"], HONEST["noisy"]],
    ids=["buffers", "fp64", "attributes", "random numbers"],
)
def test_the_model_and_the_random_numbers_are_left_as_they_were(entry):
    torch.manual_seed(7)
    model, state = made(entry), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    certificate(model, V, thorough=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(m.training and not m._forward_hooks for m in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(getattr(m, "memory", None) is None for m in model.modules())


@pytest.mark.parametrize(("thorough", "cuts"), [(False, 8), (True, 63)])
def test_dependent_rows_share_each_of_more_cuts(thorough, cuts):
    answer = certificate(made({"norm": BatchNorm}), V, thorough=thorough)
    assert answer["asked"]["train"] == {"cuts": cuts, "all_cuts": 63, "rows": 4}


@pytest.mark.parametrize("rows", [3, 32])
def test_a_thorough_test_asks_every_cut_and_every_pair_of_rows(rows):
    asked, forward = [], GPT.forward
    subject = made({}).eval()
    subject.forward = lambda idx: asked.append(idx) or forward(subject, idx)
    tokens = torch.zeros(rows, T, dtype=torch.long), torch.ones(rows, T, dtype=torch.long)
    certificate(subject, V, tokens)
    exchanged = torch.stack(asked).bool()  # (questions, rows, T)
    by_row = exchanged.all(2)
    apart = (by_row[:, :, None] & ~by_row[:, None]).any(0)
    assert torch.equal(apart, ~torch.eye(rows, dtype=torch.bool))
    assert {*(~exchanged).sum(2).flatten().tolist()} == {*range(T + 1)}


def test_an_error_in_evaluation_is_said_and_leaves_a_leak_in_training_said():
    answer = ask(lambda m, x: x - x.mean((0, 1)) if m.training else x.view(7, -1))
    assert said(answer) == (False, False)
    assert answer["reason"].startswith("on a batch of 64 x 64 it raises RuntimeError")
    assert "at test_causality.py:" in answer["reason"]  # where the norm is written


@pytest.mark.parametrize(
    ("steps", "options", "extent"),
    [
        (1, {}, "tested: 4 rows; there are no later tokens"),
        (2, {}, "tested: all 1 positions, 4 rows"),
        (64, {"thorough": False}, "tested: 4 of 63 positions, 4 rows"),
        (300, {"thorough": False}, "tested: 4 of 255 positions in a context of 256, not 300, 4 rows"),
    ],
)
def test_how_much_was_tested_is_said(steps, options, extent):
    answer = certificate(made({}, block_size=steps), V, **options)
    what = "causality: in norm=x no logit depends on later tokens or on other rows"
    assert describe(answer, "norm=x") == f"{what} ({extent})"
