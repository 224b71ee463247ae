"""python -m data.prepare: files of any size and kind, by several processes, ended and begun again."""

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import making, tokenizers
from data.blocks import Block, blocks
from data.prepare import Bar, prepare
from data.shards import Shards
from data.token_cache import prepare as prepared
from data.workers import encoder
from system.errors import DataError
from tests.conftest import LETTERS
from tests.helpers.programs import ROOT

GPT2 = tokenizers.gpt2("", "", 0)
PATTERNS = [tokenizers.BytePairTokenizer(name, GPT2.tokens) for name in tokenizers.PATTERNS]


def made(files: list[Path], out: Path, **changes) -> Path:
    how = {"tokenizer": "gpt2", "vocab_size": 300, "val_fraction": 0.3, "field": "text", "processes": 2}
    prepare(files=files, out=out, **how | changes)
    return out


def tokens_of(folder: Path, split: str) -> np.ndarray:
    meta = json.loads((folder / "meta.json").read_text())
    return np.concatenate(
        [np.fromfile(folder / file["name"], meta["dtype"]) for file in meta[split]["files"]]
    )


def texts_of(block: Block) -> list[str]:
    return ["".join(document) for document in block.documents()]


def content_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def assert_a_function_of_the_start(file: Path, every: list[Block], size: int) -> None:
    """From any block on they are the same."""
    for number, block in enumerate(every):
        again = [(b.content, b.end) for b in blocks(file, 0, block.start, size, "text")]
        assert again == [(b.content, b.end) for b in every[number:]]


TEXTS = st.text(st.sampled_from("aé1 \n\r\t!'.—中\U0001f600sS"), min_size=1, max_size=400)


@given(text=TEXTS, size=st.integers(1, 60))
@settings(max_examples=300, deadline=None)
def test_blocks_are_the_file_and_their_tokens_those_of_the_whole(tmp_path_factory, text, size):
    file = tmp_path_factory.getbasetemp() / "text.txt"
    file.write_bytes(text.encode())
    every = [*blocks(file, 0, 0, size, "text")]
    assert b"".join(block.content for block in every) == text.encode()
    assert [block.start for block in every] == [0, *(block.end for block in every)][:-1]
    assert_a_function_of_the_start(file, every, size)
    for tokenizer in PATTERNS:
        parts = np.concatenate([encoder(tokenizer)(block) for block in every])
        assert parts.tolist() == tokenizer.encode(text).tolist()


@given(lengths=st.lists(st.integers(0, 300), min_size=1, max_size=30), size=st.integers(1, 100))
@settings(deadline=None)
def test_blocks_of_documents_are_whole_lines_however_long(tmp_path_factory, lengths, size):
    file = tmp_path_factory.getbasetemp() / "lines.jsonl"
    file.write_text("".join(json.dumps({"text": "x" * length}) + "\n" for length in lengths))
    every = [*blocks(file, 0, 0, size, "text")]
    assert [len(text) for block in every for text in texts_of(block)] == lengths
    assert_a_function_of_the_start(file, every, size)


def test_a_block_ends_behind_a_line_that_is_long_and_one_that_is_too_long_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "lines.jsonl"
    file.write_bytes((b"x" * 1000 + b"\n") + b"y\n" * 2000)
    assert len(next(blocks(file, 0, 0, 100, "text")).content) <= 1100
    monkeypatch.setattr("data.blocks.LONGEST", 900)
    with pytest.raises(DataError, match="a line of more than 900 bytes"):
        [*blocks(file, 0, 0, 100, "text")]


@pytest.mark.parametrize("ends", [".\n", ".\r\n", "\r\n"])
def test_however_lines_end_a_text_has_many_blocks(tmp_path, ends):
    file = tmp_path / "text.txt"
    file.write_bytes(f"It is a line of words{ends}".encode() * 1000)
    assert len([*blocks(file, 0, 0, 1000, "text")]) >= 20


def test_all_kinds_of_files_give_the_same_tokens(tmp_path):
    pytest.importorskip("zstandard")
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet
    import zstandard

    documents = [LETTERS[start : start + 500] for start in range(0, len(LETTERS), 500)]
    lines = "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(documents)).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    half = len(lines) // 2  # of two frames, as tools that compress in parallel make them
    frames = b"".join(zstandard.compress(part) for part in (lines[:half], lines[half:]))
    (tmp_path / "a.jsonl.zst").write_bytes(frames)
    pyarrow.parquet.write_table(pyarrow.table({"text": documents}), tmp_path / "a.parquet", row_group_size=3)
    wanted = [token for text in documents for token in [*GPT2.encode(text), GPT2.vocab_size - 1]]
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"):
        every = [*blocks(tmp_path / name, 0, 0, 2000, "text")]
        found = np.concatenate([encoder(GPT2)(block) for block in every])
        assert found.tolist() == wanted, name
        again = [*blocks(tmp_path / name, 0, every[1].start, 2000, "text")]
        assert [*map(texts_of, again)] == [*map(texts_of, every[1:])]


