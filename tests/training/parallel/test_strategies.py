"""Each rank keeps its shard of a model, and can gather the full model."""

from functools import partial

import torch
from torch import nn

from tests.conftest import configured
from tests.helpers import rank_program
from training.build import build_model
from training.optimizer import Optimizer
from training.parallel.ranks import Ranks
from training.parallel.strategies import FSDP, Strategy

MODEL = ("norm=dyt", "model.n_layer=2", "model.n_head=2", "model.n_embd=16", "model.block_size=8")


def new_model(*overrides):
    return build_model(configured(*MODEL, *overrides), 9)


def update(strategy: Strategy, tokens: list[list[int]]) -> None:
    optimizer = Optimizer(strategy.trained, configured(*MODEL).optim, max_grad_norm=1.0)
    loss = strategy.net(torch.tensor(tokens)).square().mean()
    loss.backward()
    optimizer.update(1e-2, loss.detach(), optimizer.clip())
    optimizer.zero_grad()


def local_bytes(module: nn.Module) -> int:
    """Return the bytes that the module's parameters have in this process."""
    local = (getattr(p, "to_local", lambda p=p: p)() for p in module.parameters())
    return sum(p.untyped_storage().nbytes() for p in local)


def in_shards(rank: int):
    full, strategy = local_bytes(new_model()), FSDP(new_model(), torch.device("cpu"), Ranks(rank, 2))
    update(strategy, [[rank, 2, 3]])
    outside = local_bytes(strategy.model), local_bytes(strategy.trained) / full
    with strategy.full_model():
        weights = {name: p.tolist() for name, p in strategy.model.named_parameters()}
        inside = full <= local_bytes(strategy.model) < 1.2 * full  # shards are padded to one size
    return outside, inside, local_bytes(strategy.model), weights


def by_rank(function):
    return function(torch.distributed.get_rank())


def test_a_rank_keeps_its_shard_and_can_gather_the_model_of_one_process():
    first, second = rank_program.each(2, partial(by_rank, in_shards))
    for (outside, share), inside, after, _ in (first, second):
        assert (outside, inside, after) == (0, True, 0)
        assert 0.4 < share < 0.6
    weights = first[-1]
    assert weights == second[-1]
    alone = Strategy(new_model())
    update(alone, [[0, 2, 3], [1, 2, 3]])
    for name, p in alone.model.named_parameters():
        assert torch.tensor(weights[name]).shape == p.shape
        torch.testing.assert_close(torch.tensor(weights[name]), p.detach(), rtol=1e-4, atol=1e-5)


def gathered_and_sharded(rank: int):
    strategy = FSDP(new_model(), torch.device("cpu"), Ranks(rank, 2))
    name, p = next((name, p) for name, p in strategy.trained.named_parameters() if name.endswith("alpha"))
    moment = f"optimizer/{name}/exp_avg"
    gathered = strategy.gather({name: p, moment: 2 * p, f"optimizer/{name}/step": torch.tensor(3.0)})
    shard = strategy.shard(torch.tensor(0.25), p)
    return {key: (tuple(t.shape), float(t)) for key, t in gathered.items()}, shard.full_tensor().tolist()


def test_rank_0_saves_the_tensors_of_one_process_and_a_rank_takes_its_shard_back():
    (first, back), (other, same) = rank_program.each(2, partial(by_rank, gathered_and_sharded))
    assert other == {}
    assert {shape for shape, _ in first.values()} == {()}  # shape (), as in the model, not (1,)
    assert len(first) == 3
    assert back == same == [0.25]
