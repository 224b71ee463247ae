"""Our tokenizers as Hugging Face's tokenizer.json: transformers gives the same ids, and reading undoes
writing."""

import copy
import json
import random

import pytest

from data import tokenizers
from data.errors import DataError
from interop import tokenizer_json
from tests.conftest import LETTERS

PIECES = [
    "I'll",
    "It's",
    "we'VE",
    " ",
    "\n\n",
    "  ",
    "\t",
    "1234567",
    "don't",
    "\r\n",
    "héé",
    "日本",
    "🙂",
    "ı́",
    "\x00",
]


def text(number: int, chars: str | None) -> str:
    """Return random text from ``chars`` if given, else from PIECES (odd ``number``) or any characters."""
    draw = random.Random(number)
    if chars:
        return "".join(draw.choices(chars, k=60))
    if number % 2:
        numbers = [str(draw.randrange(10**9)) for _ in PIECES]
        return "".join(draw.choices([*PIECES, *numbers, "a", "B", " the"], k=40))
    ranges = [(32, 127), (32, 127), (0, 0xD800), (0xE000, 0x110000)]
    return "".join(chr(draw.randrange(*draw.choice(ranges))) for _ in range(40))


TEXT = LETTERS + " ".join(text(number, None) for number in range(1, 2000, 2))  # with merges in all pieces
KINDS = {
    "gpt2": lambda: tokenizers.gpt2(),
    "bpe": lambda: tokenizers.train_bpe(TEXT, "", 2000),
    "char": lambda: tokenizers.train_char(LETTERS, "".join(PIECES), 0),
}


@pytest.fixture(scope="module", params=KINDS)
def written(request, tmp_path_factory):
    """Return a tokenizer of ours, and a folder in which transformers finds it."""
    tokenizer, folder = KINDS[request.param](), tmp_path_factory.mktemp("tokenizer")
    content = json.dumps(tokenizer_json.to_tokenizer_json(tokenizer.spec))
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer, folder


def test_transformers_gives_the_ids_that_ours_gives_of_a_thousand_random_texts(written):
    from transformers import AutoTokenizer

    ours, folder = written
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    chars = ours.spec.get("chars")
    for sample in (text(number, chars) for number in range(1000)):
        ids = ours.encode(sample).tolist()
        assert theirs(sample)["input_ids"] == ids
        assert theirs.decode(ids).encode() == ours.decode(ids)
    assert len(theirs) == ours.vocab_size


def test_blank_lines_at_the_end_of_a_text_are_cut_as_ours(tmp_path):
    from tokenizers import Tokenizer

    draw = random.Random(0)
    code = "".join(" " * draw.randrange(6) + draw.choice(["if x:", "", "y = 1"]) + "\n" for _ in range(2000))
    ours = tokenizers.train_bpe(code, "", 330)
    content = tokenizer_json.to_tokenizer_json(ours.spec)
    theirs = Tokenizer.from_str(json.dumps(content))
    for _ in range(2000):
        sample = "".join(draw.choices([" ", "  ", "    ", "\n", "\t", "x", "if"], k=draw.randrange(1, 9)))
        assert theirs.encode(sample).ids == ours.encode(sample).tolist(), repr(sample)
    of_earlier = copy.deepcopy(content)
    of_earlier["pre_tokenizer"]["pretokenizers"][0] = tokenizer_json.split(tokenizer_json.EARLIER)
    (tmp_path / "tokenizer.json").write_text(json.dumps(of_earlier))
    assert tokenizer_json.read(tmp_path / "tokenizer.json") == ours.spec


def test_reading_undoes_writing(written):
    ours, folder = written
    assert tokenizer_json.read(folder / "tokenizer.json") == ours.spec


def test_a_character_that_is_not_in_the_vocabulary_is_an_error_there_too(tmp_path):
    from transformers import PreTrainedTokenizerFast

    content = tokenizer_json.to_tokenizer_json({"kind": "char", "chars": "ab"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(Exception, match="Missing"):
        PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))("abc")


def gpt2s_own(content: dict) -> dict:
    """Return ``content`` in the old format of OpenAI's file on the hub, which means the same."""
    content["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False}
    del content["model"]["type"], content["pre_tokenizer"]["use_regex"]
    content["model"]["vocab"]["<|endoftext|>"] = 50256
    return content


@pytest.mark.slow
@pytest.mark.parametrize("merges", [str, list], ids=["as text", "as pairs"])
def test_the_file_of_gpt2_itself_is_read(tmp_path, merges):
    spec = tokenizers.gpt2().spec
    content = gpt2s_own(tokenizer_json.to_tokenizer_json(spec))
    if merges is list:
        content["model"]["merges"] = [pair.split(" ") for pair in content["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert tokenizer_json.read(tmp_path / "tokenizer.json") == spec


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["model"]["merges"].reverse(),
        lambda content: content["model"]["merges"].pop(),
        lambda content: content["model"]["vocab"].update({"a": 3}),
        lambda content: content["model"]["vocab"].update({"zzzz": 2**70}),
        lambda content: content["model"].update(end_of_word_suffix="</w>"),
        lambda content: content["model"].update(ignore_merges=True),
        lambda content: content["added_tokens"].append({"content": "quick", "id": 300}),
        lambda content: content.update(post_processor={"type": "TemplateProcessing", "single": []}),
        lambda content: content.update(normalizer={"type": "Lowercase"}),
        lambda content: content.update(pre_tokenizer=None),
        lambda content: content["pre_tokenizer"].update(add_prefix_space=True),
        lambda content: content["model"].update(type="Unigram"),
        lambda content: content.update(model=[]),
        lambda content: content.update(added_tokens=[{"content": "x" * 10_000, "id": -1}]),
    ],
)
def test_a_tokenizer_that_would_give_other_ids_is_refused(tmp_path, change):
    content = tokenizer_json.to_tokenizer_json(tokenizers.train_bpe(LETTERS, "", 300).spec)
    content["pre_tokenizer"] = copy.deepcopy(tokenizer_json.PRE_TOKENIZERS["gpt2"])
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content))
    assert tokenizer_json.read(file)["pattern"] == "gpt2"
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="neither a byte pair encoding like GPT-2's nor"):
        tokenizer_json.read(file)


def test_tokens_that_no_merges_make_cannot_be_written():
    every_byte = [bytes([byte]) for byte in range(256)]
    tokenizer = tokenizers.BytePairTokenizer("gpt2", [*every_byte, b"abc"])
    with pytest.raises(DataError, match="b'abc' is not the merge of two others"):
        tokenizer_json.to_tokenizer_json(tokenizer.spec)
    long = tokenizers.BytePairTokenizer("gpt2", [*every_byte, b"ab" * 2**15])
    with pytest.raises(DataError, match="too long"):
        tokenizer_json.to_tokenizer_json(long.spec)