@pytest.mark.parametrize("tokenizer", ["gpt2", "char", "bpe"])
def test_what_is_prepared_trains_and_says_how_it_was_made(tmp_path, text_file, tokenizer):
    out = made([text_file], tmp_path / "out", tokenizer=tokenizer)
    config = {
        "corpus": "prepared",
        "tokenizer": "char",
        "vocab_size": 300,
        "val_fraction": None,
        "verify": True,
    }
    data = prepared(path=str(out), cache=str(tmp_path / "cache"), **config)
    whole = b"".join(
        data.tokenizer.decode(np.fromfile(out / f"{split}-00000.bin", data.train.dtype))
        for split in ("train", "val")
    )
    assert sorted(whole.decode()) == sorted(LETTERS)
    assert not (tmp_path / "out.part").exists()


PROGRAM = """
import signal
import sys
if __name__ == "__main__":
    # as on a terminal: where the tests run in a shell's background, Ctrl-C is ignored from the start
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import data.making
    data.making.SHARD = int(sys.argv.pop(1))
    from data.prepare import main
    main()
"""


def started(cwd: Path, *arguments: str, shard: int = 1500) -> subprocess.Popen:
    """The program, which begins a new file after so many tokens."""
    program = cwd / "program.py"
    if not program.exists():
        program.write_text(PROGRAM)
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "program.py", str(shard), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=cwd, env=environ, text=True, start_new_session=True, **pipes)


def some_text(folder: Path) -> tuple[str, ...]:
    """Arguments that make more than twenty files of it."""
    draw = random.Random(0)
    for name in ("a.txt", "b.jsonl"):
        words = [draw.choice(LETTERS.split(" ")) for _ in range(60_000)]
        lines = (" ".join(words[i : i + 50]) for i in range(0, len(words), 50))
        document = name.endswith(".jsonl")
        content = "".join((json.dumps({"text": line}) if document else line) + "\n" for line in lines)
        (folder / name).write_text(content)
    return ("a.txt", "b.jsonl", "--val-fraction", "0.05", "--processes", "2")


def wait_for_files(process: subprocess.Popen, work: Path, number: int) -> None:
    progress = work / "progress.json"
    while not progress.exists() or len(json.loads(progress.read_text())["shards"]) < number:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)


def test_killed_on_the_way_it_goes_on_and_ends_with_the_same_files(tmp_path):
    arguments = some_text(tmp_path)
    whole = started(tmp_path, *arguments, "--out", "whole")
    assert whole.communicate(timeout=60)[1] == ""
    assert len([*(tmp_path / "whole").glob("train-*")]) > 20
    for number in (5, 12):  # files that are there when it is killed
        process = started(tmp_path, *arguments, "--out", "parts")
        wait_for_files(process, tmp_path / "parts.part", number)
        process.kill()
        process.communicate()
    last = started(tmp_path, *arguments, "--out", "parts")
    output, errors = last.communicate(timeout=60)
    assert errors == ""
    assert "goes on" in output
    assert content_of(tmp_path / "parts") == content_of(tmp_path / "whole")
    assert [*tmp_path.glob("*.part*")] == []
    again = started(tmp_path, *arguments, "--out", "parts").communicate(timeout=60)
    assert "is there already" in again[0]


def test_a_second_process_is_refused_and_the_first_goes_on(tmp_path):
    arguments = some_text(tmp_path)
    first = started(tmp_path, *arguments, "--out", "out")
    wait_for_files(first, tmp_path / "out.part", 3)
    first.send_signal(signal.SIGSTOP)
    second = started(tmp_path, *arguments, "--out", "out")
    refused = second.communicate(timeout=60)[1]
    assert re.fullmatch(rf"error: out: process {first.pid} on \S+ is making it; .*\n", refused)
    assert second.returncode == 1
    first.send_signal(signal.SIGCONT)
    assert first.communicate(timeout=60)[1] == ""
    started(tmp_path, *arguments, "--out", "alone").communicate(timeout=60)
    assert content_of(tmp_path / "out") == content_of(tmp_path / "alone")


def test_begun_several_times_at_once_one_makes_it(tmp_path):
    arguments = some_text(tmp_path)
    every = [started(tmp_path, *arguments, "--out", "out") for _ in range(5)]
    ends = [(*process.communicate(timeout=120), process.returncode) for process in every]
    made_it = [said for said, _, code in ends if code == 0 and "already" not in said]
    assert len(made_it) == 1
    for said, errors, code in ends:
        assert code == 0 or (code == 1 and "is making it" in errors and errors.count("\n") == 1), said
    started(tmp_path, *arguments, "--out", "alone").communicate(timeout=60)
    assert content_of(tmp_path / "out") == content_of(tmp_path / "alone")


