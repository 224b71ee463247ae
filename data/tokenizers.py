"""Convert text to token ids and back. A tokenizer's ``spec`` is plain data that is stored in the prepared
folder and in every checkpoint; ``from_spec`` rebuilds the tokenizer, so sampling needs no other file.
``encode`` returns ids, 1-D, or raises DataError if the text cannot be encoded; ``decode`` returns UTF-8
bytes, as one token may be only part of a character; ``start`` is the default prompt.

char    one token per character
bpe     byte pair encoding, its merges trained on the text (Sennrich et al. 2016)
gpt2    GPT-2's byte pair encoding (Radford et al. 2019)
"""

import base64
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError
from data.files import unpack

if TYPE_CHECKING:
    import tiktoken

Ids = NDArray[np.integer] | Sequence[int]


class CharTokenizer:
    """One token per character; ids follow the order of code points."""

    def __init__(self, chars: str) -> None:
        self.chars = chars
        self.vocab_size = len(chars)
        self.start = "\n" if "\n" in chars else chars[0]
        self.spec = {"kind": "char", "chars": chars}
        codes = np.frombuffer(chars.encode("utf-32-le"), np.uint32)
        # code point -> id, or len(chars) if the character is not in the vocabulary
        dtype = np.uint16 if len(chars) < 2**16 else np.uint32
        self.ids: NDArray[np.unsignedinteger] = np.full(0x110000, len(chars), dtype)
        self.ids[codes] = np.arange(len(chars))

    def encode(self, text: str) -> NDArray[np.unsignedinteger]:
        ids = self.ids[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)]
        unknown = np.flatnonzero(ids == self.vocab_size)
        if len(unknown):
            position = int(unknown[0])
            character = text[position]
            raise DataError(
                f"character {character!r} (U+{ord(character):04X}) at position {position} is not in the "
                f"vocabulary of {self.vocab_size} characters; use characters of the training text"
            )
        return ids

    def decode(self, ids: Ids) -> bytes:
        return "".join(self.chars[i] for i in ids).encode()


# The patterns by which GPT-2 and GPT-4 cut a text into pieces; bytes are merged within a piece only. Files
# store a pattern's name, so a pattern must never change.
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "gpt4": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
}


class BytePairTokenizer:
    """Byte pair encoding: neighbouring bytes are merged while the result is one of ``tokens``, lowest id
    first.

    Args:
        pattern: a key of PATTERNS.
        tokens: the bytes of each id. They include all 256 single bytes, so any text can be encoded.
        special: further tokens, such as <|endoftext|>, which ``encode`` never returns.
    """

    start = "\n"

    def __init__(self, pattern: str, tokens: Sequence[bytes], special: Sequence[str] = ()) -> None:
        self.pattern = pattern
        self.tokens = tokens
        self.special = special
        self.vocab_size = len(tokens) + len(special)

    @cached_property
    def spec(self) -> dict[str, Any]:
        words = " ".join(base64.b64encode(token).decode() for token in self.tokens)
        return {"kind": "bpe", "pattern": self.pattern, "tokens": words, "special": [*self.special]}

    @cached_property
    def encoding(self) -> "tiktoken.Encoding":
        import tiktoken

        return tiktoken.Encoding(
            "normgpt",
            pat_str=PATTERNS[self.pattern],
            mergeable_ranks={token: rank for rank, token in enumerate(self.tokens)},
            special_tokens={name: len(self.tokens) + i for i, name in enumerate(self.special)},
        )

    def encode(self, text: str) -> NDArray[np.uint32]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            surrogate = text[error.start]
            raise DataError(
                f"{surrogate!r} at position {error.start} is not valid Unicode; remove this character"
            ) from None
        return self.encoding.encode_to_numpy(text, disallowed_special=())

    def decode(self, ids: Ids) -> bytes:
        return self.encoding.decode_bytes([*map(int, ids)])


Tokenizer = CharTokenizer | BytePairTokenizer

# --------------------------------------------------------------------------------------------------
# Training


def train_char(train: str, val: str, vocab_size: int) -> CharTokenizer:
    """Return a tokenizer of the characters of both splits."""
    return CharTokenizer("".join(sorted({*train, *val})))


def train_bpe(train: str, val: str, vocab_size: int) -> BytePairTokenizer:
    """Return a tokenizer of the 256 bytes and vocab_size - 256 merges, or fewer if the text is too short."""
    import rustbpe

    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator([train], vocab_size, pattern=PATTERNS["gpt4"])
    ranks = trainer.get_mergeable_ranks()
    return BytePairTokenizer("gpt4", [bytes(token) for token, _ in sorted(ranks, key=lambda entry: entry[1])])


# Each line of OpenAI's vocab.bpe except the first is a merge of two tokens. The file spells each byte as a
# printable character: printable bytes of Latin-1 as themselves, the others as code points from 256 on.
VOCAB_BPE = Path(__file__).with_name("gpt2.bpe.xz")
VOCAB_BPE_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
UNPRINTABLE = [byte for byte in range(256) if byte not in PRINTABLE]
ALPHABET = {b: chr(b) for b in PRINTABLE} | {b: chr(256 + i) for i, b in enumerate(UNPRINTABLE)}
BYTE_OF = {character: byte for byte, character in ALPHABET.items()}


def gpt2() -> BytePairTokenizer:
    """Return GPT-2's tokenizer: the single bytes in the order of ALPHABET, the merges, <|endoftext|>."""
    merges = unpack(VOCAB_BPE, VOCAB_BPE_SHA256).splitlines()[1:]
    tokens = [bytes([byte]) for byte in ALPHABET]
    tokens += [bytes(BYTE_OF[character] for character in merge.replace(" ", "")) for merge in merges]
    return BytePairTokenizer("gpt2", tokens, ["<|endoftext|>"])


# (training split, validation split, data.vocab_size) -> tokenizer
TRAINERS: dict[str, Callable[[str, str, int], Tokenizer]] = {
    "char": train_char,
    "bpe": train_bpe,
    "gpt2": lambda train, val, vocab_size: gpt2(),
}


def from_spec(spec: Any) -> Tokenizer:
    """Return the tokenizer that ``spec`` describes. Raises DataError if ``spec`` is invalid."""
    kinds: dict[str, Callable[..., Tokenizer]] = {"char": char_from_spec, "bpe": bpe_from_spec}
    try:
        arguments = dict(spec)
        return kinds[arguments.pop("kind")](**arguments)
    except (TypeError, LookupError, ValueError, AttributeError):  # not a dict, or wrong keys, types or values
        known = ", ".join(kinds)
        raise DataError(f"tokenizer: invalid description; this version knows the kinds {known}") from None


def char_from_spec(chars: str) -> CharTokenizer:
    if not chars or chars != "".join(sorted(set(chars))):
        raise ValueError
    return CharTokenizer(chars)


def bpe_from_spec(pattern: str, tokens: str, special: list[str]) -> BytePairTokenizer:
    parts = [base64.b64decode(word, validate=True) for word in tokens.split(" ")]
    names = [*parts, *(name.encode() for name in special)]
    every_byte = {bytes([byte]) for byte in range(256)}
    if pattern not in PATTERNS or b"" in names or len(set(names)) < len(names) or not every_byte <= {*parts}:
        raise ValueError
    return BytePairTokenizer(pattern, parts, special)
