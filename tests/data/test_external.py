"""Folders of tokens made elsewhere: by nanoGPT, by llm.c, in several files, or damaged."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import tokenizers
from data.shards import Shards
from data.token_cache import prepare as prepared
from system.errors import DataError


@pytest.mark.parametrize("train", [5, {}, [], {"tokens": 1, "sha256": "", "files": 5}])
def test_a_damaged_meta_is_one_line(tmp_path, train):
    tokens = np.arange(100, dtype=np.uint16)
    for split in ("train", "val"):
        tokens.tofile(tmp_path / f"{split}.bin")
    meta = {"tokenizer": tokenizers.gpt2().spec, "train": train}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match="meta.json: missing or damaged"):
        adopted(tmp_path, tmp_path / "cache")


def test_a_name_with_val_inside_a_word_is_not_a_validation_file(tmp_path):
    tokens = np.arange(100, dtype=np.uint16)
    for name in ("retrieval_train_1.bin", "retrieval_val_1.bin"):
        tokens.tofile(tmp_path / name)
    data = adopted(tmp_path, tmp_path / "cache")
    assert len(data.train) == len(data.val) == 100
    tokens.tofile(tmp_path / "train_val.bin")
    with pytest.raises(DataError, match="train and val"):
        adopted(tmp_path, tmp_path / "cache")


def llmc(file: Path, tokens: np.ndarray, magic: int = 20240520, version: int = 1) -> None:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    file.write_bytes(header.tobytes() + tokens.tobytes())


def adopted(folder: Path, cache: Path):
    options = {"vocab_size": 300, "val_fraction": None, "verify": True}
    return prepared(corpus="prepared", path=str(folder), tokenizer="gpt2", cache=str(cache), **options)


def test_llmc_files_may_have_our_names(tmp_path):
    tokens = np.random.default_rng(0).integers(50257, size=1000).astype(np.uint16)
    (folder := tmp_path / "llmc").mkdir()
    for split, part in {"train": tokens[:900], "val": tokens[900:]}.items():
        llmc(folder / f"{split}.bin", part)
    data = adopted(folder, tmp_path / "cache")
    assert data.train[np.arange(900)].tolist() == tokens[:900].tolist()
    assert data.val.tolist() == tokens[900:].tolist()


def test_llmc_files_are_read_as_they_are(tmp_path):
    tokens = np.random.default_rng(0).integers(50257, size=1000).astype(np.uint16)
    (folder := tmp_path / "llmc").mkdir()
    for number, part in enumerate(np.split(tokens[:900], [100, 500]), start=1):
        llmc(folder / f"fineweb_train_{number:06d}.bin", part)
    llmc(folder / "fineweb_val_000000.bin", tokens[900:])
    data = adopted(folder, tmp_path / "cache")
    assert data.train[np.arange(900)].tolist() == tokens[:900].tolist()
    assert data.val.tolist() == tokens[900:].tolist()
    llmc(folder / "fineweb_val_000000.bin", tokens[900:], version=2)
    with pytest.raises(DataError, match="version 2"):
        adopted(folder, tmp_path / "cache")


@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(sum), seed=st.integers(0, 99))
def test_shards_are_one_array(lengths, seed):
    draw = np.random.default_rng(seed)
    whole = draw.integers(100, size=sum(lengths)).astype(np.uint16)
    shards = Shards(np.split(whole, np.cumsum(lengths)[:-1]))
    assert len(shards) == len(whole)
    positions = draw.integers(len(whole), size=(4, 5))
    assert (shards[positions] == whole[positions]).all()
