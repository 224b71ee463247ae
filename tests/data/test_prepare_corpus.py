"""python -m scripts.prepare_corpus: every kind of file, any interruption, and refused input."""

import bz2
import gzip
import json
import lzma
import random
import signal
import socket
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from cli.errors import checked
from data import tokenizers
from data.errors import DataError, UserError
from data.prepared import Prepared
from data.prepared import prepare as prepared
from scripts import prepare_corpus
from tests.conftest import LETTERS
from tests.helpers import programs
from tests.helpers.programs import Program

GPT2 = tokenizers.gpt2()
TEXTS = [None, *(LETTERS[start : start + 200] + "\r\u2028é" for start in range(0, len(LETTERS), 200))]


def zstd(content: bytes) -> bytes:
    return pyarrow.compress(content, codec="zstd", asbytes=True)


def table(columns: dict[str, list[object]]) -> bytes:
    pyarrow.parquet.write_table(
        pyarrow.table(columns), sink := pyarrow.BufferOutputStream(), row_group_size=3
    )
    return sink.getvalue().to_pybytes()


def written(file: Path, content: bytes | str) -> Path:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def prepared_corpus(files: list[Path], out: Path, **changes) -> Prepared:
    """Prepare a corpus, and load it as train.py does."""
    settings = {"tokenizer": "gpt2", "vocab_size": 300, "val_fraction": 0.3, "field": "text"} | changes
    prepare_corpus.prepare(checked(prepare_corpus.Settings, {"files": files, "out": out} | settings))
    unused = {"tokenizer": "char", "vocab_size": 300, "val_fraction": None, "cache": str(out / "none")}
    return prepared(corpus="prepared", path=str(out), verify=True, **unused)


# Other fields may change their type from line to line, and be missing.
ROWS = [{"id": n if n % 2 else str(n), "text": text} for n, text in enumerate(TEXTS)]
ROWS.append({"text": "end", "new": 1})
LINES = ("\ufeff" + "\n \n".join(map(json.dumps, ROWS))).encode()
HALF = len(LINES) // 2  # two frames, as tools that compress in parallel write them


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("[a] *.jsonl", LINES),
        ("a.jsonl.gz", gzip.compress(LINES)),
        ("a.jsonl.bz2", bz2.compress(LINES)),
        ("a.jsonl.xz", lzma.compress(LINES)),
        ("a.jsonl.zst", zstd(LINES[:HALF]) + zstd(LINES[HALF:])),
        ("a.parquet", table({"id": range(len(ROWS)), "text": [row["text"] for row in ROWS]})),
    ],
)
def test_documents_of_all_kinds_of_files_are_kept_each_with_its_end(tmp_path, name, content):
    data = prepared_corpus([written(tmp_path / name, content)], tmp_path / "out")
    found = [GPT2.decode(split).decode().split("<|endoftext|>") for split in (data.train, data.val)]
    assert [split[-1] for split in found] == ["", ""]
    assert sorted(found[0][:-1] + found[1][:-1]) == sorted(row["text"] or "" for row in ROWS)
    assert 0.1 < len(data.val) / (len(data.val) + len(data.train)) < 0.6


def refuse(*_):
    raise AssertionError("the network")


def test_lines_of_text_are_one_text_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    lines = [f"{n} line\n\n\nand another,\r\nwhich  is longer, 一二三\n" for n in range(100)]
    files = [written(tmp_path / "a.txt", "".join(lines)), written(tmp_path / "b.md", "the end\n")]
    for tokenizer in ("gpt2", "bpe"):
        data = prepared_corpus(files, tmp_path / tokenizer, tokenizer=tokenizer, val_fraction=0.25)
        splits = [data.tokenizer.decode(tokens).decode() for tokens in (data.train, data.val)]
        assert sorted("".join(splits)) == sorted("".join(lines).replace("\r", "") + "the end\n")
        tokens = sum(len(data.tokenizer.encode(split)) for split in splits)
        assert abs(len(data.train) + len(data.val) - tokens) <= 20  # lines are not tokenized one by one


@pytest.mark.slow
def test_killed_and_started_again_it_gives_the_same_tokens_and_leaves_nothing(tmp_path):
    words, draw = LETTERS.split(" "), random.Random(0)
    file = written(tmp_path / "a.txt", "\n".join(" ".join(draw.choices(words, k=50)) for _ in range(10_000)))
    (tmp_path / ".out-settings").mkdir()  # of somebody else
    command = ("scripts/prepare_corpus.py", "a.txt", "--out", "out", "--val-fraction", "0.05")
    with Program(*command, cwd=tmp_path) as process:
        process.until(lambda: any(each.stat().st_size for each in tmp_path.glob(".out-*/train.bin")))
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "out").exists()
    programs.succeed(*command, cwd=tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"a.txt", "out", ".out-settings"}
    whole = prepared_corpus([file], tmp_path / "whole", val_fraction=0.05)
    for split in ("train.bin", "val.bin"):
        assert (whole.folder / split).read_bytes() == (tmp_path / "out" / split).read_bytes()


def test_bpe_learns_the_line_breaks_of_the_text(tmp_path):
    file = written(tmp_path / "a.txt", LETTERS)
    data = prepared_corpus([file], tmp_path / "out", tokenizer="bpe")
    assert not any(b"\n\n" in token for token in data.tokenizer.tokens)  # the text has no empty line


def test_a_folder_that_exists_is_not_written_over(tmp_path, text_file):
    prepared_corpus([text_file], tmp_path / "out")
    with pytest.raises(DataError, match="out already exists; choose another folder"):
        prepared_corpus([text_file], tmp_path / "out")


NOISE = random.Random(0).randbytes(9000).hex().encode()
UNREADABLE = [
    ("a.txt", b"abc\n\xff\xfe" * 900, "can't decode byte 0xff in position 4"),
    ("a.jsonl", b'{"text": 5}\n', "5 is not a text"),
    ("a.jsonl", b'{"txet": "a"}\n', "'text'.; check the file and --field"),
    ("a.jsonl", b"[" * 100_000 + b"\n", "a.jsonl: cannot be read"),
    ("a.txt.zst", zstd(NOISE)[:5000], "cannot be read"),
    ("a.parquet", table({"txet": ["a"]}), "a.parquet: cannot be read"),
    ("a.txt", b"short", "too few lines"),
    ("a.csv", b"a,b\n", "unknown extension"),
]


def test_an_unreadable_file_is_named_and_leaves_nothing(tmp_path):
    for number, (name, content, message) in enumerate(UNREADABLE):
        (folder := tmp_path / str(number)).mkdir()
        with pytest.raises(DataError, match=message):
            prepared_corpus([written(folder / name, content)], folder / "out")
        assert [file.name for file in folder.iterdir()] == [name]


def test_a_wrong_argument_is_refused(tmp_path, text_file):
    for wrong in ({"vocab_size": 10}, {"val_fraction": 0.9}, {"tokenizer": "char"}):
        with pytest.raises(UserError):
            prepared_corpus([text_file], tmp_path / "out", **wrong)
