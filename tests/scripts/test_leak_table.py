"""The table of leaks in results/leaks.md is what its command prints, and names every norm."""

import re

import pytest

from scripts.leak_table import HEAD, table
from tests.conftest import NORMS, ROOT
from tests.helpers.norm_leaks import SEES

PAGE = (ROOT / "results/leaks.md").read_text(encoding="utf-8")
TINY = ["model.n_layer=1", "model.n_embd=16", "model.block_size=8"]


def test_the_page_has_a_row_for_every_norm_and_a_number_where_it_leaks():
    rows = re.findall(r"\| `(\w+)` \| (.+) \| (.+) \| (.+) \| (.+) \|\n", PAGE[PAGE.index(HEAD) :])
    leaks = {name: [cell != "0" for cell in cells] for name, *cells in rows[: len(NORMS)]}
    assert leaks == {
        norm: ["future" in SEES.get(norm, ()), "rows" in SEES.get(norm, ()), False, False] for norm in NORMS
    }


@pytest.mark.long
def test_the_table_of_the_page_is_what_the_command_prints():
    assert table(["model.init_scale=1"]) in PAGE


@pytest.mark.slow
def test_a_row_is_the_largest_over_placements():
    def numbers(placements: str) -> list[list[float]]:
        lines = table(["norm=batchnorm,layernorm", f"placement={placements}", *TINY]).splitlines()[2:]
        return [[float(cell.strip("* ")) for cell in line.split("|")[2:-1]] for line in lines]

    both, pre, post = map(numbers, ("pre,post", "pre", "post"))
    assert both[0] == [max(pair) for pair in zip(pre[0], post[0], strict=True)]
    assert min(both[0][:2]) > 0
    assert both[1] == [0, 0, 0, 0]


@pytest.mark.parametrize("name", ["a,b (ü)", "it's [1]=#2", "plain"])
def test_a_norm_that_cannot_be_certified_has_no_number(tmp_path, monkeypatch, name):
    tmp_path = tmp_path / name
    (tmp_path / "norm").mkdir(parents=True)
    (tmp_path / "norm" / "pairs.yaml").write_text("_target_: pairs.Pairs\n")
    (tmp_path / "pairs.py").write_text(
        "from torch import nn\n\n\nclass Pairs(nn.Module):\n"
        "    def __init__(self, n):\n        super().__init__()\n\n"
        "    def forward(self, x):\n        assert len(x) == 2\n        return x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    row = table(["--config-dir", str(tmp_path), "norm=pairs", "placement=pre", *TINY]).splitlines()[2]
    assert row == "| `pairs` |" + " unknown |" * 4
