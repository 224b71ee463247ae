"""Folders of tokens made elsewhere: by nanoGPT, by llm.c, in several files, or damaged."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import tokenizers
from data.errors import DataError
from data.prepared import Prepared
from data.token_files import Shards
from tests.conftest import ROOT
from tests.data.test_prepared import prepare_text

GPT2 = tokenizers.gpt2()
TOKENS = np.random.default_rng(0).integers(50257, size=1000).astype(np.uint16)


def nanogpts(folder: Path, train=(31373, 995, 50256), val=(995, 31373), dtype="uint16") -> Path:
    """Write what nanoGPT's data/shakespeare/prepare.py writes."""
    folder.mkdir()
    np.array(train, dtype).tofile(folder / "train.bin")
    np.array(val, dtype).tofile(folder / "val.bin")
    return folder


def llmc(file: Path, tokens: np.ndarray, magic: int = 20240520, promised: int | None = None) -> None:
    header = np.zeros(256, "<i4")
    header[:3] = magic, 1, len(tokens) if promised is None else promised
    file.write_bytes(header.tobytes() + tokens.tobytes())


def described(folder: Path, content: object = None, **keys) -> None:
    """Write a meta.json, as the program that prepared the folder would."""
    content = {"tokenizer": {"kind": "char", "chars": "abc"}} | keys if content is None else content
    (folder / "meta.json").write_text(json.dumps(content))


def external(folder: Path, tokenizer: str = "gpt2", **more) -> Prepared:
    return prepare_text(folder.parent, "", corpus="prepared", path=str(folder), tokenizer=tokenizer, **more)


def test_nanogpts_folder_is_gpt2s_tokens_read_through_once_and_stays_as_it_is(tmp_path, capsys):
    folder = nanogpts(tmp_path / "nano", range(1000), range(100))
    data = external(folder)
    assert data.fingerprint == "baef48011926026d904174d4574a2f5f98b501f9c14d635c15efc1990f5be986"  # for ever
    assert data.tokenizer.decode(data.train) == GPT2.decode(range(1000))
    assert sorted(file.name for file in folder.iterdir()) == ["train.bin", "val.bin"]
    assert external(folder).fingerprint == data.fingerprint
    assert capsys.readouterr().out.count("reading the token files once") == 1


def test_the_same_tokens_are_the_same_data_wherever_they_came_from(tmp_path):
    ours = prepare_text(tmp_path, "hello world " * 20, tokenizer="gpt2")
    elsewhere = nanogpts(tmp_path / "elsewhere", ours.train, ours.val)
    assert external(elsewhere).fingerprint == ours.fingerprint == external(ours.folder, "char").fingerprint


def test_a_folder_may_describe_its_own_tokenizer_and_type(tmp_path):
    folder = nanogpts(tmp_path / "chars", [0, 1, 2, 0], [2, 1], "uint32")
    fingerprints = set()
    for keys in ({"dtype": "uint32"}, {"dtype": "uint16"}, {"tokenizer": {"kind": "char", "chars": "abd"}}):
        described(folder, **keys)
        fingerprints.add((data := external(folder)).fingerprint)
        if keys == {"dtype": "uint32"}:
            assert data.tokenizer.decode(data.train) == b"abca"
    assert len(fingerprints) == 3


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


def test_llmc_files_are_read_as_they_are_without_hidden_ones(tmp_path):
    names = [f"web_retrieval_{part}.bin" for part in ("train_1", "train_2", "val_0")]  # "val" in a word
    for magic, dtype in ((20240520, "uint16"), (20240801, "uint32")):
        (folder := tmp_path / dtype).mkdir()
        for name, part in zip(names, np.split(TOKENS, [400, 900]), strict=True):
            llmc(folder / name, part.astype(dtype), magic)
            (folder / f"._{name}").write_bytes(b"what macOS writes beside it")
        data = external(folder)
        assert data.train[np.arange(900)].tolist() == TOKENS[:900].tolist()
        assert data.val.tolist() == TOKENS[900:].tolist()


@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(sum), seed=st.integers(0, 99))
def test_shards_are_one_array(lengths, seed):
    draw = np.random.default_rng(seed)
    whole = draw.integers(100, size=sum(lengths)).astype(np.uint16)
    shards = Shards(np.split(whole, np.cumsum(lengths)[:-1]))
    assert len(shards) == len(whole)
    positions = draw.integers(len(whole), size=(4, 5))
    assert (shards[positions] == whole[positions]).all()


def wrote(name: str, content: bytes):
    return lambda folder: (folder / name).write_bytes(content)


def said(content: object = None, **keys):
    return lambda folder: described(folder, content, **keys)


BAD_META = r"meta\.json: missing or damaged \(.+\); prepare the files again"
UNUSABLE = [
    (lambda folder: (folder / "train.bin").unlink(), r"train\.bin: no such file.*train\.bin and val"),
    (wrote("val.bin", b"abc"), r"val\.bin: .* has 1 tokens and 1 bytes"),
    (wrote("val.bin", b"\xff\xff"), "has token 65,535, but .* 50,257"),
    (wrote("val.bin", TOKENS.astype("uint32").tobytes()), "val.bin: every second token is 0"),
    (lambda folder: llmc(folder / "val.bin", TOKENS, promised=9), "has 1,000 tokens of the 9"),
    (lambda folder: llmc(folder / "val.bin", TOKENS.astype("uint32"), 20240801), "of 2 and of 4 bytes"),
    (wrote("meta.pkl", b""), r"meta\.pkl: a pickle, .*; docs/ecosystem\.md"),
    (said("{"), BAD_META),
    (said({"tokenizer": 5}), BAD_META),
    (said(dtype="int16"), BAD_META),
    (said(), r"train\.bin: has token 50,256, but .* has only 3"),
]


def test_an_unusable_folder_is_one_clear_error(tmp_path):
    for number, (change, message) in enumerate(UNUSABLE):
        folder = nanogpts(tmp_path / str(number))
        change(folder)
        with pytest.raises(DataError, match=message):
            external(folder)


def test_the_line_in_the_documents_turns_a_pickle_into_a_meta_json(tmp_path):
    """The pickle is as nanoGPT's data/shakespeare_char/prepare.py writes it; a shell runs the line."""
    chars = "".join(sorted("\n '\"abc"))
    folder = nanogpts(tmp_path / "shakespeare_char", [0, 1, 2, 3], [4, 5, 6])
    with pytest.raises(DataError, match="its tokenizer is unknown; add a meta.json"):
        external(folder, "char")
    tables = {"itos": dict(enumerate(chars)), "stoi": {c: i for i, c in enumerate(chars)}}
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(chars)} | tables))
    lines = (ROOT / "docs" / "ecosystem.md").read_text("utf-8").splitlines()
    [command] = [line for line in lines if "meta.pkl" in line and line.startswith("python -c")]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(command, shell=True, cwd=folder, env=os.environ | {"PATH": path}, check=True)
    data = external(folder)
    assert data.tokenizer.decode(data.train).decode() == chars[:4]
