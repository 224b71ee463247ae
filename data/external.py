"""Describe a folder of token files that nanoGPT, llm.c or scripts/prepare_corpus.py wrote:

    train.bin, val.bin                  nanoGPT's layout, and ours
    …train….bin …, …val….bin …          several files for each split, ordered by name: llm.c's layout
    meta.json                           the tokenizer and the token type; other programs may leave it out

nanoGPT's files contain token ids and nothing else. llm.c's files begin with a header of 1024 bytes: a magic
number, a version, the number of tokens."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from data import tokenizers
from data.errors import DataError
from data.files import digest, file_digest, write_atomically
from data.token_files import SPLITS, Meta, TokenFile, map_file, read_meta

REMEDY = "prepare the files again"
HEADER = 1024  # bytes of llm.c's header
LLM_C = {20240520: "uint16", 20240801: "uint32"}  # magic number -> token type


def describe(
    source: Path, tokenizer: str, spec: dict[str, Any] | None, cache: Path
) -> tuple[Meta, tokenizers.Tokenizer]:
    """Return the complete meta.json of the token files in ``source``, and their tokenizer: the one in the
    folder's own meta.json, else ``spec``, else GPT-2's if ``tokenizer`` is "gpt2". The files are not changed.
    Other programs' files are read once as a whole, and the result is kept in ``cache``.

    Raises:
        DataError: a file is missing or damaged, or the tokenizer is unknown.
    """
    meta, known = read_tokenizer(source, tokenizer, spec)
    if meta.train and meta.val:
        return meta, known
    files = {split: token_files(source, split) for split in SPLITS}
    stats = [(split, file.name, file.stat()) for split in SPLITS for file in files[split]]
    stamps = [[split, name, stat.st_size, stat.st_mtime_ns] for split, name, stat in stats]
    state = {"source": str(source.resolve()), "stamps": stamps, "meta": meta.model_dump()}
    kept = cache / f"prepared-{digest(state)[:12]}.json"
    if not kept.exists():
        print(f"{source}: reading the token files once", flush=True)
        found = {split: [inspect(file, meta.dtype, known) for file in files[split]] for split in SPLITS}
        types = {dtype for split in SPLITS for dtype, _ in found[split]}
        if len(types) > 1:
            raise DataError(f"data.path: {source}: has tokens of 2 and of 4 bytes; use a folder for each")
        entries = {split: [entry for _, entry in found[split]] for split in SPLITS}
        cache.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, meta.model_copy(update={"dtype": types.pop()} | entries).model_dump_json())
    return read_meta(kept, "delete the file")


def read_tokenizer(source: Path, name: str, spec: dict[str, Any] | None) -> tuple[Meta, tokenizers.Tokenizer]:
    if (source / "meta.json").exists():
        return read_meta(source / "meta.json", REMEDY)
    if (source / "meta.pkl").exists():
        raise DataError(
            f"data.path: {source}/meta.pkl: a pickle, which is not opened here; "
            "docs/ecosystem.md says how to convert it"
        )
    if spec is None and name != "gpt2":
        raise DataError(
            f"data.path: {source}: its tokenizer is unknown; add a meta.json that describes it, or give "
            "data.tokenizer=gpt2 if it is GPT-2's"
        )
    tokenizer = tokenizers.from_spec(spec) if spec else tokenizers.gpt2()
    return Meta(tokenizer=tokenizer.spec), tokenizer


def token_files(source: Path, split: str) -> list[Path]:
    """Return the token files of a split, without hidden ones. Raises DataError if the split has none."""
    single = source / f"{split}.bin"
    pattern = re.compile(rf"(?<![a-z]){split}(?![a-z]).*\.bin")
    files = sorted(file for file in source.glob("[!.]*.bin") if pattern.search(file.name))
    if not files:
        raise DataError(f"data.path: {single}: no such file; give a folder with train.bin and val.bin")
    return [single] if single in files else files


def inspect(file: Path, dtype: str, tokenizer: tokenizers.Tokenizer) -> tuple[str, TokenFile]:
    """Read a whole token file. Return the type of its tokens, and its entry in meta.json. The type is
    ``dtype``, unless llm.c's header gives another one. Raises DataError if the file is cut, or has a token
    that ``tokenizer`` lacks."""
    magic, _, promised = [*np.fromfile(file, "<i4", 3).tolist(), 0, 0, 0][:3]
    offset = HEADER if magic in LLM_C else 0
    dtype = LLM_C.get(magic, dtype)
    tokens, rest = divmod(file.stat().st_size - offset, np.dtype(dtype).itemsize)
    if rest or (offset and tokens != promised):
        expected = f"of the {promised:,} that its header promises" if offset else f"and {rest} bytes"
        raise DataError(f"{file}: is damaged: it has {tokens:,} tokens {expected}; {REMEDY}")
    ids = map_file(file, dtype, offset)
    if (largest := int(ids.max(initial=0))) >= tokenizer.vocab_size:
        raise DataError(
            f"{file}: has token {largest:,}, but the tokenizer has only {tokenizer.vocab_size:,}; "
            f"{REMEDY}, or add a meta.json with the right tokenizer"
        )
    if dtype == "uint16" and tokens >= 16 and not ids[1::2].any():
        raise DataError(
            f"{file}: every second token is 0, so these seem to be tokens of 4 bytes, not 2; write them "
            'as uint16, or say "dtype": "uint32" in a meta.json'
        )
    return dtype, TokenFile(name=file.name, tokens=tokens, sha256=file_digest(file), offset=offset)