def test_ctrl_c_ends_it_with_one_line_and_its_processes_with_it(tmp_path):
    arguments = ("a.txt", "b.jsonl") * 4 + some_text(tmp_path)  # so that it is not done before it is ended
    whole = started(tmp_path, *arguments, "--out", "whole")
    whole.communicate(timeout=60)
    for number, later in ((0, 0), (0, 0.1), (0, 0.2), (0, 0.3), (10, 0)):  # while its processes start, too
        process = started(tmp_path, *arguments, "--out", "out")
        while not (tmp_path / "out.part.lock").exists():
            time.sleep(0.002)
        wait_for_files(process, tmp_path / "out.part", number)
        time.sleep(later)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=10)[1]  # none has its stderr
        assert "the same command goes on" in said, (number, later, process.returncode)
        assert said.count("\n") == 1
        assert process.returncode == 130
    assert started(tmp_path, *arguments, "--out", "out").communicate(timeout=60)[1] == ""
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")


def test_it_goes_on_where_nobody_reads_what_it_says(tmp_path):
    process = started(tmp_path, *some_text(tmp_path), "--out", "out")
    process.stdout.close()
    with process.stderr as errors:
        assert errors.read() == ""
    assert process.wait(60) == 0
    assert (tmp_path / "out" / "meta.json").exists()


def test_on_a_pipe_it_says_what_goes_on_also_while_nothing_changes(capsys, monkeypatch):
    monkeypatch.setattr("data.prepare.SECONDS", 0.05)
    with Bar(100) as bar:
        bar.begin("making a tokenizer")
        time.sleep(0.3)
        bar.show(50, 1_000_000)
        time.sleep(0.1)
    said = capsys.readouterr().out.splitlines()
    assert said.count("making a tokenizer") >= 2
    assert said[-1].startswith("50%  1.0 million tokens, ")


def test_other_files_or_arguments_start_over(tmp_path, text_file, capsys):
    work = tmp_path / "out.part"
    work.mkdir()
    (work / "progress.json").write_text(json.dumps({"how": "otherwise", "shards": [1]}))
    (work / "train-00009.bin").write_bytes(b"left")
    made([text_file], tmp_path / "out")
    assert "starts over" in capsys.readouterr().out
    assert not (tmp_path / "out" / "train-00009.bin").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"abc\n\xff\xfe" * 900, "byte 0xff at offset 4 is not UTF-8"),
        ("a.jsonl", b'{"text": 5}\n', "no object with a text 'text'"),
        ("a.jsonl", b'{"txet": "a"}\n', "or give --field"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "no object"),
        ("a.jsonl.gz", b"no gzip", "check"),
        ("a.txt", b"short", "too short"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        made([tmp_path / name], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_compressed_files_that_are_cut_are_noticed(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    text = random.Random(0).randbytes(10_000).hex().encode()
    for name, content in (("a.txt.gz", gzip.compress(text)), ("a.txt.zst", zstandard.compress(text))):
        file = tmp_path / name
        file.write_bytes(content[: len(content) // 2])
        with pytest.raises(DataError, match=name):
            [*blocks(file, 0, 0, 1000, "text")]


def test_died_before_it_was_renamed_it_has_no_text_twice(tmp_path, text_file, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device", "meta.json")

    whole = content_of(made([text_file], tmp_path / "whole"))
    with monkeypatch.context() as patch:
        write = making.write_atomically
        patch.setattr(
            making,
            "write_atomically",
            lambda f, *a, **k: (refuse if f.name == "meta.json" else write)(f, *a, **k),
        )
        with pytest.raises(OSError, match="No space"):
            made([text_file], tmp_path / "out")
    assert content_of(made([text_file], tmp_path / "out")) == whole


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path, text_file):
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "thesis.txt").write_text("precious")
    with pytest.raises(DataError, match="is not of ours"):
        made([text_file], tmp_path / "out")
    assert (tmp_path / "out.part" / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize(
    "wrong",
    [
        {"processes": 0},
        {"vocab_size": 10, "tokenizer": "bpe"},
        {"val_fraction": 0.9},
        {"files": [Path("none.txt")]},
        {"files": [Path(".")]},
    ],
)
def test_a_wrong_argument_is_refused(tmp_path, text_file, wrong):
    with pytest.raises(DataError):
        made(wrong.pop("files", [text_file]), tmp_path / "out", **wrong)
    assert not (tmp_path / "out.part").exists()


def test_a_file_of_an_unknown_kind_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n")
    with pytest.raises(DataError, match="does not say of which kind"):
        made([tmp_path / "a.csv"], tmp_path / "out")


@pytest.mark.parametrize("train", [5, {}, [], {"tokens": 1, "sha256": "", "files": 5}])
def test_a_strangers_meta_that_is_damaged_is_one_line(tmp_path, text_file, train):
    out = made([text_file], tmp_path / "out")
    meta = json.loads((out / "meta.json").read_text())
    (out / "meta.json").write_text(json.dumps(meta | {"train": train}))
    with pytest.raises(DataError, match="meta.json: damaged"):
        adopted(out, tmp_path / "cache")


def test_a_name_that_holds_val_as_a_part_of_a_word_does_not_validate(tmp_path):
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
    none = {"vocab_size": 300, "val_fraction": None, "verify": True}
    return prepared(corpus="prepared", path=str(folder), tokenizer="gpt2", cache=str(cache), **none)


def test_llmcs_files_are_read_as_they_are(tmp_path):
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
