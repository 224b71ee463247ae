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


def assert_inverse(tokenizer, text: str) -> None:
    """Check that decode undoes encode, also after a trip of the tokenizer through JSON."""
    stored, ids = from_spec(json.loads(json.dumps(tokenizer.spec))), tokenizer.encode(text)
    assert stored.encode(text).tolist() == ids.tolist()
    assert stored.decode(ids) == text.encode()
    assert stored.vocab_size == tokenizer.vocab_size
    assert b"".join(stored.decode([token]) for token in ids) == text.encode()  # as sampling streams them


@given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.text("the catsonmr\n .,'é漢🙂\t 0"))
@MANY
def test_bpe_decode_undoes_encode(bpe, text):
    assert_inverse(bpe, text)


@given(train=TEXTS, val=TEXTS, data=st.data())
@MANY
def test_char_decode_undoes_encode(train, val, data):
    trained = tokenizers.train_char(train, val, 0)
    assert trained.vocab_size == len({*train, *val})
    assert_inverse(trained, data.draw(st.text(sorted({*train, *val}))))


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
    """The SHA-256 is that of r50k_base.tiktoken, OpenAI's other file of these tokens."""
    gpt2 = tokenizers.gpt2()
    assert gpt2.encode("hello world").tolist() == [31373, 995]
    assert gpt2.vocab_size == 50257
    assert gpt2.decode([50256]) == b"<|endoftext|>"
    assert 50256 not in gpt2.encode("<|endoftext|>")
    assert_inverse(gpt2, "  To be,\n\n or not to be:\tthat's the question — é漢🙂  \n")
    listing = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(gpt2.tokens))
    assert digest(listing) == "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"


BYTES = [base64.b64encode(bytes([b])).decode() for b in range(256)]
GPT4 = {"kind": "bpe", "pattern": "gpt4", "special": [], "tokens": " ".join(BYTES)}


def test_an_invalid_description_is_an_error():
    assert from_spec(GPT4 | {"special": ["<|x|>"]}).decode([256]) == b"<|x|>"
    for spec in (
        *({}, [], None, {"kind": []}, {"kind": "nope", "chars": "a"}, {"kind": "char"}, GPT4 | {"extra": 1}),
        *({"kind": "char", "chars": chars} for chars in ("", 5, "ba", "aa", "\ud800")),
        *(GPT4 | {"tokens": " ".join(words)} for words in (BYTES[1:], [*BYTES, BYTES[0]], [*BYTES, "!"])),
        *(GPT4 | {"special": special} for special in (["a"], ["x", "x"], [""], 5)),
        *(GPT4 | {"pattern": pattern} for pattern in ("(a+)+$", [])),
    ):
        with pytest.raises(DataError, match="tokenizer"):
            from_spec(spec)
