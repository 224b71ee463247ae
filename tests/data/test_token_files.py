"""A prepared folder holds the text's tokens exactly, is built once, and is refused if damaged."""

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import token_files, tokenizers
from data.token_cache import build, prepare
from system.errors import DataError


def prepare_text(folder: Path, content: bytes | str, name: str = "text", **changes) -> token_files.Prepared:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    options = {"corpus": "text", "path": str(folder / name), "tokenizer": "char", "val_fraction": 0.1}
    options |= {"vocab_size": 300, "verify": False}
    return prepare(**options | {"cache": str(folder / "cache")} | changes)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.floats(0.01, 0.99))
@settings(max_examples=50)
def test_the_splits_decode_to_the_text_byte_for_byte(tmp_path_factory, text, val_fraction):
    data = prepare_text(tmp_path_factory.mktemp("any"), text, val_fraction=val_fraction)
    assert data.tokenizer.decode([*data.train, *data.val]) == text.encode()
    assert len(data.train) == int(len(text) * (1 - val_fraction))  # as nanoGPT cuts


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
    assert data.tokenizer.decode([*data.train, *data.val]) == text.encode()


def test_it_is_built_once_and_named_by_its_content_and_not_by_its_path(tmp_path):
    first = prepare_text(tmp_path, "some text here")
    stamp = (first.folder / "train.bin").stat().st_mtime_ns
    second = prepare_text(tmp_path, "some text here", name="elsewhere")
    assert second.folder == first.folder
    assert second.fingerprint == first.fingerprint
    assert (second.folder / "train.bin").stat().st_mtime_ns == stamp
    assert not [*first.folder.parent.glob(".preparing-*")]


def test_another_text_or_split_is_another_fingerprint(tmp_path):
    texts = ("some text here", "some text herf")
    data = [prepare_text(tmp_path, text, val_fraction=f) for text in texts for f in (0.1, 0.3)]
    assert len({each.fingerprint for each in data}) == 4


