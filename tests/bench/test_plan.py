"""What is calculated of GPUs is the arithmetic of docs/scaling.md, and agrees with what is counted here."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bench import plan
from bench.page import MARK
from bench.sizes import Size
from rundir.environment import ROOT
from tests.conftest import configured
from tests.helpers import rank_program
from training.build import build_model
from training.parallel.ranks import Ranks
from training.parallel.strategies import Shards

MADE_BY = "<!-- what follows is made by python -m bench.plan -->"
SMALL = Size(3, 2, 32, 16, 2, vocab_size=50)


def small_model():
    return build_model(configured("model=gpt2", "norm=layernorm", *SMALL.overrides()), SMALL.vocab_size)


def saved_bytes(rows: int) -> int:
    """What a backward in bf16 needs besides the parameters."""
    model, seen = small_model(), {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()  # kept: no address twice
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16),
    ):
        model(torch.zeros(rows, SMALL.block_size, dtype=torch.long))
    return sum(storage.nbytes() for storage in seen.values())


def test_parameters_are_those_of_the_model():
    assert plan.parameters(SMALL) == sum(p.numel() for p in small_model().parameters())
    assert plan.parameters(plan.GPT2["124 M"]) == 124_439_808  # Radford et al.'s smallest


def test_activations_and_copies_are_those_that_a_backward_keeps():
    less, more = saved_bytes(2), saved_bytes(4)
    tokens = 2 * SMALL.block_size
    # of L layers, and of what is around them: the embedded tokens, the last norm, and what the head is given
    per_channel = (more - less) / tokens / SMALL.n_embd
    assert plan.ACTIVATIONS * SMALL.n_layer < per_channel < plan.ACTIVATIONS * SMALL.n_layer + 12
    matrices = sum(p.numel() for p in small_model().parameters() if p.dim() == 2)
    copies = 2 * less - more
    positions = SMALL.block_size * SMALL.n_embd  # are looked up in fp32
    assert copies == pytest.approx(plan.BF16 * (matrices - positions), rel=0.02)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_what_ranks_send(ranks):
    once = (rank_program - 1) / rank_program * 4 * plan.parameters(SMALL)
    assert plan.sent(SMALL, rank_program, "ddp") == pytest.approx(2 * once)
    assert 2 * once < plan.sent(SMALL, rank_program, "fsdp") < 3 * once
    assert plan.sent(SMALL, rank_program, "fsdp", 4) == pytest.approx(
        4 * plan.sent(SMALL, rank_program, "fsdp")
    )


def test_more_ranks_need_less_memory_each_and_a_slower_link_gives_fewer_tokens():
    size = plan.GPT2["1.56 B"]
    needs = [plan.state(size, rank_program, "fsdp") for rank_program in (1, 2, 4, 8, 64)]
    assert needs == sorted(needs, reverse=True)
    assert needs[0] == plan.state(size, 8, "ddp")
    found = [plan.rates(size, 8, "ddp", 8, 1e14, link) for link in (math.inf, 1e11, 1e9)]
    assert found[0].hidden == found[0].not_hidden == pytest.approx(8 * 1e14 / size.flops_per_token)
    assert [one.not_hidden for one in found] == sorted((one.not_hidden for one in found), reverse=True)
    assert all(one.not_hidden <= one.hidden for one in found)


def test_a_sweep_takes_whole_turns():
    assert plan.sweep_hours(100, 100, 3600.0, 1.0) == 1
    assert plan.sweep_hours(101, 100, 3600.0, 1.0) == 2


def test_the_projects_page_has_what_the_program_prints(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["plan"])
    plan.main()
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert MARK not in text
    assert capsys.readouterr().out.strip() == text.partition(MADE_BY)[2].strip()


def test_what_is_wrong_is_said_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["plan", "--flops", "0"])
    with pytest.raises(SystemExit):
        plan.main()
    assert capsys.readouterr().err == "error: --flops: 0.0 is not above 0; --help says what there is\n"


def sent_in_a_step() -> int:
    """Bytes that this rank, of two, gives away in forward and backward as a shard."""
    given = []
    view = Shards(small_model(), torch.device("cpu"), Ranks(dist.get_rank(), 2))
    gather, scatter = dist.all_gather_single, dist.reduce_scatter_single

    def counted(of: Callable[..., Any], part: float) -> Callable[..., Any]:
        def call(output: torch.Tensor, *others: Any, **options: Any) -> Any:
            given.append(output.nbytes * part)
            return of(output, *others, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather_single", counted(gather, 1 / 2))  # half of the output is its own
        patch.setattr(
            dist, "reduce_scatter_single", counted(scatter, 1)
        )  # for the other, as much as it keeps
        view.net(torch.zeros(2, SMALL.block_size, dtype=torch.long)).sum().backward()
    return int(sum(given))


def test_shards_send_what_is_calculated():
    assert rank_program.each(2, sent_in_a_step) == pytest.approx([plan.sent(SMALL, 2, "fsdp")] * 2, rel=0.02)
