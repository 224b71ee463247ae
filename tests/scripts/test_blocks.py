"""python -m scripts.blocks measures a run or a checkpoint file."""

import re

import pytest

from scripts.show import print_table
from tests.helpers.contract import check_refused
from tests.helpers.runs import train_anew

PROGRAM = "scripts/blocks.py"


def test_the_table_has_the_blocks_in_their_order_beyond_a_hundred(capsys):
    sites = ["embed", *(f"{i:02d}" for i in range(103)), "final"]
    print_table({"x": dict.fromkeys(reversed(sites), 1.0), "y": {"99": -0.000412}})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines if line[1:2] == ["1"]] == sites
    assert ["99", "1", "-0.000412"] in lines


@pytest.mark.slow
def test_a_run_is_a_line_a_block_and_a_map_a_norm_and_so_is_its_checkpoint(tiny, succeed, tmp_path):
    folder = train_anew(tiny("norm=dyt", "placement=peri"))
    [newest] = folder.glob("checkpoints/step-*6.safetensors")
    printed = [
        succeed(PROGRAM, str(source), "--out", out).stdout.partition("norm=dyt")[2].removesuffix(f"{out}\n")
        for source, out in ((folder, "maps.svg"), (newest, "maps.png"))
    ]
    assert printed[0] == printed[1]
    assert re.match(r" placement=peri, step 6: loss \d\.\d{4} on \d+ windows of 8 tokens\n", printed[0])
    assert re.search(r"^ +00 +-?[\d.e-]+ +0\.\d+ +\d", printed[0], re.M)
    assert "causality: in norm=dyt placement=peri no logit depends" in printed[0]
    drawn = (tmp_path / "maps.svg").read_text()
    assert all(f">{site}<" in drawn for site in ("00.attn.pre", "01.mlp.out", "final"))
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_text_that_has_changed_is_refused_and_one_that_has_moved_is_named(tiny, command, text_file):
    folder = str(train_anew(tiny("norm=none")))
    moved = text_file.rename(text_file.with_name("moved.txt"))
    done = command(PROGRAM, folder, "--data", str(moved))
    assert "the model has no norm, so there is no figure" in done.stdout
    moved.write_text(moved.read_text() + "more")
    check_refused(command(PROGRAM, folder, "--data", str(moved)), "the text is not the one that")
    check_refused(command(PROGRAM, folder, "--out", "maps.txt"), "use .svg, .png or .pdf")
