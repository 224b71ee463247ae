"""encode and decode are inverse, and a tokenizer is plain data."""

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import tokenizers
from data.errors import DataError
from data.files import digest
from data.tokenizers import CharTokenizer, from_spec

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
ENGLISH = "the cat sat on the mat, and the other cat sat on the other mat.\n" * 9
MANY = settings(max_examples=100)


@pytest.fixture(scope="module")
def bpe():
    return tokenizers.train_bpe(ENGLISH, "", 300)


@given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.text("the catsonmr\n .,'é漢🙂\t 0"))
@MANY
def test_bpe_decode_undoes_encode_after_a_trip_through_json(bpe, text):
    stored = from_spec(json.loads(json.dumps(bpe.spec)))
    ids = bpe.encode(text)
    assert stored.encode(text).tolist() == ids.tolist()
    assert stored.decode(ids) == text.encode()
    assert all(token < stored.vocab_size for token in ids)
    assert b"".join(stored.decode([token]) for token in ids) == text.encode()  # as sampling streams them


@given(train=TEXTS, val=TEXTS, data=st.data())
@MANY
def test_char_decode_undoes_encode_after_a_trip_through_json(train, val, data):
    trained = tokenizers.train_char(train, val, 0)
    stored = from_spec(json.loads(json.dumps(trained.spec)))
    text = data.draw(st.text(sorted({*train, *val})))
    ids = trained.encode(text)
    assert stored.encode(text).tolist() == ids.tolist()
    assert stored.decode(ids) == text.encode()
    assert stored.vocab_size == trained.vocab_size == len({*train, *val})


def test_characters_follow_code_points_and_an_unknown_one_is_named(bpe):
    assert tokenizers.train_char("bca", "  b", 0).encode("abc ").tolist() == [1, 2, 3, 0]
    with pytest.raises(DataError, match=r"character 'é' \(U\+00E9\) at position 2 .* 3 characters"):
        CharTokenizer("abc").encode("abéc")
    for tokenizer in (CharTokenizer("abc"), bpe):
        with pytest.raises(DataError, match="position 1 is not"):
            tokenizer.encode("a\udc80")  # half a surrogate pair


def test_the_default_prompt_is_a_new_line_if_the_vocabulary_has_one(bpe):
    assert [CharTokenizer("\nab").start, CharTokenizer("ab").start, bpe.start] == ["\n", "a", "\n"]


def test_bpe_learns_frequent_words_of_the_training_split_and_as_many_as_the_text_has(bpe):
    assert b" the" in bpe.tokens
    assert len(bpe.encode(ENGLISH)) < 0.4 * len(ENGLISH)
    assert tokenizers.train_bpe(ENGLISH, "zebra " * 1000, 300).tokens == bpe.tokens
    assert tokenizers.train_bpe("ab", "", 1000).vocab_size == 257


def test_gpt2s_ids_are_gpt2s():
    gpt2 = tokenizers.gpt2()
    assert gpt2.encode("hello world").tolist() == [31373, 995]
    assert gpt2.vocab_size == 50257
    assert gpt2.decode([50256]) == b"<|endoftext|>"
    assert 50256 not in gpt2.encode("<|endoftext|>")
    stored = from_spec(json.loads(json.dumps(gpt2.spec)))
    text = "  To be,\n\n or not to be:\tthat's the question — é漢🙂  \n"
    assert stored.encode(text).tolist() == gpt2.encode(text).tolist()
    assert stored.decode(gpt2.encode(text)) == text.encode()
    assert stored.decode([50256]) == b"<|endoftext|>"


def test_its_tokens_are_openais():
    """The SHA-256 is that of r50k_base.tiktoken, OpenAI's other file of these tokens."""
    tokens = tokenizers.gpt2().tokens
    listing = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    assert digest(listing) == "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"


BYTES = [base64.b64encode(bytes([b])).decode() for b in range(256)]


def described(words=tuple(BYTES), **changes):
    return {"kind": "bpe", "pattern": "gpt4", "tokens": " ".join(words), "special": []} | changes


def test_a_description_of_bytes_is_a_tokenizer():
    assert from_spec(described(special=["<|x|>"])).decode([256]) == b"<|x|>"


@pytest.mark.parametrize(
    "spec",
    [{}, [], None, {"kind": []}, {"kind": {}}]
    + [{"kind": "nope", "chars": "a"}, {"kind": "char"}, {"kind": "char", "chars": "a", "x": 1}]
    + [{"kind": "char", "chars": chars} for chars in ("", 5, "ba", "aa", "\ud800", None)]
    + [described(BYTES[1:]), described([*BYTES, BYTES[0]]), described([*BYTES, "!"]), described([*BYTES, ""])]
    + [described(pattern="(a+)+$"), described(pattern=None), described(pattern=[]), described(tokens=3)]
    + [described(special=["a"]), described(special=["x", "x"]), described(special=[""]), described(special=5)]
    + [described(special=[5]), described(extra=1)],
)
def test_an_invalid_description_is_an_error(spec):
    with pytest.raises(DataError, match="tokenizer"):
        from_spec(spec)
