"""python -m scripts.blocks measures a run, a checkpoint file, or a GPT-2 that others trained."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from data.errors import ConfigError
from data.tokenizers import CharTokenizer
from scripts import blocks
from tests.conftest import LETTERS, configured
from tests.helpers import gpt2_models, programs
from tests.helpers.contract import check_refused
from tests.helpers.runs import train_anew
from training.batches import fixed_windows


@pytest.fixture
def started(tmp_path, text_file):
    """The program, in an empty folder, given the text of ``tiny``."""

    def start(*arguments: object, data: Path | None = text_file):
        named = ["--data", data] if data else []
        return programs.run("scripts/blocks.py", *map(str, (*arguments, *named)), cwd=tmp_path)

    return start


def test_the_points_of_a_map_are_of_all_channels():
    channels = blocks.sampled(torch.arange(64 * 64 * 128)) % 128
    assert len(channels) == blocks.POINTS
    assert len(channels.unique()) > 100


def test_blocks_are_in_their_order_beyond_a_hundred():
    sites = ["embed", *(f"{i:02d}" for i in range(103)), "final"]
    table = blocks.depth_table({"x": dict.fromkeys(reversed(sites), 1.0)})
    assert [str(cell) for cell in table.columns[0].cells] == sites


def test_titles_are_wrapped_and_sites_stay_where_there_is_no_room():
    titles = [f"norm={n} placement={p}" for n in ("layernorm", "batchnorm") for p in ("pre", "post")]
    table = blocks.depth_table({title: {"embed": 1.0, "00": -0.000412} for title in titles})
    console = Console(width=70)
    with console.capture() as printed:
        console.print(table)
    lines = printed.get().splitlines()
    assert "…" not in printed.get()
    assert any(line.split() == ["00", *["-0.000412"] * 4] for line in lines)
    assert any("=post" in line for line in lines)


@pytest.mark.slow
def test_it_prints_a_line_a_block_and_draws_a_map_a_norm(tiny, started, tmp_path):
    folder = train_anew(tiny("norm=dyt", "placement=peri"))
    done = started(folder, "--windows", 5)
    assert done.returncode == 0, done.stderr
    assert re.search(r"norm=dyt placement=peri, step 6: loss \d\.\d{4} on 5 windows", done.stdout)
    assert re.search(r"^ +00 +[+-]0\.\d{4} +0\.\d{4} +\d", done.stdout, re.M)
    assert re.search(r"^ +01 ", done.stdout, re.M)
    assert "causality: in norm=dyt placement=peri no logit depends" in done.stdout
    drawn = (tmp_path / "maps.svg").read_text()
    for site in ("00.attn.pre", "01.mlp.out", "final"):
        assert f">{site}<" in drawn
    [newest] = folder.glob("checkpoints/step-*6.safetensors")
    of_file = started(newest, "--windows", 5, "--out", "other.png")
    prepared = "preparing text with the tokenizer char\n"
    assert of_file.stdout.splitlines()[:5] == done.stdout.removeprefix(prepared).splitlines()[:5]
    assert (tmp_path / "other.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_it_looks_at_a_gpt2_of_others(started, tmp_path):
    """Any text will do. Leaving out a block costs the same as removing it in transformers."""
    chars = "".join(sorted(set(LETTERS)))
    reference = gpt2_models.saved(tmp_path / "theirs", chars=chars)
    done = started("theirs", "--windows", 4)
    assert done.returncode == 0, done.stderr
    assert "init_from=theirs norm=layernorm placement=pre, step 0: loss" in done.stdout
    assert "causality: in init_from=theirs norm=layernorm placement=pre no logit depends" in done.stdout
    ids = CharTokenizer(chars).encode(LETTERS[int(len(LETTERS) * 0.9) :])
    [(x, y)] = fixed_windows(ids, 64, 4, 4)

    def loss() -> float:
        with torch.no_grad():
            logits = reference(torch.from_numpy(x), use_cache=False).logits
        return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).flatten()))

    whole, blocks = loss(), reference.transformer.h
    for number in range(2):
        reference.transformer.h = torch.nn.ModuleList(b for i, b in enumerate(blocks) if i != number)
        reference.config.n_layer = 1
        printed = re.search(rf"^ +0{number} +(\S+) ", done.stdout, re.M)
        assert float(printed[1]) == pytest.approx(loss() - whole, abs=1e-4)
    assert f"loss {whole:.4f} on 4 windows" in done.stdout


@pytest.mark.slow
def test_what_is_wrong_is_one_line(tiny, started, tmp_path, text_file):
    folder = train_anew(tiny())
    for arguments, error in (
        ((tmp_path,), "no checkpoint"),
        ((folder, "--out", "maps.txt"), "should end in .svg, .png or .pdf"),
        ((folder, "--windows", 0), "--windows: invalid value '0'"),
    ):
        done = started(*arguments)
        assert done.returncode != 0
        assert error in done.stderr
        assert "Traceback" not in done.stderr
    text_file.write_text(text_file.read_text() + "more")
    assert "the text is not the one that the model was trained on" in started(folder).stderr
    assert not (tmp_path / "maps.svg").exists()


@pytest.mark.slow
def test_a_checkpoint_does_not_say_which_file_is_read_nor_where_tokens_are_kept(tiny, started, tmp_path):
    folder = train_anew(tiny(f"data.cache={tmp_path}/theirs"))
    (tmp_path / "theirs").rename(tmp_path / "away")
    said = (f"error: --data: {folder} was trained on data=text {tmp_path}", "; if you trust that, ")
    check_refused(started(folder, data=None), *said)
    assert started(folder).returncode == 0
    assert not (tmp_path / "theirs").exists()
    assert [*(tmp_path / "data" / "cache").iterdir()]


@pytest.mark.slow
def test_many_windows_are_measured_in_batches(tiny, text_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = str(train_anew(tiny()))
    at_once = blocks.measure_model(folder, 5, str(text_file), None)
    monkeypatch.setattr(blocks, "TOKENS", 2 * tiny().model.block_size)
    in_batches = blocks.measure_model(folder, 5, str(text_file), None)
    assert in_batches.headline == at_once.headline
    assert in_batches.columns[blocks.COST] == pytest.approx(at_once.columns[blocks.COST], abs=1e-6)
    assert in_batches.maps["final"][0].shape[0] == 2


@pytest.mark.slow
def test_a_model_without_norms_has_no_picture_but_a_table(tiny, started, tmp_path):
    done = started(train_anew(tiny("norm=none")))
    assert done.returncode == 0, done.stderr
    assert "angular distance" in done.stdout
    assert "the model has no norm, so there is no figure" in done.stdout
    assert not (tmp_path / "maps.svg").exists()


def test_a_text_that_was_downloaded_needs_no_path_and_nothing_is_downloaded(tmp_path, monkeypatch):
    found = SimpleNamespace(fingerprint="same", check_length=lambda block_size: None)
    monkeypatch.setattr(blocks, "prepare", lambda **_: found)
    monkeypatch.setattr(blocks, "CACHE", str(tmp_path))
    meta = SimpleNamespace(fingerprint="same", config=configured("experiment=speedrun"), tokenizer={})
    with pytest.raises(
        ConfigError, match="--data: a run was trained on data=tinyshakespeare; .* give --data"
    ):
        blocks.load_data("a run", SimpleNamespace(meta=meta), None)
    (tmp_path / "tinyshakespeare.txt").touch()
    assert blocks.load_data("a run", SimpleNamespace(meta=meta), None) is found
