"""Read folders of token files, written here, by nanoGPT or by llm.c:

    train.bin, val.bin                  nanoGPT's layout, and ours
    …train….bin …, …val….bin …          several files for each split, ordered by name: llm.c's layout
    meta.json                           the tokenizer and the token type; others may leave it out

A file of nanoGPT's is token ids and nothing else. llm.c's begins with a header of 1024 bytes: a magic number,
a version, the number of tokens."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, NonNegativeInt, ValidationError

from data import tokenizers
from data.errors import DataError
from data.files import digest, file_digest, first_error, write_atomically

SPLITS = ("train", "val")
REMEDY = "prepare the files again"
# Converts nanoGPT's meta.pkl to meta.json. The user runs it: unpickling a stranger's file could run any code.
TO_JSON = (
    "python -c \"import json, pickle; m = pickle.load(open('meta.pkl', 'rb')); "
    "json.dump({'tokenizer': {'kind': 'char', "
    "'chars': ''.join(m['itos'][i] for i in range(m['vocab_size']))}}, open('meta.json', 'w'))\""
)
HEADER = 1024  # bytes of llm.c's header
# (magic number, version) -> token type of llm.c's files
TOKEN_TYPES: dict[tuple[int, int], np.dtype[Any]] = {
    (20240520, 1): np.dtype(np.uint16),
    (20240801, 7): np.dtype(np.uint32),
}


class Shards:
    """1-D arrays of tokens, concatenated without a copy: ``shards[positions]`` has the shape of
    ``positions``."""

    def __init__(self, parts: Sequence[NDArray[np.unsignedinteger]]) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, positions: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
        part_numbers = np.searchsorted(self.ends, positions, side="right")
        tokens = np.empty(positions.shape, self.parts[0].dtype)
        for number in np.unique(part_numbers):
            part, mask = self.parts[number], part_numbers == number
            tokens[mask] = part[positions[mask] - (self.ends[number] - len(part))]
        return tokens


Tokens = NDArray[np.unsignedinteger] | Shards  # one split, 1-D


class TokenFile(BaseModel):
    name: str
    tokens: NonNegativeInt
    sha256: str  # of the file
    offset: NonNegativeInt = 0  # bytes before the tokens


class Split(BaseModel):
    """The entry of a split in meta.json; ``files`` is left out if SPLIT.bin is the only file."""

    tokens: NonNegativeInt
    sha256: str
    files: list[TokenFile] = []


class Meta(BaseModel):
    """The content of meta.json about the tokens; other programs may leave out the splits."""

    tokenizer: dict[str, Any]  # its spec
    dtype: Literal["uint16", "uint32"] = "uint16"  # as in nanoGPT
    train: Split | None = None
    val: Split | None = None


def read_meta(file: Path, remedy: str) -> tuple[Meta, tokenizers.Tokenizer]:
    """Return the content of a meta.json and the tokenizer that it describes. Raises DataError."""
    try:
        meta = Meta.model_validate_json(file.read_bytes())
        return meta, tokenizers.from_spec(meta.tokenizer)
    except (OSError, ValueError) as error:
        why = first_error(error) if isinstance(error, ValidationError) else str(error).partition(";")[0]
        raise DataError(f"{file}: missing or damaged ({why}); {remedy}") from None


def map_file(file: Path, dtype: np.dtype[Any], offset: int) -> NDArray[np.unsignedinteger]:
    """Return a memory map of the tokens, 1-D; an empty file, which cannot be mapped, gives an empty array."""
    if file.stat().st_size <= offset:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(file, dtype, "r", offset))  # an np.memmap itself is slower to index


# --------------------------------------------------------------------------------------------------
# Folders that other programs wrote


def read_external(
    source: Path, tokenizer: str, spec: dict[str, Any] | None, cache: Path
) -> tuple[Meta, tokenizers.Tokenizer]:
    """Return the complete meta.json of the token files in ``source``, and their tokenizer: the one in the
    folder's own meta.json, else ``spec``, else GPT-2's if ``tokenizer`` is "gpt2". The files are not changed.
    They are read through once, and the result is kept in ``cache``.

    Raises:
        DataError: a file is missing or damaged, or the tokenizer is unknown.
    """
    meta, known = read_tokenizer(source, tokenizer, spec)
    files = {split: token_files(source, split) for split in SPLITS}
    if shared := {*files["train"]} & {*files["val"]}:
        raise DataError(f"{min(shared)}: its name contains both train and val; rename the file")
    headers = {header(file) for split in SPLITS for file in files[split]}
    if len(headers) > 1:
        raise DataError(
            f"data.path: {source}: its files have different formats; put each format into its own folder"
        )
    [header_dtype] = headers  # None without llm.c's header
    dtype, offset = header_dtype or np.dtype(meta.dtype), HEADER if header_dtype else 0
    found: dict[str, Any] = {"dtype": str(dtype), "tokenizer": known.spec}
    stamps = {
        split: [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files[split]]
        for split in SPLITS
    }
    kept = cache / f"prepared-{digest(found | {'source': str(source.resolve()), 'stamps': stamps})[:12]}.json"
    if not kept.exists():
        print(f"{source}: reading the token files once", flush=True)
        for split in SPLITS:
            found[split] = describe([inspect_file(file, dtype, offset, known) for file in files[split]])
            if getattr(meta, split) not in (None, found[split]):
                raise DataError(f"{source / 'meta.json'}: does not match the files of {split}; {REMEDY}")
        cache.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, Meta(**found).model_dump_json(exclude_defaults=True))
    return read_meta(kept, "delete the file")


def read_tokenizer(source: Path, name: str, spec: dict[str, Any] | None) -> tuple[Meta, tokenizers.Tokenizer]:
    if (source / "meta.json").exists():
        return read_meta(source / "meta.json", REMEDY)
    if (source / "meta.pkl").exists():
        raise DataError(
            f"data.path: {source}/meta.pkl: pickles can run code and are not opened; if the folder is "
            f"your own, run in the folder {TO_JSON}"
        )
    if spec is None and name != "gpt2":
        raise DataError(
            f"data.path: {source}: its tokenizer is unknown; add a meta.json that describes it, or give "
            "data.tokenizer=gpt2 if it is GPT-2's"
        )
    tokenizer = tokenizers.from_spec(spec) if spec else tokenizers.gpt2()
    return Meta(tokenizer=tokenizer.spec), tokenizer


def token_files(source: Path, split: str) -> list[Path]:
    """Return the token files of a split. Raises DataError if there is none."""
    single = source / f"{split}.bin"
    pattern = re.compile(rf"(?<![a-z]){split}(?![a-z]).*\.bin")
    files = sorted(file for file in source.glob("[!.]*.bin") if pattern.search(file.name))
    if single in files:
        return [single]
    if not files:
        raise DataError(f"data.path: {single}: no such file; give a folder with train.bin and val.bin")
    return files


def header(file: Path) -> np.dtype[Any] | None:
    """Return the token type that llm.c's header states; None if the file has no such header. Raises DataError
    if the version is unknown or the number of tokens is wrong."""
    with file.open("rb") as stream:
        start = stream.read(HEADER)
    magic, version, count = map(int, np.frombuffer(start[:12].ljust(12, b"\0"), "<i4"))
    if len(start) < HEADER or magic not in {known for known, _ in TOKEN_TYPES}:
        return None
    if (dtype := TOKEN_TYPES.get((magic, version))) is None:
        raise DataError(f"{file}: has llm.c's version {version}, which is unknown; convert it")
    size = file.stat().st_size - HEADER
    if size != count * dtype.itemsize:
        raise DataError(
            f"{file}: its header promises {count:,} tokens, but {size:,} bytes follow; get the file again"
        )
    return dtype


def inspect_file(file: Path, dtype: np.dtype[Any], offset: int, tokenizer: tokenizers.Tokenizer) -> TokenFile:
    """Read a token file through. Raises DataError if a token is not in ``tokenizer``'s vocabulary."""
    size = file.stat().st_size - offset
    if size % dtype.itemsize:
        raise DataError(f"{file}: has {size:,} bytes, not a multiple of {dtype.itemsize}; {REMEDY}")
    tokens = map_file(file, dtype, offset)
    largest = int(tokens.max(initial=0))
    if largest >= tokenizer.vocab_size:
        raise DataError(
            f"{file}: has token {largest:,}, but the tokenizer has only {tokenizer.vocab_size:,}; "
            f"{REMEDY}, or add a meta.json with the right tokenizer"
        )
    return TokenFile(name=file.name, tokens=len(tokens), sha256=file_digest(file), offset=offset)


def describe(files: list[TokenFile]) -> Split:
    """Return the entry in meta.json of a split that consists of ``files``."""
    [first, *others] = files
    if not others and not first.offset and first.name in {f"{split}.bin" for split in SPLITS}:
        return Split(tokens=first.tokens, sha256=first.sha256)
    sha256 = digest({"files": [[file.tokens, file.sha256] for file in files]})
    return Split(tokens=sum(file.tokens for file in files), sha256=sha256, files=files)
