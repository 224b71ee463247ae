"""The sizes are the recipes' own, and the arithmetic is that of the model."""

import pytest

from bench.sizes import BABY, CPU, NANO, SIZES, Size
from model import GPT
from model.norms import RMSNorm
from model.placements import Pre
from tests.conftest import configured


@pytest.mark.parametrize("size", [NANO, CPU])
def test_operations_are_six_for_each_weight_of_a_matrix_product(size: Size):
    gpt = GPT(
        vocab_size=size.vocab_size,
        block_size=size.block_size,
        n_layer=size.n_layer,
        n_head=size.n_head,
        n_embd=size.n_embd,
        norm=RMSNorm,
        placement=Pre,
        bias=False,
    )
    positions = size.block_size * size.n_embd
    n = sum(p.numel() for p in gpt.parameters() if p.dim() == 2) - positions
    attention = 12 * size.n_layer * size.n_embd * size.block_size
    assert size.flops_per_token == 6 * n + attention


@pytest.mark.parametrize(
    ("size", "recipe"),
    [(NANO, ()), (CPU, ("experiment=nanogpt_cpu",)), (BABY, ("experiment=nanogpt_gpu",))],
)
def test_sizes_are_those_of_the_recipes(size: Size, recipe: tuple[str, ...]):
    assert configured(*recipe, *size.overrides()) == configured(*recipe)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_both_programs_are_told_the_same(size: Size):
    told = {setting.partition(".")[2] for setting in size.overrides()}
    assert told == {flag.removeprefix("--") for flag in size.flags()}
