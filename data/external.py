"""Folders of tokens that were made elsewhere: by ``python -m scripts.prepare_corpus``, by nanoGPT, by llm.c.
Their files stay where they are; what is found out about them is kept in the cache.

    train.bin, val.bin                  nanoGPT's
    …train….bin …, …val….bin …          several of a split, in the order of their names: ours, and llm.c's
"""

import errno
import os
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from data import tokenizers
from data.shards import HEADER, header, mapped
from data.token_files import FORMAT, SPLITS, Prepared, digest, file_digest, listed, load, read_meta, write
from system.errors import DataError

# Makes a meta.json of nanoGPT's meta.pkl, in its user's own checkout: to unpickle is to run what is in it.
TO_JSON = (
    "python -c \"import json, pickle; m = pickle.load(open('meta.pkl', 'rb')); "
    "json.dump({'tokenizer': {'kind': 'char', "
    "'chars': ''.join(m['itos'][i] for i in range(m['vocab_size']))}}, open('meta.json', 'w'))\""
)


def adopt(
    source: Path, tokenizer: str, verify: bool, cache: Path, spec: dict[str, Any] | None = None
) -> Prepared:
    """The tokens of such a folder; ``spec`` is their tokenizer's where the folder does not say.

    Raises:
        DataError: a file is missing or damaged, or nothing says what its tokens stand for.
    """
    again = "prepare it again"
    if (source / "meta.json").exists():
        said, made = read_meta(source, again)
    elif (source / "meta.pkl").exists():
        raise DataError(
            f"data.path: {source}/meta.pkl: a pickle, which is not opened here; if the folder is your own, "
            f"run in it {TO_JSON}"
        )
    elif spec is not None:
        said, made = {}, tokenizers.from_spec(spec)
    elif tokenizer == "gpt2":
        said, made = {}, tokenizers.gpt2("", "", 0)
    else:
        raise DataError(
            f"data.path: {source}: nothing says what its tokens stand for; add a meta.json with its "
            "tokenizer, or data.tokenizer=gpt2 where it is GPT-2's"
        )
    try:
        files = {split: token_files(source, split) for split in SPLITS}
        stamps = {
            split: [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in some]
            for split, some in files.items()
        }
        if both := {*files["train"]} & {*files["val"]}:
            raise DataError(f"{min(both)}: its name says train and val; let it say one of them")
        try:
            wanted = {split: listed(said, split) for split in SPLITS if split in said}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{source}/meta.json: damaged ({type(error).__name__}); {again}") from None
        kinds = {header(file) for some in files.values() for file in some}
        if len(kinds) > 1:
            raise DataError(
                f"data.path: {source}: its files are of several kinds; put each kind into a folder"
            )
        dtype = kinds.pop() or np.dtype(said.get("dtype", "uint16"))  # nanoGPT's
        about = {"format": FORMAT, "dtype": str(dtype), "tokenizer": made.spec}
        key = digest(about | {"source": str(source.resolve()), "stamps": stamps})
        folder = cache / f"prepared-{key[:12]}"
        if not folder.is_dir():
            print(f"{source}: reading it once", flush=True)
            found = {split: [survey(file, dtype, made) for file in some] for split, some in files.items()}
            for split, some in found.items():
                for one, other in zip_longest(some, wanted.get(split, some)):
                    if one != other:
                        name = one["name"] if one else split
                        raise DataError(f"{source / name}: is not what its meta.json says; {again}")
            write(folder, about | {split: together(some) for split, some in found.items()}, {})
    except OSError as error:
        raise DataError(
            f"data.path: {error.filename}: {error.strerror}; give a folder with train.bin and val.bin"
        ) from None
    return load(folder, verify, source)


def token_files(source: Path, split: str) -> list[Path]:
    """Those of a split. Raises FileNotFoundError where there are none."""
    only = source / f"{split}.bin"
    word = re.compile(rf"(?<![a-z]){split}(?![a-z]).*\.bin")
    found = (
        [only] if only.exists() else sorted(file for file in source.glob("*.bin") if word.search(file.name))
    )
    for file in found or [only]:
        if not file.is_file():  # a pipe, or a link to a device, may have no end
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    return found


def together(files: list[dict[str, Any]]) -> dict[str, Any]:
    """What meta.json says of a split in these files."""
    if len(files) == 1 and files[0]["name"] in {f"{split}.bin" for split in SPLITS}:
        return {key: files[0][key] for key in ("tokens", "sha256")}
    sha256 = digest({"files": [[file["tokens"], file["sha256"]] for file in files]})
    return {"tokens": sum(file["tokens"] for file in files), "sha256": sha256, "files": files}


def survey(file: Path, dtype: np.dtype[Any], tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    """A token file's name, how many tokens it has, and its digest. Raises DataError where they are not of
    ``tokenizer``."""
    offset = HEADER if header(file) else 0
    size = file.stat().st_size - offset
    if size % dtype.itemsize:
        raise DataError(f"{file}: has {size:,} bytes, not a multiple of {dtype.itemsize}; prepare it again")
    tokens = mapped(file, dtype, offset)
    for start in range(0, len(tokens), 2**24):
        largest = int(tokens[start : start + 2**24].max())
        if largest >= tokenizer.vocab_size:
            raise DataError(
                f"{file}: has token {largest:,}, but the tokenizer has {tokenizer.vocab_size:,}; "
                "prepare it again, or give it a meta.json with its own tokenizer"
            )
    found = {"name": file.name, "tokens": len(tokens), "sha256": file_digest(file)}
    return found | ({"offset": offset} if offset else {})
