"""Documents in pieces: the same text and the same tokens, in less memory."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data import documents, tokenizers
from data.blocks import Block
from data.workers import Workers
from system.errors import DataError

GPT2 = tokenizers.gpt2("", "", 0)
TOKENS = [*GPT2.tokens, b"\n\t"]  # only where a piece ends with these do GPT-4's patterns not cut them
PATTERNS = [tokenizers.BytePairTokenizer(name, TOKENS) for name in tokenizers.PATTERNS]
WORDS = st.lists(
    st.sampled_from([*'aZ1 \n"\\.é中\0\u2028\U0001f600[', "wintered", " of", " 's"]), max_size=60
)
TEXTS = WORDS.map("".join)


@pytest.fixture
def small(monkeypatch):
    """Pieces of some characters."""
    monkeypatch.setattr(documents, "PIECE", 10)


def document(line: bytes, field: str = "text") -> list[str]:
    content = b"before\n" + line + b"\nbehind"
    return [*documents.document(content, 7, 7 + len(line), field, Path("a.jsonl"))]


@given(text=TEXTS)
@settings(max_examples=300, deadline=None)
def test_tokens_of_pieces_are_those_of_the_text(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE", 10)
        parts = [*documents.pieces(text)]
        assert "".join(documents.ended(parts, "\n")) == text + "\n"
    assert "".join(parts) == text
    for tokenizer in PATTERNS:
        tokens = [token for part in parts for token in tokenizer.encode(part)]
        assert tokens == tokenizer.encode(text).tolist()


@given(text=TEXTS, other=TEXTS, ascii=st.booleans(), first=st.booleans())
@example(text="wintered in a far, far land and\n\t and so on", other="", ascii=True, first=True)
@example(text="wintered wintered wintered\0", other="[0]", ascii=True, first=True)
@settings(max_examples=500, deadline=None)
def test_a_lines_text_is_what_json_finds_and_its_tokens_are(text, other, ascii, first):
    keys = {"text": text, "other": [other, {"text": other}], "n": [0]}
    line = json.dumps(keys if first else dict(reversed(keys.items())), ensure_ascii=ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE", 10)
        parts = document(line)
    assert "".join(parts) == text
    for tokenizer in PATTERNS:
        tokens = [token for part in parts for token in tokenizer.encode(part)]
        assert tokens == tokenizer.encode(text).tolist()


def test_blank_lines_are_no_documents_however_long(tmp_path):
    content = b"\n \r\n" + b" " * 2**20 + b"\n\t" + b'{"text": "a"}' + b" \n\n" + b'{"text": ""}'
    block = Block(tmp_path / "a.jsonl", 0, content, "text", 0, len(content), 0)
    assert ["".join(document) for document in block.documents()] == ["a", ""]


def test_a_long_text_is_in_many_pieces(small):
    text = "The winter of our discontent was winter\n" * 50
    assert len([*documents.pieces(text)]) > 100
    assert len(document(json.dumps({"text": text}).encode())) > 50


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": ["long enough to be in pieces"]}',
        b'{"text": 5, "other": "long enough to be in pieces"}',
        b'{"text": [0], "other": "long enough to be in pieces"}',
        b'{"other": "long enough to be in pieces"}',
        b'{"text": "long enough to be in pieces"',
        b'{"text": "long enough to be \\q in pieces"}',
        b'{"text": "long enough to be \\ud800 in pieces"}',
        b'{"text": "long enough to be \xff in pieces"}',
        b'"long enough to be in pieces"',
    ],
)
def test_a_long_line_without_a_text_is_refused_as_a_short_one(small, line, monkeypatch):
    for size in (10, 1000):
        monkeypatch.setattr(documents, "PIECE", size)
        with pytest.raises(DataError, match="no object with a text 'text'"):
            document(line)


def test_a_long_line_takes_less_memory_than_it_is_long(monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 2**16)
    text = "\U0001f600 " + "The winter of our discontent " * 100_000  # as a str, four bytes a character
    content = json.dumps({"text": text}, ensure_ascii=False).encode()
    tracemalloc.start()
    try:
        length = sum(map(len, documents.document(content, 0, len(content), "text", Path("a.jsonl"))))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert length == len(text)
    assert peak < len(content) / 2


def test_so_many_bytes_are_in_memory_and_no_more(monkeypatch):
    monkeypatch.setattr("data.workers.AHEAD", 1000)
    sizes = [10] * 20 + [900] * 5 + [5000] * 2 + [10] * 20  # processes: 2, so 2000 bytes and 4 blocks
    drawn: list[int] = []
    made: list[int] = []

    def some():
        for number, size in enumerate(sizes):
            yield Block(Path("a.txt"), 0, b"a" * size, "text", 0, 0, 0)
            drawn.append(number)  # and it is with the processes now
            there = sizes[len(made) : len(drawn)]
            assert len(there) == 1 or (sum(there) <= 2000 and len(there) <= 4)
            together.add(len(there))

    together: set[int] = set()
    with Workers(2, tokenizers.CharTokenizer("a").spec) as workers:
        for _, tokens in workers.encoded(some()):
            made.append(len(tokens))
    assert made == sizes
    assert together == {1, 2, 3, 4}
