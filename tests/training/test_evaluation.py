"""The validation loss on batch statistics is that of training mode, and computing it changes no buffer."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from data.prepared import prepare
from model import GPT
from model.placements import Pre
from tests.conftest import NORMS, configured, daily
from tests.helpers.runs import metric_rows, same_tensors, train_anew
from training.batches import Batches, fixed_windows
from training.build import build_model
from training.checkpoint import model_tensors
from training.ddp import Ranks
from training.loss import (
    Evaluator,
    bits_per_byte,
    evaluate,
    evaluate_on_batch_statistics,
    mean,
    modules_with_running_estimates,
)
from training.run_folder import read_status

ON_THE_BATCH = (
    "batchnorm",
    "torch_batchnorm",
    "batchnorm_position",
)  # in training; else by running estimates


@pytest.mark.parametrize("norm", daily(NORMS, lambda number: number % 3 == 0, "long"))
def test_the_loss_on_batch_statistics_is_logged_at_each_evaluation_of_norms_that_train_on_them(tiny, norm):
    evaluated = [
        row
        for row in metric_rows(train_anew(tiny(f"norm={norm}", "train.eval_every=3")))
        if "val/loss" in row
    ]
    assert len(evaluated) == 3
    for row in evaluated:
        assert ("val/batch_stats_gap" in row) == (norm in ON_THE_BATCH)
        if norm in ON_THE_BATCH:
            gap = row["val/batch_stats_loss"] - row["val/loss"]
            assert row["val/batch_stats_gap"] == gap != 0


def test_the_loss_on_batch_statistics_is_that_of_training_mode_in_micro_batches_without_dropout(tiny):
    config = tiny("norm=batchnorm", "model.dropout=0.5", "train.grad_accum=2", "train.eval_windows=8")
    data = prepare(**config.data.model_dump())
    none = config.train.model_copy(update={"steps": 0})
    row = metric_rows(train_anew(config.model_copy(update={"train": none})))[0]
    dropless = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})
    model = build_model(dropless, data.tokenizer.vocab_size)
    losses = []
    for x, y in fixed_windows(data.val, 8, 8, 2):
        logits = model(torch.from_numpy(x))  # in training mode; the model has no dropout
        losses.append(F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).flatten()).item())
    assert row["val/batch_stats_loss"] == pytest.approx(math.fsum(losses) / len(losses), rel=1e-6)


def test_the_gap_compares_the_same_windows_also_if_the_last_fill_no_micro_batch(tiny):
    config = tiny("norm=batchnorm", "train.steps=0", "train.eval_windows=6")  # micro-batches of 4
    row = metric_rows(train_anew(config))[0]
    data = prepare(**config.data.model_dump())
    x, y = map(torch.from_numpy, next(fixed_windows(data.val, 8, 6, 4)))
    logits = build_model(config, data.tokenizer.vocab_size).eval()(x)
    on_estimates = F.cross_entropy(logits.flatten(0, 1), y.flatten()).item()
    assert row["val/batch_stats_gap"] == pytest.approx(row["val/batch_stats_loss"] - on_estimates, abs=1e-6)
    assert on_estimates != pytest.approx(row["val/loss"], abs=1e-4)


def test_running_estimates_and_the_mode_stay_as_they_are_also_after_an_error():
    model = build_model(configured("norm=batchnorm", "model.n_layer=1", "model.block_size=8"), 11)
    before = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    x = torch.randint(11, (4, 9)).numpy()
    batch = (x[:, :-1], x[:, 1:])

    def loss_of(net, batch):
        return net(torch.from_numpy(batch[0])).mean()

    def failing(net, batch):
        loss_of(net, batch)
        raise ZeroDivisionError

    running_norms = modules_with_running_estimates(model, lambda net: loss_of(net, batch))
    assert running_norms == [module for module in model.modules() if hasattr(module, "running_mean")]
    assert len(running_norms) == 3

    def on_estimates(loss_of):
        return evaluate(model, loss_of, [[batch]], Ranks())

    def on_batch_statistics(loss_of):
        return evaluate_on_batch_statistics(model, running_norms, loss_of, [batch], Ranks())

    for measure in (on_estimates, on_batch_statistics):
        measure(loss_of)
        with pytest.raises(ZeroDivisionError):
            measure(failing)
        assert same_tensors(before, model_tensors(model))
        assert all(module.training for module in model.modules())


def test_a_norm_that_counts_its_calls_in_a_buffer_does_not_count_evaluations():
    class Counts(torch.nn.Module):
        def __init__(self, n):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls = self.calls + 1
            return x * self.calls

    model = GPT(vocab_size=5, block_size=4, n_layer=1, n_head=1, n_embd=4, norm=Counts, placement=Pre)
    batch = (np.zeros((2, 4), np.int64),) * 2

    def loss_of(net, batch):
        return F.cross_entropy(
            net(torch.from_numpy(batch[0])).flatten(0, 1), torch.zeros(8, dtype=torch.long)
        )

    assert modules_with_running_estimates(model, lambda net: loss_of(net, batch)) == []
    assert not any(buffer for name, buffer in model.named_buffers() if name.endswith("calls"))
    loss_of(model, batch)
    first, second = (evaluate(model, loss_of, [[batch]], Ranks()) for _ in range(2))
    assert first == second
    assert all(buffer == 1 for name, buffer in model.named_buffers() if name.endswith("calls"))
    loss_of(model, batch).backward()  # a buffer of the evaluation could not be trained with


def test_a_buffer_that_does_not_move_is_no_running_estimate():
    class WithConstant(torch.nn.LayerNorm):
        def __init__(self, n: int) -> None:
            super().__init__(n)
            self.register_buffer("constant", torch.ones(1))

    model = GPT(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8, norm=WithConstant, placement=Pre)
    x = torch.randint(11, (4, 8))
    assert modules_with_running_estimates(model, lambda net: net(x).mean()) == []


def test_a_loss_is_that_of_a_token_for_batches_of_all_sizes():
    losses = {2: 1.0, 6: 5.0}  # by the number of rows
    batches = [[(np.zeros((n, 3), np.int64), np.zeros((n, 3), np.int64))] for n in losses]

    def loss_of(net, batch):
        return torch.tensor(losses[len(batch[0])])

    each = evaluate(torch.nn.Identity(), loss_of, batches, Ranks())
    assert mean(each) == (2 * 1.0 + 6 * 5.0) / 8


@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 8))
def test_the_halves_are_the_two_contiguous_halves_of_the_windows_whatever_the_batches(targets, size, rows):
    """Token i has the loss i, so the mean of a half says which tokens it has."""
    batches = object.__new__(Batches)
    validation = np.arange(targets + 1, dtype=np.uint16)
    batches.tokens = SimpleNamespace(val=validation, val_bytes=lambda: targets)
    batches.block_size, batches.evaluation_rows, batches.val_targets = size, rows, targets
    evaluator = Evaluator(
        model=torch.nn.Identity(),
        batches=batches,
        loss=SimpleNamespace(of_batch=lambda net, batch: torch.tensor(batch[1].mean())),
        ranks=Ranks(),
        running_norms=(),
        stop=SimpleNamespace(watching=lambda rounds: rounds),
        log=SimpleNamespace(progress=SimpleNamespace(through=lambda step, batches, *_: batches)),
    )
    row = evaluator.on_the_whole_split(0)
    assert row["val/bpb"] == pytest.approx(row["val/full_loss"] / math.log(2))  # a byte a token
    middle = math.ceil(targets / size) // 2 * size
    if middle:
        assert row["val/select_loss"] == pytest.approx((1 + middle) / 2, abs=1e-4)
        assert row["val/report_loss"] == pytest.approx((middle + 1 + targets) / 2, abs=1e-4)
    else:
        assert row.keys() == {"val/full_loss", "val/bpb"}


def test_the_losses_of_the_halves_are_logged_beside_that_of_the_whole(tiny):
    row = metric_rows(train_anew(tiny()))[-1]
    halves = [row[f"val/{half}_loss"] for half in ("select", "report")]
    assert min(halves) < row["val/full_loss"] < max(halves)


def test_only_whole_micro_batches_are_taken_for_batch_statistics(tiny):
    config = tiny(
        "norm=batchnorm", "model.block_size=1", "train.eval_windows=5"
    )  # 4 rows, and a row of one token
    assert read_status(train_anew(config))["state"] == "finished"
    few = metric_rows(train_anew(tiny("norm=batchnorm", "train.eval_windows=3")))
    assert not any("val/batch_stats_gap" in row for row in few)


def test_an_observed_nan_does_not_make_a_run_diverged(tiny, monkeypatch):
    monkeypatch.setattr("training.loss.evaluate_on_batch_statistics", lambda *_: math.nan)
    folder = train_anew(tiny("norm=batchnorm"))
    assert read_status(folder)["state"] == "finished"
    assert metric_rows(folder)[0]["val/batch_stats_loss"] == "NaN"


@pytest.mark.parametrize("tokenizer", ["char", "bpe", "gpt2"])
def test_a_model_to_which_all_bytes_are_equally_likely_has_8_bits_per_byte_whatever_the_tokenizer(
    tmp_path, tokenizer
):
    (tmp_path / "text.txt").write_text("Où est la bibliothèque? " * 60, encoding="utf-8")
    text = ("data=text", f"data.path={tmp_path}/text.txt", f"data.cache={tmp_path}")
    sizes = ("data.vocab_size=300", "data.val_fraction=0.3")
    data = prepare(**configured(*text, f"data.tokenizer={tokenizer}", *sizes).data.model_dump())
    targets = [int(token) for token in data.val[1:]]
    losses = [len(data.tokenizer.decode([token])) * math.log(256) for token in targets]
    loss = math.fsum(losses) / len(targets)
    assert bits_per_byte(loss, len(targets), data.val_bytes()) == pytest.approx(8, rel=1e-12)
    assert data.val_bytes() == len(data.tokenizer.decode(data.val)) - len(data.tokenizer.decode(data.val[:1]))


def test_a_norm_that_draws_in_evaluation_has_the_same_losses_each_time():
    class Noisy(torch.nn.Module):
        def __init__(self, n):
            super().__init__()

        def forward(self, x):
            return x + torch.randn_like(x)

    model = GPT(vocab_size=5, block_size=4, n_layer=1, n_head=1, n_embd=4, norm=Noisy, placement=Pre)
    batch = (np.zeros((2, 4), np.int64),) * 2

    def loss_of(net, batch):
        return net(torch.from_numpy(batch[0])).square().mean()

    first, second = (evaluate(model, loss_of, [[batch], [batch]], Ranks()) for _ in range(2))
    assert first == second
    assert first[0] != first[1]  # each batch has its own numbers
