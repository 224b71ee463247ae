"""The validation losses are means per token of fixed text, and computing them changes nothing."""

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
from tests.conftest import configured
from tests.helpers.runs import metric_rows, same_tensors, train_anew
from training.batches import Batches, fixed_windows
from training.build import build_model
from training.checkpoint import model_tensors
from training.ddp import Ranks
from training.loss import Evaluator, bits_per_byte, evaluate, modules_with_running_estimates
from training.run_folder import read_status


@pytest.mark.parametrize(
    ("norm", "logged"),
    [("torch_batchnorm", True), ("batchnorm_position", True), ("batchnorm_running", False), ("dyt", False)],
)
def test_the_loss_on_batch_statistics_is_logged_at_each_evaluation_of_norms_that_train_on_them(
    tiny, norm, logged
):
    rows = metric_rows(train_anew(tiny(f"norm={norm}", "train.eval_every=3")))
    evaluated = [row for row in rows if "val/loss" in row]
    assert len(evaluated) == 3
    for row in evaluated:
        assert ("val/batch_stats_gap" in row) == logged
        if logged:
            assert row["val/batch_stats_gap"] == row["val/batch_stats_loss"] - row["val/loss"] != 0


def test_the_loss_on_batch_statistics_is_that_of_training_mode_without_dropout(tiny):
    own = ("model.dropout=0.5", "train.grad_accum=2", "train.eval_windows=7", "train.steps=0")
    config = tiny("norm=batchnorm", *own)
    data, row = prepare(**config.data.model_dump()), metric_rows(train_anew(config))[0]
    dropless = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})
    model = build_model(dropless, data.tokenizer.vocab_size)

    def loss(x, y):
        return F.cross_entropy(model(torch.from_numpy(x)).flatten(0, 1), torch.from_numpy(y).flatten()).item()

    # the last window fills no micro-batch, and is left out
    windows = [(x, y) for x, y in fixed_windows(data.val, 8, 7, 2) if len(x) == 2]
    on_batch = np.mean([loss(x, y) for x, y in windows])
    assert row["val/batch_stats_loss"] == pytest.approx(on_batch, rel=1e-6)
    model = build_model(dropless, data.tokenizer.vocab_size).eval()
    gap = on_batch - np.mean([loss(x, y) for x, y in windows])
    assert row["val/batch_stats_gap"] == pytest.approx(gap, abs=1e-6)


class CountsAndDraws(torch.nn.Module):
    """A norm that counts its calls in a buffer, and draws random numbers."""

    def __init__(self, n):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return x * self.calls + torch.randn_like(x)


BATCH = (np.random.default_rng(0).integers(5, size=(2, 4)),) * 2


def loss_of(net, batch=BATCH):
    return net(torch.from_numpy(batch[0])).square().mean()


def test_an_evaluation_gives_the_same_twice_and_leaves_buffers_as_they_were():
    sizes = {"vocab_size": 5, "block_size": 4, "n_layer": 1, "n_head": 1, "n_embd": 4}
    model = GPT(**sizes, norm=CountsAndDraws, placement=Pre)
    before = {name: tensor.clone() for name, tensor in model.named_buffers()}
    first, second = (evaluate(model, loss_of, [[BATCH], [BATCH]], Ranks()) for _ in range(2))
    assert first == second
    assert same_tensors(before, dict(model.named_buffers()))
    loss_of(model).backward()  # a buffer made under inference_mode could not be trained with


def test_running_estimates_and_the_mode_stay_as_they_are_also_after_an_error():
    model = build_model(configured("norm=batchnorm", "model.n_layer=1", "model.block_size=8"), 11)
    before = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    norms = modules_with_running_estimates(model, loss_of)
    assert norms == [module for module in model.modules() if hasattr(module, "running_mean")]
    assert len(norms) == 3
    for running_norms in ((), norms):
        evaluate(model, loss_of, [[BATCH]], Ranks(), running_norms)
        with pytest.raises(ZeroDivisionError):
            evaluate(model, lambda *both: (loss_of(*both), 1 / 0), [[BATCH]], Ranks(), running_norms)
        assert same_tensors(before, model_tensors(model))
        assert all(module.training for module in model.modules())


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


def test_an_evaluation_without_a_whole_micro_batch_has_no_loss_on_batch_statistics(tiny):
    folder = train_anew(tiny("norm=batchnorm", "model.block_size=1", "train.eval_windows=3"))
    assert read_status(folder)["state"] == "finished"
    assert "val/batch_stats_gap" not in metric_rows(folder)[0]


def test_an_observed_nan_does_not_make_a_run_diverged(tiny, monkeypatch):
    monkeypatch.setattr(Evaluator, "on_batch_statistics", lambda _: math.nan)
    folder = train_anew(tiny("norm=batchnorm"))
    assert read_status(folder)["state"] == "finished"
    assert metric_rows(folder)[0]["val/batch_stats_loss"] == "NaN"


@pytest.mark.parametrize("tokenizer", ["char", "bpe", "gpt2"])
def test_a_model_to_which_all_bytes_are_equally_likely_has_8_bits_per_byte(tmp_path, tokenizer):
    (tmp_path / "text.txt").write_text("Où est la bibliothèque? " * 60, encoding="utf-8")
    text = ("data=text", f"data.path={tmp_path}/text.txt", f"data.cache={tmp_path}")
    sizes = ("data.vocab_size=300", "data.val_fraction=0.3")
    data = prepare(**configured(*text, f"data.tokenizer={tokenizer}", *sizes).data.model_dump())
    losses = [len(data.tokenizer.decode([int(token)])) * math.log(256) for token in data.val[1:]]
    loss = math.fsum(losses) / len(losses)
    assert bits_per_byte(loss, len(losses), data.val_bytes()) == pytest.approx(8, rel=1e-12)
