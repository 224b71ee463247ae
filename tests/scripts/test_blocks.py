"""python -m scripts.blocks measures a run, a checkpoint file, or a GPT-2 that others trained."""

import re

import pytest
import torch

from data.tokenizers import CharTokenizer
from scripts.show import print_table
from tests.conftest import LETTERS
from tests.helpers import gpt2_models
from tests.helpers.contract import check_refused
from tests.helpers.runs import train_anew
from training.batches import fixed_windows

PROGRAM = "scripts/blocks.py"


def test_the_table_has_the_blocks_in_their_order_beyond_a_hundred(capsys):
    sites = ["embed", *(f"{i:02d}" for i in range(103)), "final"]
    print_table({"x": dict.fromkeys(reversed(sites), 1.0), "y": {"99": -0.000412}})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines if line[1:2] == ["1"]] == sites
    assert ["99", "1", "-0.000412"] in lines


@pytest.mark.slow
def test_a_run_is_a_line_a_block_and_a_map_a_norm_and_so_is_its_checkpoint(tiny, succeed, tmp_path):
    folder = train_anew(tiny("norm=dyt", "placement=peri", f"data.cache={tmp_path}/theirs"))
    (tmp_path / "theirs").rename(tmp_path / "away")
    [newest] = folder.glob("checkpoints/step-*6.safetensors")
    printed = []
    for source, out in ((folder, "maps.svg"), (newest, "maps.png")):
        printed.append(succeed(PROGRAM, str(source), "--out", out).stdout.partition("norm=dyt")[2])
    assert printed[0].removesuffix("maps.svg\n") == printed[1].removesuffix("maps.png\n")
    assert re.match(r" placement=peri, step 6: loss \d\.\d{4} on \d+ windows of 8 tokens\n", printed[0])
    assert re.search(r"^ +00 +-?[\d.e-]+ +0\.\d+ +\d", printed[0], re.M)
    assert "causality: in norm=dyt placement=peri no logit depends" in printed[0]
    drawn = (tmp_path / "maps.svg").read_text()
    assert all(f">{site}<" in drawn for site in ("00.attn.pre", "01.mlp.out", "final"))
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "theirs").exists()  # tokens are kept where the user is, not where the run says


@pytest.mark.slow
def test_leaving_out_a_block_of_a_gpt2_of_others_costs_what_removing_it_in_transformers_costs(
    succeed, tmp_path, text_file
):
    chars = "".join(sorted(set(LETTERS)))
    reference = gpt2_models.saved(tmp_path / "theirs", chars=chars)
    done = succeed(PROGRAM, "theirs", "--data", str(text_file))
    [whole, rows] = re.search(r"step 0: loss (\S+) on (\d+) windows of 64 tokens", done.stdout).groups()
    ids = CharTokenizer(chars).encode(LETTERS[int(len(LETTERS) * 0.9) :])
    [(x, y)] = fixed_windows(ids, 64, int(rows), int(rows))

    def loss() -> float:
        with torch.no_grad():
            logits = reference(torch.from_numpy(x), use_cache=False).logits
        return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).flatten()))

    full, layers = loss(), reference.transformer.h
    assert float(whole) == pytest.approx(full, abs=1e-4)
    for number in range(2):
        reference.transformer.h = torch.nn.ModuleList(b for i, b in enumerate(layers) if i != number)
        reference.config.n_layer = 1
        printed = re.search(rf"^ +0{number} +(\S+) ", done.stdout, re.M)
        assert float(printed[1]) == pytest.approx(loss() - full, abs=1e-4)


@pytest.mark.slow
def test_a_text_that_has_changed_is_refused_and_one_that_has_moved_is_named(
    tiny, command, tmp_path, text_file
):
    folder = str(train_anew(tiny("norm=none")))
    moved = text_file.rename(tmp_path / "moved.txt")
    done = command(PROGRAM, folder, "--data", str(moved))
    assert "the model has no norm, so there is no figure" in done.stdout
    moved.write_text(moved.read_text() + "more")
    check_refused(command(PROGRAM, folder, "--data", str(moved)), "the text is not the one that")
    check_refused(command(PROGRAM, folder, "--out", "maps.txt"), "use .svg, .png or .pdf")
    check_refused(command(PROGRAM, str(tmp_path)), "no checkpoint")