def test_many_preparers_at_once_end_with_one_folder(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        data = list(pool.map(lambda i: prepare_text(tmp_path, "to be or not" * 1000, name=f"{i}"), range(8)))
    assert len({each.fingerprint for each in data}) == 1
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [data[0].folder.name]


LONG_ENOUGH = "some text that is long enough for two splits"


@pytest.mark.parametrize("file", ["train.bin", "val.bin", "meta.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "flipped"])
def test_a_damaged_folder_is_refused_with_what_to_do(tmp_path, file, damage):
    data = prepare_text(tmp_path, LONG_ENOUGH)
    target = data.folder / file
    intact = target.read_bytes()
    flipped = intact[:9] + bytes([intact[9] ^ 128]) + intact[10:]
    damaged = {"missing": None, "cut": intact[:-1], "empty": b"", "flipped": flipped}[damage]
    target.unlink()
    if damaged is not None:
        target.write_bytes(damaged)
    with pytest.raises(DataError, match=f"{data.folder.name}.*delete .*, and it will be prepared again"):
        prepare_text(tmp_path, LONG_ENOUGH)
    assert (target.read_bytes() if target.exists() else None) == damaged


def test_a_large_file_is_read_through_on_request(tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "ALWAYS_VERIFIED", 10)
    monkeypatch.setattr(token_files, "IN_MEMORY", 10)
    file = prepare_text(tmp_path, LONG_ENOUGH).folder / "train.bin"
    file.write_bytes(file.read_bytes()[:-2] + b"\1\0")
    prepare_text(tmp_path, LONG_ENOUGH)
    with pytest.raises(DataError, match=r"train\.bin: fails its checksum"):
        prepare_text(tmp_path, LONG_ENOUGH, verify=True)


def test_a_file_that_is_cut_while_a_run_trains_ends_no_process(tmp_path):
    data = prepare_text(tmp_path, LONG_ENOUGH)
    before = np.array(data.train)
    (data.folder / "train.bin").write_bytes(b"")
    assert np.array_equal(data.train, before)


@pytest.mark.parametrize("tokenizer", ["char", "bpe", "gpt2"])
def test_the_splits_are_the_same_text_under_every_tokenizer(tmp_path, tokenizer):
    data = prepare_text(tmp_path, "hello world, hello! " * 10, tokenizer=tokenizer, val_fraction=0.5)
    assert data.tokenizer.decode(data.train) == data.tokenizer.decode(data.val) == b"hello world, hello! " * 5


def test_another_vocabulary_size_is_another_folder_only_for_a_trained_tokenizer(tmp_path):
    for kind, folders in (("char", 1), ("bpe", 2)):
        text, sizes = "hello world, hello! " * 10, (260, 270)
        data = [prepare_text(tmp_path, text, tokenizer=kind, vocab_size=size) for size in sizes]
        assert len({each.folder for each in data}) == folders


# a folder prepared elsewhere --------------------------------------------------------------------------


def nanogpts(folder: Path, train=(31373, 995, 50256), val=(995, 31373), dtype=np.uint16) -> Path:
    """Write what nanoGPT's data/shakespeare/prepare.py writes."""
    folder.mkdir()
    np.array(train, dtype).tofile(folder / "train.bin")
    np.array(val, dtype).tofile(folder / "val.bin")
    return folder


def external(folder: Path, **changes) -> token_files.Prepared:
    return prepare_text(folder.parent, "", corpus="prepared", path=str(folder), tokenizer="gpt2", **changes)


def test_nanogpts_folder_is_gpt2s_tokens_and_stays_as_it_is(tmp_path):
    folder = nanogpts(tmp_path / "openwebtext")
    data = external(folder)
    assert data.tokenizer.decode(data.train) == b"hello world<|endoftext|>"
    assert data.val.tolist() == [995, 31373]
    assert sorted(file.name for file in folder.iterdir()) == ["train.bin", "val.bin"]
    assert external(folder).fingerprint == data.fingerprint


def test_the_same_tokens_are_the_same_data_wherever_they_came_from(tmp_path):
    ours = prepare_text(tmp_path, "hello world " * 20, tokenizer="gpt2")
    elsewhere = nanogpts(tmp_path / "elsewhere", ours.train, ours.val)
    assert external(elsewhere).fingerprint == ours.fingerprint == external(ours.folder).fingerprint


def test_a_folder_may_describe_its_own_tokenizer(tmp_path):
    folder = nanogpts(tmp_path / "chars", [0, 1, 2], [2, 1], np.uint32)
    spec = {"kind": "char", "chars": "abc"}
    (folder / "meta.json").write_text(json.dumps({"tokenizer": spec, "dtype": "uint32"}))
    data = external(folder)
    assert data.tokenizer.decode(data.train) == b"abc"
    assert data.train.dtype == np.uint32


def test_a_changed_file_is_read_again_or_if_its_time_is_the_old_one_fails_its_checksum(tmp_path):
    folder = nanogpts(tmp_path / "changing")
    before = external(folder).fingerprint
    np.array([995, 995, 995], np.uint16).tofile(folder / "train.bin")
    os.utime(folder / "train.bin", ns=(12345, 12345))
    assert external(folder).fingerprint != before
    np.array([31373, 996, 50256], np.uint16).tofile(folder / "train.bin")
    os.utime(folder / "train.bin", ns=(12345, 12345))
    with pytest.raises(DataError, match=r"train\.bin: fails its checksum"):
        external(folder)


MANY_CHARACTERS = "".join(map(chr, range(0x10000, 0x10000 + 51_000)))


def describe(folder: Path, dtype: object, chars: str = MANY_CHARACTERS, **more) -> None:
    """Write a meta.json, as the program that prepared the folder would."""
    spec = {"kind": "char", "chars": chars}
    (folder / "meta.json").write_text(json.dumps({"tokenizer": spec, "dtype": dtype} | more))


def test_the_same_files_are_other_data_under_another_dtype_or_tokenizer(tmp_path):
    folder = nanogpts(tmp_path / "folder", [1, 0, 2, 0], [1, 0])
    fingerprints = set()
    for dtype, chars in (("uint16", "abc"), ("uint32", "abc"), ("uint16", "abd")):
        describe(folder, dtype, chars)
        fingerprints.add(external(folder).fingerprint)
    assert len(fingerprints) == 3


def meta(text: str):
    return lambda folder: (folder / "meta.json").write_text(text)


BAD_META = r"meta\.json: missing or damaged"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / "train.bin").unlink(),
            r"train\.bin: no such file.*train\.bin and val\.bin",
        ),
        (lambda folder: shutil.rmtree(folder), r"train\.bin: no such file"),
        (
            lambda folder: (folder / "val.bin").write_bytes(b"abc"),
            r"val\.bin: has 3 bytes, not a multiple of 2",
        ),
        (lambda folder: (folder / "val.bin").write_bytes(b"\xff\xff"), r"has token 65,535, but .* 50,257"),
        (
            lambda folder: (folder / "meta.pkl").touch(),
            r"meta\.pkl: pickles .* not opened; .* in the folder python -c",
        ),
        *((meta(text), BAD_META) for text in ("{", "[" * 100_000, "[]", '{"tokenizer": {}}')),
        *((lambda folder, dtype=dtype: describe(folder, dtype), BAD_META) for dtype in ("O", "int16", None)),
        (
            lambda folder: describe(folder, "uint16", "abc"),
            r"train\.bin: has token 50,256, but .* has only 3",
        ),
        (
            lambda folder: describe(folder, "uint16", train={"tokens": 3, "sha256": "0" * 64}),
            r"meta\.json: does not match the files of train",
        ),
    ],
)
def test_an_unusable_folder_is_one_clear_error(tmp_path, change, message):
    folder = nanogpts(tmp_path / "folder")
    change(folder)
    before = {file: file.read_bytes() for file in folder.rglob("*")}
    with pytest.raises(DataError, match=message):
        external(folder)
    assert {file: file.read_bytes() for file in folder.rglob("*")} == before


