"""What each rank keeps of a model, and the whole of it."""

from functools import partial

import torch
from torch import nn

from tests.conftest import configured
from tests.helpers import rank_program
from training.build import build_model
from training.optimizer import Updates, new_optimizers
from training.parallel.ranks import Ranks
from training.parallel.strategies import Shards, View

MODEL = ("norm=dyt", "model.n_layer=2", "model.n_head=2", "model.n_embd=16", "model.block_size=8")


def new_model(*overrides):
    return build_model(configured(*MODEL, *overrides), 9)


def a_step(view: View, rank: int) -> None:
    config = configured(*MODEL)
    updates = Updates([*view.trained.parameters()], new_optimizers(view.trained, config.optim), 1.0)
    loss = view.net(torch.tensor([[rank, 2, 3]])).square().mean()
    loss.backward()
    updates.step(loss.detach(), 1e-2)


def bytes_here(module: nn.Module) -> int:
    """Of the memory that its parameters have in this process."""
    mine = (getattr(p, "to_local", lambda p=p: p)() for p in module.parameters())
    return sum(p.untyped_storage().nbytes() for p in mine)


def in_shards(rank: int):
    whole, view = bytes_here(new_model()), Shards(new_model(), torch.device("cpu"), Ranks(rank, 2))
    a_step(view, rank)
    outside = bytes_here(view.model), bytes_here(view.trained) / whole
    with view.whole():
        weights = {name: p.tolist() for name, p in view.model.named_parameters()}
        inside = whole <= bytes_here(view.model) < 1.2 * whole  # shards are filled up to be of one size
    return outside, inside, bytes_here(view.model), weights


def by_rank(function):
    return function(torch.distributed.get_rank())


def test_a_rank_keeps_its_part_and_has_the_whole_model_when_asked():
    one, other = rank_program.each(2, partial(by_rank, in_shards))
    for (outside, share), inside, after, _ in (one, other):
        assert (outside, inside, after) == (0, True, 0)
        assert 0.4 < share < 0.6
    assert one[-1] == other[-1]


def test_the_whole_model_is_that_of_one_process():
    alone = View(new_model())
    config = configured(*MODEL)
    updates = Updates([*alone.model.parameters()], new_optimizers(alone.model, config.optim), 1.0)
    loss = alone.net(torch.tensor([[0, 2, 3], [1, 2, 3]])).square().mean()
    loss.backward()
    updates.step(loss.detach(), 1e-2)
    weights = rank_program.each(2, partial(by_rank, in_shards))[0][-1]
    for name, p in alone.model.named_parameters():
        assert torch.tensor(weights[name]).shape == p.shape
        torch.testing.assert_close(torch.tensor(weights[name]), p.detach(), rtol=1e-4, atol=1e-5)


def gathered_and_cut(rank: int):
    view = Shards(new_model(), torch.device("cpu"), Ranks(rank, 2))
    name, p = next((name, p) for name, p in view.trained.named_parameters() if name.endswith("alpha"))
    moment = f"optimizer/{name}/exp_avg"
    found = view.gathered({name: p, moment: 2 * p, f"optimizer/{name}/step": torch.tensor(3.0)})
    cut = view.cut(torch.tensor(0.25), p)
    return {key: (tuple(t.shape), float(t)) for key, t in found.items()}, cut.full_tensor().tolist()


def test_the_first_rank_saves_what_one_process_would_and_a_rank_takes_its_part_back():
    (first, back), (other, same) = rank_program.each(2, partial(by_rank, gathered_and_cut))
    assert other == {}
    assert {shape for shape, _ in first.values()} == {()}  # one number, as in the model, not a row
    assert len(first) == 3
    assert back == same == [0.25]
