"""What is tried before a run leaves no trace, and tells which norms a CUDA graph cannot have."""

import pytest
import torch

from tests.conftest import NORMS, configured
from training.build import build_model
from training.compile import replaces_buffers
from training.dry_run import rehearse
from training.loss import cross_entropy

REPLACING = {"batchnorm_running", "powernorm"}  # model/batchnorms.py says why
SIZES = ("model.n_layer=1", "model.n_head=2", "model.n_embd=8", "model.block_size=4")


def made(norm):
    model = build_model(configured(f"norm={norm}", *SIZES), 5)
    idx = torch.arange(8).view(2, 4) % 5
    return model, lambda: cross_entropy(model, idx, idx)


@pytest.mark.parametrize("norm", NORMS)
def test_only_norms_by_earlier_steps_replace_their_buffers(norm):
    assert replaces_buffers(*made(norm)) == (norm in REPLACING)


@pytest.mark.parametrize("norm", NORMS)
def test_a_rehearsal_leaves_buffers_and_gradients_as_they_were(norm):
    model, loss = made(norm)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rehearse(model, loss)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
