"""Load folders of tokens that were written by ``python -m scripts.prepare_corpus``, nanoGPT or llm.c. The
token files stay in place; their counts and digests are kept in the cache.

    train.bin, val.bin                  nanoGPT's layout, and that of scripts.prepare_corpus
    …train….bin …, …val….bin …          several files for each split, ordered by name: llm.c's layout
"""

import errno
import os
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from data import tokenizers
from data.shards import HEADER, header, map_file
from data.token_files import (
    FORMAT,
    SPLITS,
    Prepared,
    digest,
    file_digest,
    file_entries,
    load,
    read_meta,
    write,
)
from system.errors import DataError

REMEDY = "prepare it again"

# The user runs it to convert nanoGPT's meta.pkl to meta.json; it is not run here, as unpickling runs code.
TO_JSON = (
    "python -c \"import json, pickle; m = pickle.load(open('meta.pkl', 'rb')); "
    "json.dump({'tokenizer': {'kind': 'char', "
    "'chars': ''.join(m['itos'][i] for i in range(m['vocab_size']))}}, open('meta.json', 'w'))\""
)


def load_external(
    source: Path, tokenizer: str, verify: bool, cache: Path, spec: dict[str, Any] | None = None
) -> Prepared:
    """Load the tokens in ``source``. ``spec`` describes the tokenizer if the folder has no meta.json.

    Raises:
        DataError: a file is missing or damaged, or the tokenizer is unknown.
    """
    meta, described = read_tokenizer(source, tokenizer, spec)
    try:
        folder = inspect_once(source, meta, described, cache)
    except OSError as error:
        raise DataError(
            f"data.path: {error.filename}: {error.strerror}; give a folder with train.bin and val.bin"
        ) from None
    return load(folder, verify, source)


def read_tokenizer(
    source: Path, name: str, spec: dict[str, Any] | None
) -> tuple[dict[str, Any], tokenizers.Tokenizer]:
    """Return the folder's meta.json, or {}, and the tokenizer that meta.json, ``spec`` or ``name``
    describes."""
    if (source / "meta.json").exists():
        return read_meta(source, REMEDY)
    if (source / "meta.pkl").exists():
        raise DataError(
            f"data.path: {source}/meta.pkl: pickles can run code and are not opened; if the folder is "
            f"your own, run in it {TO_JSON}"
        )
    if spec is not None:
        return {}, tokenizers.from_spec(spec)
    if name == "gpt2":
        return {}, tokenizers.gpt2("", "", 0)
    raise DataError(
        f"data.path: {source}: its tokenizer is unknown; add a meta.json that describes it, or give "
        "data.tokenizer=gpt2 if it is GPT-2's"
    )


def inspect_once(source: Path, meta: dict[str, Any], tokenizer: tokenizers.Tokenizer, cache: Path) -> Path:
    """Return the folder of the cache that describes ``source``; read the token files first if they are
    new."""
    files = {split: token_files(source, split) for split in SPLITS}
    stamps = {
        split: [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in of_split]
        for split, of_split in files.items()
    }
    if both := {*files["train"]} & {*files["val"]}:
        raise DataError(f"{min(both)}: its name contains both train and val; rename it")
    try:
        expected = {split: file_entries(meta, split) for split in SPLITS if split in meta}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{source}/meta.json: damaged ({type(error).__name__}); {REMEDY}") from None
    headers = {header(file) for of_split in files.values() for file in of_split}
    if len(headers) > 1:
        raise DataError(
            f"data.path: {source}: its files have different formats; put each format into a folder"
        )
    dtype = headers.pop() or np.dtype(meta.get("dtype", "uint16"))  # uint16 in nanoGPT
    about = {"format": FORMAT, "dtype": str(dtype), "tokenizer": tokenizer.spec}
    key = digest(about | {"source": str(source.resolve()), "stamps": stamps})
    folder = cache / f"prepared-{key[:12]}"
    if not folder.is_dir():
        print(f"{source}: reading it once", flush=True)
        entries = {
            split: [inspect_file(file, dtype, tokenizer) for file in of_split]
            for split, of_split in files.items()
        }
        for split, of_split in entries.items():
            for actual, wanted in zip_longest(of_split, expected.get(split, of_split)):
                if actual != wanted:
                    name = actual["name"] if actual else split
                    raise DataError(f"{source / name}: does not match its meta.json; {REMEDY}")
        write(folder, about | {split: split_entry(of_split) for split, of_split in entries.items()}, {})
    return folder


def token_files(source: Path, split: str) -> list[Path]:
    """Return the token files of a split. Raises FileNotFoundError if there are none."""
    single = source / f"{split}.bin"
    word = re.compile(rf"(?<![a-z]){split}(?![a-z]).*\.bin")
    files = [single] if single.exists() else sorted(f for f in source.glob("*.bin") if word.search(f.name))
    for file in files or [single]:
        if not file.is_file():  # a pipe, or a link to a device, may be endless
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    return files


def split_entry(files: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the entry in meta.json of a split that consists of ``files``."""
    if len(files) == 1 and files[0]["name"] in {f"{split}.bin" for split in SPLITS}:
        return {key: files[0][key] for key in ("tokens", "sha256")}
    sha256 = digest({"files": [[file["tokens"], file["sha256"]] for file in files]})
    return {"tokens": sum(file["tokens"] for file in files), "sha256": sha256, "files": files}


def inspect_file(file: Path, dtype: np.dtype[Any], tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the entry in meta.json of a token file. Raises DataError if a token is not in ``tokenizer``'s
    vocabulary."""
    offset = HEADER if header(file) else 0
    size = file.stat().st_size - offset
    if size % dtype.itemsize:
        raise DataError(f"{file}: has {size:,} bytes, not a multiple of {dtype.itemsize}; {REMEDY}")
    tokens = map_file(file, dtype, offset)
    for start in range(0, len(tokens), 2**24):
        largest = int(tokens[start : start + 2**24].max())
        if largest >= tokenizer.vocab_size:
            raise DataError(
                f"{file}: has token {largest:,}, but the tokenizer has {tokenizer.vocab_size:,}; "
                f"{REMEDY}, or add a meta.json with its own tokenizer"
            )
    entry = {"name": file.name, "tokens": len(tokens), "sha256": file_digest(file)}
    return entry | ({"offset": offset} if offset else {})
