"""A prepared folder holds the text's tokens exactly, is built once, and is refused where it is damaged."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import DataError, prepared
from data.prepared import prepare


def prepare_text(folder: Path, content: bytes | str, name: str = "text", **changes) -> prepared.Prepared:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    options = {"corpus": "text", "path": str(folder / name), "tokenizer": "char", "val_fraction": 0.1}
    options |= {"vocab_size": 300, "verify": False}
    return prepare(**options | {"cache": str(folder / "cache")} | changes)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.floats(0.01, 0.99))
@settings(deadline=None, max_examples=50)
def test_the_splits_decode_to_the_text_byte_for_byte(tmp_path_factory, text, val_fraction):
    data = prepare_text(tmp_path_factory.mktemp("any"), text, val_fraction=val_fraction)
    assert data.tokenizer.decode([*data.train, *data.val]) == text
    assert len(data.val) == round(len(text) * val_fraction)


def test_the_files_are_nanogpts_layout_with_counts_and_digests(tmp_path):
    data = prepare_text(tmp_path, "hello world, hello")
    meta = json.loads((data.folder / "meta.json").read_text())
    for split, tokens in (("train", data.train), ("val", data.val)):
        raw = (data.folder / f"{split}.bin").read_bytes()
        assert np.array_equal(np.frombuffer(raw, np.uint16), tokens)
        assert meta[split] == {"tokens": len(tokens), "sha256": hashlib.sha256(raw).hexdigest()}


def test_more_than_65536_characters_take_uint32_and_do_not_wrap(tmp_path):
    text = "".join(map(chr, range(0x10000, 0x10000 + 70_000)))
    data = prepare_text(tmp_path, text)
    assert data.train.dtype == np.uint32
    assert data.tokenizer.decode([*data.train, *data.val]) == text


def test_it_is_built_once_and_named_by_its_content_and_not_by_its_path(tmp_path):
    first = prepare_text(tmp_path, "some text here")
    stamp = (first.folder / "train.bin").stat().st_mtime_ns
    second = prepare_text(tmp_path, "some text here", name="elsewhere")
    assert second.folder == first.folder
    assert second.fingerprint == first.fingerprint
    assert (second.folder / "train.bin").stat().st_mtime_ns == stamp
    assert not [*first.folder.parent.glob(".preparing-*")]


def test_other_text_or_split_is_another_fingerprint(tmp_path):
    texts = ("some text here", "some text herf")
    found = {prepare_text(tmp_path, text, val_fraction=f).fingerprint for text in texts for f in (0.1, 0.3)}
    assert len(found) == 4


def test_many_preparers_at_once_end_with_one_folder(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: prepare_text(tmp_path, "to be or not" * 1000, name=f"{i}"), range(8)))
    assert len({data.fingerprint for data in found}) == 1
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [found[0].folder.name]


@pytest.mark.parametrize("file", ["train.bin", "val.bin", "meta.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_a_damaged_folder_is_refused_with_what_to_do(tmp_path, file, damage):
    data = prepare_text(tmp_path, "some text that is long enough for two splits")
    target = data.folder / file
    if damage == "missing":
        target.unlink()
    else:
        target.write_bytes(target.read_bytes()[:-1] if damage == "cut" else b"")
    with pytest.raises(DataError, match=f"{data.folder.name}.*delete .* and it will be prepared again"):
        prepare_text(tmp_path, "some text that is long enough for two splits")


def test_a_split_shorter_than_a_context_is_an_error_with_both_numbers(tmp_path):
    data = prepare_text(tmp_path, "x" * 100)  # 90 and 10
    data.check_length(9)
    with pytest.raises(DataError, match=r"validation split has 10 tokens.*block_size=10 needs at least 11"):
        data.check_length(10)
    with pytest.raises(DataError, match="training split has 90 tokens"):
        data.check_length(90)


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="data.cache"):
        prepare_text(tmp_path, "some text", cache=str(tmp_path / "file"))
