"""A prepared folder holds the text's tokens exactly, is built once, and is refused if damaged."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import token_files, tokenizers
from data.errors import DataError
from data.prepared import Prepared, prepare

TEXT = "some text that is long enough for two splits"


def prepare_text(folder: Path, content: str, name: str = "text", **changes) -> Prepared:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content.encode())
    options = {"corpus": "text", "path": str(folder / name), "tokenizer": "char", "val_fraction": 0.1}
    options |= {"vocab_size": 300, "verify": False, "cache": str(folder / "cache")}
    return prepare(**options | changes)


# Fingerprints name runs and say which runs saw the same tokens: they must never change.
FINGERPRINTS = {
    "char": "0210d3ae176517116417da49e8ac03fe97a508a8df0ce87de0b339ca27002c53",
    "bpe": "2e4fba5a68f9789eb901ec286d17b0b57432911b167090ed9629955081408431",
    "gpt2": "6afa5d772618f94e4473ca0cb6f20f42db7cc31823fe35104ae4966b6b10ee91",
}


@pytest.mark.parametrize("tokenizer", FINGERPRINTS)
def test_the_plays_fingerprints_are_those_of_earlier_runs(tmp_path, tokenizer):
    data = prepare_text(tmp_path, "", corpus="shakespeare", tokenizer=tokenizer, vocab_size=1024)
    assert data.fingerprint == FINGERPRINTS[tokenizer]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.floats(0.01, 0.99))
@settings(max_examples=30)
def test_the_splits_decode_to_the_text_byte_for_byte(tmp_path_factory, text, val_fraction):
    data = prepare_text(tmp_path_factory.mktemp("any"), text, val_fraction=val_fraction)
    assert data.tokenizer.decode([*data.train, *data.val]) == text.encode()
    assert len(data.train) == int(len(text) * (1 - val_fraction))  # as nanoGPT cuts


def test_the_files_are_nanogpts_layout(tmp_path):
    data = prepare_text(tmp_path, TEXT)
    for split, tokens in (("train", data.train), ("val", data.val)):
        assert np.fromfile(data.folder / f"{split}.bin", np.uint16).tolist() == tokens.tolist()


def test_more_than_65536_characters_take_uint32_and_do_not_wrap(tmp_path):
    text = "".join(map(chr, range(0x10000, 0x10000 + 70_000)))
    data = prepare_text(tmp_path, text)
    assert data.train.dtype == np.uint32
    assert data.tokenizer.decode([*data.train, *data.val]) == text.encode()


def test_it_is_built_once_and_named_by_its_content_and_not_by_its_path(tmp_path, capsys):
    with ThreadPoolExecutor(8) as pool:  # at once
        data = list(pool.map(lambda i: prepare_text(tmp_path, TEXT * 1000, name=f"{i}"), range(8)))
    assert "preparing text with the tokenizer char" in capsys.readouterr().out
    data.append(prepare_text(tmp_path, TEXT * 1000, name="later"))
    assert capsys.readouterr().out == ""
    assert len({each.fingerprint for each in data}) == 1
    assert [*(tmp_path / "cache").iterdir()] == [data[0].folder]
    others = [{"val_fraction": 0.3}, {"tokenizer": "bpe"}, {"tokenizer": "bpe", "vocab_size": 270}]
    others = [prepare_text(tmp_path, TEXT * 1000, **changes) for changes in others]
    assert len({each.fingerprint for each in (data[0], *others)}) == 4
    assert prepare_text(tmp_path, TEXT * 1000, vocab_size=270).folder == data[0].folder  # only bpe has a size


def test_a_damaged_folder_is_refused_with_what_to_do(tmp_path):
    folder = prepare_text(tmp_path, TEXT).folder
    for file in (folder / "train.bin", folder / "meta.json"):
        intact = file.read_bytes()
        flipped = intact[:9] + bytes([intact[9] ^ 128]) + intact[10:]
        for damaged in (None, intact[:-1], b"", flipped):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            with pytest.raises(DataError, match=f"{file.name}: .*; delete {folder}, and it will be prepared"):
                prepare_text(tmp_path, TEXT)
        file.write_bytes(intact)


def test_a_large_file_is_verified_on_request(tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "ALWAYS_VERIFIED", 10)
    file = prepare_text(tmp_path, TEXT).folder / "train.bin"
    file.write_bytes(file.read_bytes()[:-2] + b"\1\0")
    prepare_text(tmp_path, TEXT)
    with pytest.raises(DataError, match=r"train\.bin: fails its checksum"):
        prepare_text(tmp_path, TEXT, verify=True)


def test_the_splits_are_the_same_text_under_every_tokenizer(tmp_path):
    for tokenizer in FINGERPRINTS:
        data = prepare_text(tmp_path, "hello world, hello! " * 10, tokenizer=tokenizer, val_fraction=0.5)
        assert {data.tokenizer.decode(split) for split in (data.train, data.val)} == {
            b"hello world, hello! " * 5
        }


def test_a_split_shorter_than_a_context_is_an_error_with_both_numbers(tmp_path):
    data = prepare_text(tmp_path, "x" * 100)  # 90 and 10
    data.check_length(9)
    with pytest.raises(DataError, match=r"validation split has 10 tokens.*block_size=10 needs at least 11"):
        data.check_length(10)
    with pytest.raises(DataError, match="training split has 90 tokens"):
        data.check_length(90)


def test_what_cannot_be_prepared_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"^data.cache: \S+/file: Not a directory; choose a writable folder"):
        prepare_text(tmp_path, TEXT, cache=str(tmp_path / "file"))
    weights = {"tokenizer": "init_from", "spec": {"kind": "char", "chars": "abc"}}
    with pytest.raises(DataError, match="data: character 'é' .* at position 5 "):
        prepare_text(tmp_path, "abc" * 35 + "abcaé", val_fraction=0.05, **weights)


def test_the_end_of_a_document_is_one_byte(tmp_path):
    gpt2 = tokenizers.gpt2()
    tokens = np.array([*gpt2.encode("x hello"), gpt2.vocab_size - 1] * 2, np.uint16)
    assert Prepared(tmp_path, tokens, tokens, gpt2, "").val_bytes() == len(" hello") + 1 + len("x hello") + 1
