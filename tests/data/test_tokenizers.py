"""encode and decode are inverse, and a tokenizer is plain data."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import DataError
from data.tokenizers import CharTokenizer, from_spec

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(TEXTS)
def test_decode_undoes_encode_after_a_trip_through_json(text):
    trained = CharTokenizer.train(text)
    stored = from_spec(json.loads(json.dumps(trained.spec)))
    assert stored.decode(trained.encode(text)) == text
    assert stored.encode(text).max() < stored.vocab_size == len(set(text))


def test_ids_follow_code_points():
    assert CharTokenizer.train("bca b").encode("abc ").tolist() == [1, 2, 3, 0]


def test_an_unknown_character_is_named_with_its_code_point_and_position():
    with pytest.raises(DataError, match=r"character 'é' \(U\+00E9\) at position 2 .* 3 characters"):
        CharTokenizer.train("abc").encode("abéc")


def test_a_lone_surrogate_is_an_unknown_character_too():
    with pytest.raises(DataError, match=r"U\+DC80"):
        CharTokenizer.train("abc").encode("a\udc80")


def test_a_text_starts_with_a_new_line_where_it_has_any():
    assert CharTokenizer.train("a\nb").start == "\n"
    assert CharTokenizer.train("ba").start == "a"


@pytest.mark.parametrize(
    "spec",
    [{}, [], None, {"kind": []}]
    + [{"kind": "nope", "chars": "a"}, {"kind": "char"}, {"kind": "char", "chars": "a", "x": 1}]
    + [{"kind": "char", "chars": chars} for chars in ("", 5, "ba", "aa", "\ud800", None)],
)
def test_a_description_of_no_tokenizer_is_an_error(spec):
    with pytest.raises(DataError, match="tokenizer"):
        from_spec(spec)
