"""Text ⇄ token ids. A tokenizer is plain data: ``spec`` goes into the prepared folder and every checkpoint,
and ``from_spec`` makes the same tokenizer of it, so that sampling needs nothing else.

char    one token a character
bpe     byte pair encoding, its merges trained on the text (Sennrich et al. 2016)
gpt2    GPT-2's own byte pair encoding (Radford et al. 2019)
"""

import base64
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data.gpt2_vocab import gpt2_tokens
from system.errors import DataError

if TYPE_CHECKING:
    import tiktoken

Ids = NDArray[np.integer] | Sequence[int]


class Tokenizer(Protocol):
    """What all of them have."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def start(self) -> str:
        """How a text begins where nobody says."""

    @property
    def spec(self) -> dict[str, Any]:
        """Plain data that from_spec makes the same tokenizer of."""

    def encode(self, text: str) -> NDArray[np.uint32]:
        """Ids, 1-D. Raises DataError at what it cannot encode."""

    def decode(self, ids: Ids) -> bytes:
        """UTF-8 of the ids' text; a single token may be part of a character."""


PART = 2**20  # characters that are looked up at once: as UTF-32 they take four times the memory


class CharTokenizer:
    """One token a character; ids follow the order of code points."""

    def __init__(self, chars: str) -> None:
        self.chars = chars
        self.vocab_size = len(chars)
        self.start = "\n" if "\n" in chars else chars[0]
        self.spec = {"kind": "char", "chars": chars}
        codes = np.frombuffer(chars.encode("utf-32-le"), np.uint32)
        # code point -> id; len(chars) stands for what is not in the vocabulary
        self.ids = np.full(0x110000, len(chars), np.uint16 if len(chars) < 2**16 else np.uint32)
        self.ids[codes] = np.arange(len(chars))

    def encode(self, text: str) -> NDArray[np.unsignedinteger]:
        ids = np.empty(len(text), self.ids.dtype)
        for start in range(0, len(text), PART):
            part = text[start : start + PART].encode("utf-32-le", "surrogatepass")
            ids[start : start + PART] = found = self.ids[np.frombuffer(part, np.uint32)]
            unknown = np.flatnonzero(found == self.vocab_size)
            if len(unknown):
                at = start + int(unknown[0])
                raise DataError(
                    f"character {text[at]!r} (U+{ord(text[at]):04X}) at position {at} is not in the "
                    f"vocabulary of {self.vocab_size} characters; use characters of the training text"
                )
        return ids

    def decode(self, ids: Ids) -> bytes:
        return "".join(self.chars[i] for i in ids).encode()


# How byte pair encodings cut a text into pieces, within which they merge: GPT-2's way and GPT-4's. The names
# go into files, so what a name stands for never changes.
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "gpt4": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
}


SPACES = 500_000  # in a row; from about a million on, tiktoken's regular expressions run out of stack
LONG_SPACE = re.compile(rf"(?<!\s)\s{{{SPACES}}}")


class BytePairTokenizer:
    """Pieces of text as UTF-8, neighbours merged as long as one of ``tokens`` comes of it, the first first.

    Args:
        pattern: a name in PATTERNS.
        tokens: the bytes of each id; every single byte is among them, so that any text can be encoded.
        special: tokens after these, as <|endoftext|>, that no text is encoded to.
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
            at = error.start
            raise DataError(
                f"character {text[at]!r} at position {at} is no Unicode text; leave it out"
            ) from None
        if found := LONG_SPACE.search(text):
            raise DataError(
                f"at position {found.start()} begin {SPACES:,} or more white-space characters in a row, "
                "which tiktoken cannot encode; shorten them"
            )
        return self.encoding.encode_to_numpy(text, disallowed_special=())

    def decode(self, ids: Ids) -> bytes:
        return self.encoding.decode_bytes([*map(int, ids)])


# --------------------------------------------------------------------------------------------------
# Making them


def train_char(train: str, val: str, vocab_size: int) -> CharTokenizer:
    """Of the characters of both splits."""
    return CharTokenizer("".join(sorted({*train, *val})))


def train_bpe(train: str, val: str, vocab_size: int) -> BytePairTokenizer:
    """The 256 bytes and the vocab_size - 256 most frequent merges of the training split, or as many as there
    are."""
    import rustbpe

    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator([train], vocab_size, pattern=PATTERNS["gpt4"])
    ranks = trainer.get_mergeable_ranks()
    return BytePairTokenizer("gpt4", [bytes(token) for token, _ in sorted(ranks, key=lambda entry: entry[1])])


def gpt2(train: str, val: str, vocab_size: int) -> BytePairTokenizer:
    """GPT-2's, whatever the splits. Raises DataError where its tokens are not to be had."""
    return BytePairTokenizer("gpt2", gpt2_tokens(), ["<|endoftext|>"])


# (training split, validation split, data.vocab_size) -> tokenizer
TRAINERS: dict[str, Callable[[str, str, int], Tokenizer]] = {
    "char": train_char,
    "bpe": train_bpe,
    "gpt2": gpt2,
}


def from_spec(spec: Any) -> Tokenizer:
    """The tokenizer that ``spec`` describes. Raises DataError where it describes none."""
    kinds: dict[str, Callable[..., Tokenizer]] = {"char": described_char, "bpe": described_bpe}
    try:
        described = dict(spec)
        return kinds[described.pop("kind")](**described)
    except (TypeError, LookupError, ValueError, AttributeError):  # no table; other keys, types or values
        known = ", ".join(kinds)
        raise DataError(f"tokenizer: not a description that this version knows; it knows {known}") from None


def described_char(chars: str) -> CharTokenizer:
    if not chars or chars != "".join(sorted(set(chars))):
        raise ValueError
    return CharTokenizer(chars)


def described_bpe(pattern: str, tokens: str, special: list[str]) -> BytePairTokenizer:
    parts = [base64.b64decode(word, validate=True) for word in tokens.split(" ")]
    every_byte = {bytes([byte]) for byte in range(256)}
    names = {name.encode() for name in special}
    distinct = len(set(parts) | names) == len(parts) + len(special)
    if pattern not in PATTERNS or not distinct or not every_byte <= set(parts) or b"" in names | set(parts):
        raise ValueError
    return BytePairTokenizer(pattern, parts, special)
