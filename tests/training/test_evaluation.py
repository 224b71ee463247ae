"""The validation loss with batch statistics: what it is of, and that it moves nothing."""

import math

import pytest
import torch
import torch.nn.functional as F

from data import batches
from data.prepared import prepare
from tests.conftest import NORMS, configured
from tests.test_train import rows, run, same
from training import evaluation
from training.components import build_model
from training.state import model_tensors


def test_it_is_logged_at_each_evaluation_where_there_are_batch_statistics(tiny):
    for norm in NORMS:
        evaluated = [
            row for row in rows(run(tiny(f"norm={norm}", "train.eval_every=3"))) if "val/loss" in row
        ]
        assert len(evaluated) == 3
        for row in evaluated:
            assert ("val/batch_stats_gap" in row) == (norm == "batchnorm")
            if norm == "batchnorm":
                gap = row["val/batch_stats_loss"] - row["val/loss"]
                assert row["val/batch_stats_gap"] == gap != 0


def test_it_is_the_loss_in_training_mode_without_dropout_in_micro_batches(tiny):
    config = tiny("norm=batchnorm", "model.dropout=0.5", "train.grad_accum=2", "train.eval_windows=8")
    data = prepare(**config.data.model_dump())
    none = config.train.model_copy(update={"steps": 0})
    row = rows(run(config.model_copy(update={"train": none})))[0]
    dropless = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})
    model = build_model(dropless, data.tokenizer.vocab_size)
    losses = []
    for x, y in batches.fixed_windows(data.val, 8, 8, 2):
        logits = model(torch.from_numpy(x))  # in training mode, with no dropout to do
        losses.append(F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).flatten()).item())
    assert row["val/batch_stats_loss"] == pytest.approx(math.fsum(losses) / len(losses), rel=1e-6)


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

    for measure in (evaluation.evaluate, evaluation.evaluate_on_batch_statistics):
        measure(model, loss_of, [batch])
        with pytest.raises(ZeroDivisionError):
            measure(model, failing, [batch])
        assert same(before, model_tensors(model))
        assert all(module.training for module in model.modules())
