"""python -m scripts.prepare_corpus: every kind of file, resuming after a kill, and refused input."""

import gzip
import io
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
import pyarrow
import pyarrow.parquet

from cli.errors import checked
from data import tokenizers
from data.errors import DataError, UserError
from data.prepared import prepare as prepared
from scripts import prepare_corpus
from tests.conftest import LETTERS
from tests.helpers.programs import PATIENCE, ROOT

GPT2 = tokenizers.gpt2()
zstd = partial(pyarrow.compress, codec="zstd", asbytes=True)


def parquet(columns: dict[str, list[object]]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def prepared_corpus(files: list[Path], out: Path, **changes) -> Path:
    arguments = {"tokenizer": "gpt2", "vocab_size": 300, "val_fraction": 0.3, "field": "text", "processes": 1}
    settings = {"files": files, "out": out} | arguments | changes
    prepare_corpus.prepare(checked(prepare_corpus.Settings, settings))
    return out


def tokens_of(folder: Path, split: str) -> list[int]:
    meta = json.loads((folder / "meta.json").read_text())
    return np.fromfile(folder / f"{split}.bin", meta["dtype"]).tolist()


def content_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_newlines_are_kept_as_they_are(tmp_path):
    text = "one\r\ntwo\rthree\n\n" * 20
    (tmp_path / "dos.txt").write_bytes(text.encode())
    out = prepared_corpus([tmp_path / "dos.txt"], tmp_path / "out")
    tokens = [*tokens_of(out, "train"), *tokens_of(out, "val")]
    assert sorted(GPT2.decode(tokens)) == sorted(text.encode())  # the splits take parts from all over


@pytest.mark.slow
def test_all_kinds_of_files_give_the_same_tokens(tmp_path):
    documents = [LETTERS[start : start + 200] + "\r\u2028é" for start in range(0, len(LETTERS), 200)]
    # Other fields may change their type from line to line.
    rows = [{"id": n if n % 2 else str(n), "text": text} for n, text in enumerate(documents)]
    lines = "\n \n".join(map(json.dumps, rows)).encode()
    (tmp_path / "[a] *.jsonl").write_bytes(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    half = len(lines) // 2  # two frames, as tools that compress in parallel write them
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(map(zstd, (lines[:half], lines[half:]))))
    table = pyarrow.table({"id": range(len(documents)), "text": documents})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    ids = [[*GPT2.encode(text), GPT2.vocab_size - 1] for text in documents]
    for name in ("[a] *.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"):
        out = prepared_corpus([tmp_path / name], tmp_path / f"{name}.out")
        train, val = tokens_of(out, "train"), tokens_of(out, "val")
        assert sorted(train + val) == sorted(itertools.chain(*ids)), name
        assert all(",".join(map(str, part)) in ",".join(map(str, train + val)) for part in ids), name
        assert 0.1 < len(val) / len(train + val) < 0.6


@pytest.mark.parametrize("tokenizer", ["gpt2", "char", "bpe"])
def test_a_prepared_corpus_has_the_text_and_its_tokenizer(tmp_path, text_file, tokenizer):
    out = prepared_corpus([text_file, text_file], tmp_path / "out", tokenizer=tokenizer, val_fraction=0.5)
    more = {"vocab_size": 300, "val_fraction": None, "verify": True}
    data = prepared(corpus="prepared", path=str(out), tokenizer="char", cache=str(tmp_path / "cache"), **more)
    text = b"".join(data.tokenizer.decode(tokens_of(out, split)) for split in ("train", "val")).decode()
    assert sorted(text) == sorted(2 * LETTERS)
    assert not (tmp_path / "out.part").exists()


def test_lines_of_text_are_tokenized_together(tmp_path, text_file):
    text_file.write_text("a line\n\n\nand another,\nwhich  is longer\n" * 200, encoding="utf-8")
    out = prepared_corpus([text_file], tmp_path / "out", val_fraction=0.5)
    text = "".join(GPT2.decode(tokens_of(out, split)).decode() for split in ("train", "val"))
    tokens = len(tokens_of(out, "train")) + len(tokens_of(out, "val"))
    assert text == text_file.read_text()
    assert len(GPT2.encode(text)) <= tokens <= len(GPT2.encode(text)) + 10


def test_a_text_of_several_bytes_a_character_has_several_batches_too(tmp_path, text_file):
    text_file.write_text("一二三四五六七八九十\n\n" * 300, encoding="utf-8")
    out = prepared_corpus([text_file], tmp_path / "out", tokenizer="char", val_fraction=0.3)
    assert 0.2 < len(tokens_of(out, "val")) / len(tokens_of(out, "train")) < 0.6


PROGRAM = """
import signal
import sys
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore Ctrl-C
    from scripts import prepare_corpus
    prepare_corpus.EVERY = 1
    prepare_corpus.main()
"""


def started(cwd: Path, *arguments: str) -> subprocess.Popen:
    """Start the program, which here records its progress after every batch."""
    (cwd / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=cwd, env=environ, text=True, start_new_session=True, **pipes)


def two_files(folder: Path) -> tuple[str, ...]:
    """Write two files of more than eighty batches, and return the program's arguments."""
    draw = random.Random(0)
    for name in ("a.txt", "b.jsonl"):
        words = [draw.choice(LETTERS.split(" ")) for _ in range(60_000)]
        lines = (" ".join(words[i : i + 50]) for i in range(0, len(words), 50))
        as_json = name.endswith(".jsonl")
        (folder / name).write_text("".join((json.dumps({"text": s}) if as_json else s) + "\n" for s in lines))
    return ("a.txt", "b.jsonl", "--val-fraction", "0.05", "--processes", "2")


def wait_for_batches(process: subprocess.Popen, work: Path, number: int) -> None:
    while prepare_corpus.read_json(work / "progress.json").get("batches", -1) < number:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_and_restarted_it_gives_the_same_tokens(tmp_path, monkeypatch, capsys):
    arguments = two_files(tmp_path)
    for number in (0, 30):  # while the processes start, and while they tokenize
        with started(tmp_path, *arguments, "--out", "parts") as process:
            wait_for_batches(process, tmp_path / "parts.part", number)
            process.kill()
    monkeypatch.chdir(tmp_path)
    files = [Path("a.txt"), Path("b.jsonl")]
    parts = prepared_corpus(files, Path("parts"), val_fraction=0.05)
    assert int(re.search(r"resumes after (\d+) batches", capsys.readouterr().out)[1]) >= 30
    assert content_of(parts) == content_of(prepared_corpus(files, Path("whole"), val_fraction=0.05))
    assert [*tmp_path.glob("*.part*")] == []
    prepared_corpus(files, parts, val_fraction=0.05)
    assert "already exists" in capsys.readouterr().out


@pytest.mark.slow
def test_a_second_process_is_refused(tmp_path, text_file):
    refused = pytest.raises(DataError, match="out: another process is preparing it; ")
    with prepare_corpus.lock_output(tmp_path / "out"), refused:
        prepared_corpus([text_file], tmp_path / "out")
    prepared_corpus([text_file], tmp_path / "out")


@pytest.mark.slow
def test_ctrl_c_ends_all_its_processes_with_one_line(tmp_path):
    process = started(tmp_path, *two_files(tmp_path), "--out", "out")
    wait_for_batches(process, tmp_path / "out.part", 1)
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=PATIENCE)[1]  # ends once no process has its stderr
    assert "Traceback" not in errors
    assert errors.endswith("\ninterrupted; rerun the same command to resume\n")
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize("progress", [{"made_from": "others", "batches": 1}, {"x": 1}])
def test_what_other_files_or_arguments_began_is_kept(tmp_path, text_file, progress):
    work = tmp_path / "out.part"
    work.mkdir()
    (work / "progress.json").write_text(json.dumps(progress))
    (work / "train.bin").write_bytes(b"left")
    with pytest.raises(DataError, match="out.part: was begun with other files or settings; "):
        prepared_corpus([text_file], tmp_path / "out", val_fraction=0.5)
    assert (work / "train.bin").read_bytes() == b"left"
    prepared_corpus([text_file], tmp_path / "other", val_fraction=0.5)
    with pytest.raises(DataError, match="already exists and was built from other"):
        prepared_corpus([text_file], tmp_path / "other", val_fraction=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"abc\n\xff\xfe" * 900, "can't decode byte 0xff in position 4"),
        ("a.jsonl", b'{"text": 5}\n', "not a JSON object with a text 'text'"),
        ("a.jsonl", b'{"txet": "a"}\n', "or choose another --field"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "not a JSON object"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "not a JSON object"),
        ("a.jsonl.gz", b"not gzip", "a.jsonl.gz: .*; check the file"),
        ("a.jsonl.zst", b"not zstandard", "a.jsonl.zst: .*; check the file"),
        ("a.parquet", b"not parquet", "a.parquet: .*; check the file"),
        ("a.txt.gz", gzip.compress(random.Random(0).randbytes(9000).hex().encode())[:5000], "Truncated"),
        ("a.txt.zst", zstd(random.Random(0).randbytes(9000).hex().encode())[:5000], "Truncated"),
        ("a.parquet", parquet({"txet": ["a"]}), "no column 'text'"),
        ("a.parquet", parquet({"text": [1]}), "column 'text' is not text"),
        ("a.txt", b"short", "too short"),
        ("a.csv", b"a,b\n", "unknown extension"),
    ],
)
def test_an_unreadable_file_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepared_corpus([tmp_path / name], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_null_is_an_empty_document_in_lines_as_in_a_table(tmp_path):
    texts = [LETTERS[:90], None, LETTERS[90:180]] * 9
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "a.parquet").write_bytes(parquet({"text": texts}))
    lines, table = (
        prepared_corpus([tmp_path / name], tmp_path / f"{name}.out") for name in ("a.jsonl", "a.parquet")
    )
    assert tokens_of(lines, "train").count(GPT2.vocab_size - 1) >= 1
    ids = [sorted(tokens_of(folder, "train") + tokens_of(folder, "val")) for folder in (lines, table)]
    assert ids[0] == ids[1]


def test_an_empty_folder_may_be_there_already(tmp_path, text_file):
    (tmp_path / "out").mkdir()
    assert tokens_of(prepared_corpus([text_file], tmp_path / "out"), "train")


def test_a_folder_not_created_here_is_left_alone(tmp_path, text_file):
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "thesis.txt").write_text("precious")
    with pytest.raises(DataError, match="not created by this program"):
        prepared_corpus([text_file], tmp_path / "out")
    assert (tmp_path / "out.part" / "thesis.txt").read_text() == "precious"


WRONG = [{"processes": 0}, {"vocab_size": 10}, {"val_fraction": 0.9}, {"files": [Path("none.txt")]}]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_argument_is_refused(tmp_path, text_file, wrong):
    with pytest.raises((UserError, OSError)):
        prepared_corpus(wrong.pop("files", [text_file]), tmp_path / "out", **wrong)
    assert not (tmp_path / "out.part").exists()
