"""Random numbers are functions of the seed."""

import torch

from model.seeds import seed_torch


def test_seed_torch_gives_the_numbers_of_torchs_own_seeding():
    torch.manual_seed(2**62)
    expected = torch.rand(3)
    seed_torch(2**62)
    assert torch.equal(torch.rand(3), expected)
