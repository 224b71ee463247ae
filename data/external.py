"""Load folders of tokens that were written by ``python -m scripts.prepare_corpus``, nanoGPT or llm.c. The
token files stay where they are; their counts and digests are kept in the cache.

    train.bin, val.bin                  nanoGPT's layout, and that of scripts.prepare_corpus
    …train….bin …, …val….bin …          several files for each split, ordered by name: llm.c's layout
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from data import tokenizers
from data.shards import HEADER, header, map_file
from data.token_files import (
    FORMAT,
    REMEDY,
    SPLITS,
    Meta,
    Prepared,
    Split,
    TokenFile,
    digest,
    file_digest,
    load,
    read_meta,
    write,
)
from system.errors import DataError

# The user runs this command to convert nanoGPT's meta.pkl to meta.json; unpickling here could run any code.
TO_JSON = (
    "python -c \"import json, pickle; m = pickle.load(open('meta.pkl', 'rb')); "
    "json.dump({'tokenizer': {'kind': 'char', "
    "'chars': ''.join(m['itos'][i] for i in range(m['vocab_size']))}}, open('meta.json', 'w'))\""
)


def load_external(
    source: Path, tokenizer: str, verify: bool, cache: Path, spec: dict[str, Any] | None
) -> Prepared:
    """Load the tokens in ``source``. ``spec`` describes the tokenizer if the folder has no meta.json.

    Raises:
        DataError: a file is missing or damaged, or the tokenizer is unknown.
    """
    meta, known_tokenizer = read_tokenizer(source, tokenizer, spec)
    return load(inspect_once(source, meta, known_tokenizer, cache), verify, source)


def read_tokenizer(source: Path, name: str, spec: dict[str, Any] | None) -> tuple[Meta, tokenizers.Tokenizer]:
    """Return the folder's meta.json, or an empty Meta, and the tokenizer that meta.json, ``spec`` or ``name``
    describes."""
    if (source / "meta.json").exists():
        return read_meta(source, REMEDY)
    if (source / "meta.pkl").exists():
        raise DataError(
            f"data.path: {source}/meta.pkl: pickles can run code and are not opened; if the folder is "
            f"your own, run in the folder {TO_JSON}"
        )
    if spec is not None:
        return Meta(), tokenizers.from_spec(spec)
    if name == "gpt2":
        return Meta(), tokenizers.gpt2()
    raise DataError(
        f"data.path: {source}: its tokenizer is unknown; add a meta.json that describes it, or give "
        "data.tokenizer=gpt2 if it is GPT-2's"
    )


def inspect_once(source: Path, meta: Meta, tokenizer: tokenizers.Tokenizer, cache: Path) -> Path:
    """Return the folder of the cache that describes ``source``, after reading the token files if they
    are new or changed."""
    files = {split: token_files(source, split) for split in SPLITS}
    stamps = {
        split: [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in split_files]
        for split, split_files in files.items()
    }
    if shared := {*files["train"]} & {*files["val"]}:
        raise DataError(f"{min(shared)}: its name contains both train and val; rename the file")
    headers = {header(file) for split_files in files.values() for file in split_files}
    if len(headers) > 1:
        raise DataError(
            f"data.path: {source}: its files have different formats; put each format into its own folder"
        )
    header_dtype = headers.pop()  # None without llm.c's header
    dtype, offset = header_dtype or np.dtype(meta.dtype), HEADER if header_dtype else 0
    new_meta: dict[str, Any] = {"format": FORMAT, "dtype": str(dtype), "tokenizer": tokenizer.spec}
    key = digest(new_meta | {"source": str(source.resolve()), "stamps": stamps})
    folder = cache / f"prepared-{key[:12]}"
    if not folder.is_dir():
        print(f"{source}: reading the token files once", flush=True)
        for split in SPLITS:
            entry = describe([inspect_file(file, dtype, offset, tokenizer) for file in files[split]])
            if getattr(meta, split) not in (None, entry):
                raise DataError(f"{source / 'meta.json'}: does not match the files of {split}; {REMEDY}")
            new_meta[split] = entry.model_dump(exclude_defaults=True)
        write(folder, new_meta, {})
    return folder


def token_files(source: Path, split: str) -> list[Path]:
    """Return the token files of a split. Raises DataError if there is none or one is not a regular file."""
    single = source / f"{split}.bin"
    pattern = re.compile(rf"(?<![a-z]){split}(?![a-z]).*\.bin")
    files = [single] if single.exists() else sorted(f for f in source.glob("*.bin") if pattern.search(f.name))
    for file in files or [single]:
        if not file.is_file():  # a pipe, or a link to a device, may be endless
            raise DataError(f"data.path: {file}: no such file; give a folder with train.bin and val.bin")
    return files


def describe(files: list[TokenFile]) -> Split:
    """Return the entry in meta.json of a split that consists of ``files``."""
    if len(files) == 1 and not files[0].offset and files[0].name in {f"{split}.bin" for split in SPLITS}:
        return Split(tokens=files[0].tokens, sha256=files[0].sha256)
    sha256 = digest({"files": [[file.tokens, file.sha256] for file in files]})
    return Split(tokens=sum(file.tokens for file in files), sha256=sha256, files=files)


def inspect_file(file: Path, dtype: np.dtype[Any], offset: int, tokenizer: tokenizers.Tokenizer) -> TokenFile:
    """Return the entry in meta.json of a token file. Raises DataError if a token is not in ``tokenizer``'s
    vocabulary."""
    size = file.stat().st_size - offset
    if size % dtype.itemsize:
        raise DataError(f"{file}: has {size:,} bytes, not a multiple of {dtype.itemsize}; {REMEDY}")
    tokens = map_file(file, dtype, offset)
    for start in range(0, len(tokens), 2**24):
        largest = int(tokens[start : start + 2**24].max())
        if largest >= tokenizer.vocab_size:
            raise DataError(
                f"{file}: has token {largest:,}, but the tokenizer has only {tokenizer.vocab_size:,}; "
                f"{REMEDY}, or add a meta.json with the right tokenizer"
            )
    return TokenFile(name=file.name, tokens=len(tokens), sha256=file_digest(file), offset=offset)
