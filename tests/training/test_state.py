"""Our optimizers resume from a checkpoint as if they had never stopped."""

import pytest
import torch
from torch import nn

from model.batchnorms import BatchNorm
from rundir import checkpoint_file
from system.errors import CheckpointError
from tests.helpers.configs import meta
from training import state
from training.muon import Muon
from training.optimizer import AdamW

NEW_OPTIMIZERS = [
    lambda parameters: AdamW(parameters, lr=1e-2),
    lambda parameters: Muon(parameters, 1e-2, 0.1, 0.9),
]


class Two(nn.Module):
    """A model of matrices only, as Muon takes nothing else."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)

    def forward(self, x):
        return self.second(self.first(x).tanh())


def train(model, optimizers, steps) -> None:
    for step in steps:
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        model.zero_grad()
        (model(x).square().sum() - model(x).sum()).backward()
        for optimizer in optimizers:
            optimizer.step()


def resume(folder, model, optimizers, other, others):
    """Restore ``other`` and its optimizers from a checkpoint of ``model`` and its optimizers."""
    moments, structure = state.optimizer_state(model, optimizers)
    described = meta(1).model_copy(update={"optimizer": structure})
    loaded = checkpoint_file.load(
        checkpoint_file.save(folder, described, state.model_tensors(model) | moments, None)
    )
    state.restore_model(other, loaded)
    state.restore_optimizers(other, others, loaded)


@pytest.mark.parametrize("new", NEW_OPTIMIZERS)
def test_an_optimizer_resumes_as_if_it_had_never_stopped(tmp_path, new):
    model, other = Two(0), Two(1)
    optimizer, resumed = (new(m.parameters()) for m in (model, other))
    train(model, [optimizer], range(5))
    resume(tmp_path, model, [optimizer], other, [resumed])
    train(model, [optimizer], range(5, 9))
    start = other.first.weight.clone()
    train(other, [resumed], range(5, 9))
    assert not torch.equal(start, other.first.weight)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def two_optimizers(model):
    return [Muon([model.first.weight], 1e-2, 0.1, 0.9), AdamW([model.second.weight], lr=1e-2)]


def test_several_optimizers_share_a_checkpoint(tmp_path):
    model, other = Two(0), Two(1)
    optimizers, resumed = two_optimizers(model), two_optimizers(other)
    train(model, optimizers, range(3))
    resume(tmp_path, model, optimizers, other, resumed)
    train(model, optimizers, range(3, 5))
    train(other, resumed, range(3, 5))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_state_that_no_optimizer_takes_is_an_error(tmp_path):
    model = Two(0)
    optimizers = two_optimizers(model)
    train(model, optimizers, range(3))
    with pytest.raises(CheckpointError, match=r"optimizer state of second.weight"):
        resume(tmp_path, model, optimizers, model, optimizers[:1])


def test_buffers_and_tied_weights_are_stored_once():
    model = nn.Sequential(nn.Embedding(5, 3), BatchNorm(3), nn.Linear(3, 5, bias=False))
    model[2].weight = model[0].weight
    names = {"0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert state.model_tensors(model).keys() == names
