"""The table of certificates in docs/norms.md is what its command prints, and names every norm."""

import re
import subprocess
import sys

import pytest

from scripts.leak_table import HEAD, table
from tests.conftest import NORMS, ROOT
from tests.helpers.norm_leaks import SEES

PAGE = (ROOT / "docs/norms.md").read_text(encoding="utf-8")


def test_the_readmes_table_has_a_row_for_every_norm_and_a_number_where_it_leaks():
    rows = re.findall(r"\| `(\w+)` \| (.+) \| (.+) \| (.+) \| (.+) \|\n", PAGE[PAGE.index(HEAD) :])
    found = {name: [cell != "0" for cell in cells] for name, *cells in rows[: len(NORMS)]}
    assert found == {
        norm: ["future" in SEES.get(norm, ()), "rows" in SEES.get(norm, ()), False, False] for norm in NORMS
    }


@pytest.mark.long
def test_the_readmes_table_is_what_the_command_prints():
    assert table([]) in PAGE


def test_a_row_is_the_most_over_placements():
    few = ["norm=batchnorm,layernorm", "model.n_layer=1", "model.n_embd=16", "model.block_size=8"]
    both, pre, post = (table([*few, f"placement={p}"]).splitlines()[2:] for p in ("pre,post", "pre", "post"))

    def numbers(line: str) -> list[float]:
        return [float(cell.strip("* ")) for cell in line.split("|")[2:-1]]

    assert numbers(both[0]) == [max(pair) for pair in zip(numbers(pre[0]), numbers(post[0]), strict=True)]
    assert min(numbers(both[0])[:2]) > 0
    assert numbers(both[1]) == [0, 0, 0, 0]


def test_a_norm_that_cannot_be_certified_has_no_number(tmp_path, monkeypatch):
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "pairs.yaml").write_text("_target_: pairs.Pairs\n")
    (tmp_path / "pairs.py").write_text(
        "from torch import nn\n\n\nclass Pairs(nn.Module):\n"
        "    def __init__(self, n):\n        super().__init__()\n\n"
        "    def forward(self, x):\n        assert len(x) == 2\n        return x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    few = ["norm=pairs", "placement=pre", "model.n_layer=1", "model.n_embd=16"]
    row = table(["--config-dir", str(tmp_path), *few]).splitlines()[2]
    assert row == "| `pairs` |" + " cannot be told |" * 4


def test_bad_input_is_one_line():
    command = [sys.executable, "-m", "scripts.leak_table", "norm=nope"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "norm: there is no 'nope'" in done.stderr