def test_the_line_in_the_error_turns_a_pickle_into_a_meta_json(tmp_path):
    """The pickle is as nanoGPT's data/shakespeare_char/prepare.py writes it; a shell runs the line."""
    chars = "".join(sorted("\n '\"abc"))
    folder = nanogpts(tmp_path / "shakespeare_char", [0, 1, 2, 3], [4, 5, 6])
    tables = {"itos": dict(enumerate(chars)), "stoi": {c: i for i, c in enumerate(chars)}}
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(chars)} | tables))
    with pytest.raises(DataError) as raised:
        external(folder)
    command = str(raised.value).partition(" run in the folder ")[2]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(command, shell=True, cwd=folder, env=os.environ | {"PATH": path}, check=True)
    data = external(folder)
    assert data.tokenizer.decode(data.train).decode() == chars[:4]


def test_tokens_of_an_unknown_tokenizer_are_refused(tmp_path):
    folder = nanogpts(tmp_path / "folder")
    with pytest.raises(DataError, match="its tokenizer is unknown; add a meta.json"):
        prepare_text(tmp_path, "", corpus="prepared", path=str(folder), tokenizer="char")


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


def test_the_end_of_a_document_is_one_byte(tmp_path):
    gpt2 = tokenizers.gpt2()
    tokens = np.array([*gpt2.encode("x hello"), gpt2.vocab_size - 1] * 2, np.uint16)
    data = token_files.Prepared(tmp_path, tokens, tokens, gpt2, "")
    assert data.val_bytes() == len(" hello") + 1 + len("x hello") + 1


def test_a_character_that_cannot_be_tokenized_is_named_with_its_split(tmp_path):
    of_training = lambda train, val, vocab_size: tokenizers.train_char(train, "", vocab_size)  # noqa: E731
    with pytest.raises(DataError, match="data: val split: character 'é' .* at position 5 "):
        build(tmp_path / "tokens", "abc" * 35 + "abcaé", of_training, 0, 0.05)
