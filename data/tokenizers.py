"""Text ⇄ token ids. A tokenizer is plain data: ``spec`` goes into the prepared folder and every checkpoint,
and ``from_spec`` makes the same tokenizer of it, so that sampling needs nothing else."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import DataError


class CharTokenizer:
    """One token a character; ids follow the order of code points."""

    def __init__(self, chars: str) -> None:
        self.chars = chars
        codes = np.frombuffer(chars.encode("utf-32-le"), np.uint32)
        # code point -> id; len(chars) stands for what is not in the vocabulary
        self.ids = np.full(0x110000, len(chars), np.uint32)
        self.ids[codes] = np.arange(len(chars), dtype=np.uint32)

    @classmethod
    def train(cls, text: str) -> "CharTokenizer":
        return cls("".join(sorted(set(text))))

    @property
    def vocab_size(self) -> int:
        return len(self.chars)

    @property
    def spec(self) -> dict[str, Any]:
        return {"kind": "char", "chars": self.chars}

    @property
    def start(self) -> str:
        """How a text begins where nobody says: with a new line, where there are any."""
        return "\n" if "\n" in self.chars else self.chars[0]

    def encode(self, text: str) -> NDArray[np.uint32]:
        """Ids, (len(text),). Raises DataError at the first character that is not in the vocabulary."""
        ids: NDArray[np.uint32] = self.ids[
            np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        ]
        unknown = np.flatnonzero(ids == self.vocab_size)
        if len(unknown):
            at = int(unknown[0])
            raise DataError(
                f"character {text[at]!r} (U+{ord(text[at]):04X}) at position {at} is not in the vocabulary "
                f"of {self.vocab_size} characters; use characters of the training text"
            )
        return ids

    def decode(self, ids: NDArray[np.integer] | list[int]) -> str:
        return "".join(self.chars[i] for i in ids)


Tokenizer = CharTokenizer  # the type of all of them
KINDS = {"char": CharTokenizer}


def from_spec(spec: Any) -> Tokenizer:
    """The tokenizer that ``spec`` describes. Raises DataError where it describes none."""
    chars = spec.get("chars") if isinstance(spec, dict) and spec.keys() == {"kind", "chars"} else None
    try:
        if spec["kind"] in KINDS and isinstance(chars, str) and chars == "".join(sorted(set(chars))) != "":
            return CharTokenizer(chars)
    except (TypeError, LookupError, UnicodeEncodeError):  # not a table, or a lone surrogate
        pass
    raise DataError(f"tokenizer: not a description that this version knows; it knows {', '.join(KINDS)}")
