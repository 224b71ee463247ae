"""Our tokenizers as those of the library ``tokenizers``: the same ids, and reading undoes writing."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import tokenizers
from data.errors import DataError
from data.files import unpack
from interop.tokenizer import read, to_hf
from tests.conftest import LETTERS, daily

PIECES = ["I'll", "it's", "we'VE", " ", "  ", "\n", "\n\n", "\r\n", "\t", "1234567", "a", " the", "aaaa"]
PIECES += ["héé", "日本", "🙂", "ı́", "\x00", "<|end|>"]
DRAW = random.Random(0)
TEXT = LETTERS + " ".join("".join(DRAW.choices(PIECES, k=40)) for _ in range(1000))
KINDS = {
    "bpe": lambda: tokenizers.train_bpe(TEXT, "", 2000),
    "char": lambda: tokenizers.train_char(TEXT, "", 0),
    "gpt2": tokenizers.gpt2,
}
TEXTS = st.one_of(
    st.text(),
    st.text(alphabet=" \n\t\r\u00a0\u3000x'1a.é"),
    st.lists(st.sampled_from(PIECES)).map("".join),
)


@pytest.mark.parametrize("kind", daily([*KINDS], lambda number: number < 2, others="slow"))
def test_transformers_gives_our_ids_and_our_text_also_after_it_saved_the_tokenizer_again(tmp_path, kind):
    from transformers import AutoTokenizer

    ours = KINDS[kind]()
    to_hf(ours.spec).save(str(tmp_path / "tokenizer.json"))
    assert read(tmp_path / "tokenizer.json") == ours.spec
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    theirs.save_pretrained(tmp_path / "again")
    assert read(tmp_path / "again/tokenizer.json") == ours.spec
    assert len(theirs) == ours.vocab_size

    @settings(max_examples=300, derandomize=True, deadline=None)
    @given(TEXTS if kind != "char" else st.text(alphabet=ours.spec["chars"]))
    def same(text: str) -> None:
        ids = ours.encode(text).tolist()
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids, clean_up_tokenization_spaces=False).encode() == ours.decode(ids)

    same()


@pytest.mark.slow
def test_the_file_of_gpt2_itself_is_read(tmp_path):
    """On the hub it lists one merge for each token, and it has no type."""
    merges = unpack(tokenizers.VOCAB_BPE, tokenizers.VOCAB_BPE_SHA256).splitlines()[1:]
    ours = tokenizers.gpt2()
    content = json.loads(to_hf(ours.spec).to_str())
    content["model"] |= {"merges": merges, "ignore_merges": False}
    content["model"]["vocab"]["<|endoftext|>"] = 50256
    del content["model"]["type"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert read(tmp_path / "tokenizer.json") == ours.spec


FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
CHANGES = [
    lambda content: content["model"]["merges"].reverse(),
    lambda content: content["model"].update(end_of_word_suffix="</w>"),
    lambda content: content["model"].update(type="Unigram", unk_id=0, vocab=[["a", 0.0]]),
    lambda content: content["pre_tokenizer"].update(add_prefix_space=True),
    lambda content: content.update(pre_tokenizer=None),
    lambda content: content.update(normalizer={"type": "Lowercase"}),
    lambda content: content["added_tokens"].append({"content": "quick", "id": 300} | FLAGS),
    lambda content: content.clear(),
]


def test_a_tokenizer_that_would_give_other_ids_is_refused(tmp_path):
    spec = tokenizers.train_bpe(LETTERS.title(), "", 300).spec | {"pattern": "gpt2"}
    for change in CHANGES:
        content = json.loads(to_hf(spec).to_str())
        change(content)
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match="use another model"):
            read(tmp_path / "tokenizer.json")
