"""The dry run leaves no trace, and finds the norms that replace buffers, which CUDA graphs forbid."""

from contextlib import nullcontext

import pytest
import torch

from tests.conftest import NORMS, configured
from training.build import build_model
from training.compile import replaces_buffers
from training.dry_run import rehearse
from training.loss import cross_entropy

REPLACING = {"batchnorm_running", "powernorm"}  # model/batchnorms.py explains why
SIZES = ("model.n_layer=1", "model.n_head=2", "model.n_embd=8", "model.block_size=4")


def model_and_loss(norm):
    model = build_model(configured(f"norm={norm}", *SIZES), 5)
    idx = torch.arange(8).view(2, 4) % 5
    return model, lambda: cross_entropy(model, idx, idx)


@pytest.mark.parametrize("norm", NORMS)
def test_only_norms_by_earlier_steps_replace_their_buffers(norm):
    assert replaces_buffers(*model_and_loss(norm)) == (norm in REPLACING)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("fails", [False, True])
def test_a_rehearsal_leaves_buffers_and_gradients_as_they_were(norm, fails):
    model, loss = model_and_loss(norm)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if fails:
        model.embed.tokens.weight.register_hook(lambda gradient: {}["no gradient"])  # fails late in backward
    with pytest.raises(KeyError) if fails else nullcontext():
        rehearse(model, loss)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
