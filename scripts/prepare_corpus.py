"""Tokenize text of any size into a folder of token files, in constant memory: for corpora larger than it.

    python -m scripts.prepare_corpus web/*.jsonl.zst --out prepared/web --tokenizer gpt2
    python train.py data=prepared data.path=prepared/web

It reads .txt, .jsonl (a document a line), both also compressed (.gz, .zst), and .parquet (a document a row).
`datasets` first copies the text to FOLDER.part, uncompressed; then several processes tokenize it in batches.
However it was interrupted, the same command resumes, and the tokens are the same.

One batch in every so many is for validation. Documents end with <|endoftext|>, or with a line break if the
tokenizer has no such token.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from data import tokenizers
from data.large.arrow_batches import Batch, batches_of, encoded, kind_of, workers
from data.large.token_writer import TokenWriter, is_complete, only_process
from data.token_files import digest
from system.errors import DataError
from system.terminal import escaped, outlive_readers

SAMPLE = 2**26  # characters that bpe is trained on
Item = TypeVar("Item")


def prepare(
    files: list[Path],
    out: Path,
    tokenizer: str,
    vocab_size: int,
    val_fraction: float,
    field: str,
    processes: int,
) -> None:
    """Arguments as on the command line. Raises DataError if one is invalid or a file cannot be tokenized."""
    validate(files, out, vocab_size, val_fraction, processes)
    val_every = round(1 / val_fraction)
    made_from = digest(
        {
            "files": [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files],
            "tokenizer": [tokenizer, vocab_size if tokenizer == "bpe" else None],
            "val_every": val_every,
            "field": field,
            "format": 3,
        }
    )
    with only_process(out):
        if is_complete(out, made_from):
            print(f"{out}: already exists, built from these files")
            return
        writer = TokenWriter(out, made_from, val_every)
        tables = writer.folder / "tables"
        batches = batches_of(files, field, val_every, tables)
        if writer.tokenizer is None:
            writer.set_tokenizer(new_tokenizer(tokenizer, vocab_size, batches))
        write_all(writer, batches, processes)
        shutil.rmtree(tables, ignore_errors=True)
        tokens = writer.finish()
    print(f"{out}: {tokens['train']:,} tokens to train on, {tokens['val']:,} to validate")


def validate(files: list[Path], out: Path, vocab_size: int, val_fraction: float, processes: int) -> None:
    """Raise DataError if an argument is invalid."""
    if not 0 < val_fraction <= 0.5:
        raise DataError(f"--val-fraction: invalid value {val_fraction}; expected above 0 and at most 0.5")
    if processes < 1:
        raise DataError(f"--processes: invalid value {processes}; expected at least 1")
    if not 256 <= vocab_size <= 2**20:
        raise DataError(f"--vocab-size: invalid value {vocab_size}; expected 256 to {2**20:,}")
    if not out.name:
        raise DataError(f"--out: {out} is not the name of a folder; choose another")
    for file in files:
        kind_of(file)
        if not (file.is_file() and os.access(file, os.R_OK)):
            raise DataError(f"{file}: not a readable file; check the path and its permissions")


def new_tokenizer(kind: str, vocab_size: int, batches: Sequence[Batch]) -> tokenizers.Tokenizer:
    """Return GPT-2's tokenizer, one of all characters in the text, or bpe trained on its beginning."""
    characters: set[str] = {"\n"}
    sample: list[str] = []
    length = 0
    if kind != "gpt2":
        for batch in progress(batches, len(batches), f"making a tokenizer: {kind}"):
            for text in batch.texts():
                characters.update(text if kind == "char" else "")
                sample += [text] if kind == "bpe" else []
                length += len(text)
            if kind == "bpe" and length > SAMPLE:
                break
    return tokenizers.TRAINERS[kind]("\n".join(sample) or "".join(characters), "", vocab_size)


def write_all(writer: TokenWriter, batches: Sequence[Batch], processes: int) -> None:
    """Tokenize the batches that are not written yet, and write them. Raises DataError."""
    left = batches[writer.batches :]
    try:
        with workers(processes, writer.tokenizer or {}) as pool:
            for tokens in progress(pool.map(encoded, left), len(left), "tokenizing batches"):
                writer.add(tokens)
    except BrokenProcessPool:
        raise DataError(
            "--processes: a process was killed, perhaps because memory ran out; rerun with fewer to resume"
        ) from None


def progress(items: Iterable[Item], total: int, what: str) -> Iterable[Item]:
    from tqdm import tqdm

    bar: Iterable[Item] = tqdm(items, what, total, mininterval=1, unit="")
    return bar


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.prepare_corpus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="file", help="text, in the order in which it is read")
    add("--out", required=True, type=Path, metavar="FOLDER", help="where the tokens are written")
    add("--tokenizer", default="gpt2", choices=sorted(tokenizers.TRAINERS), help="default: %(default)s")
    add("--vocab-size", default=4096, type=int, metavar="N", help="of bpe; default: %(default)s")
    add("--val-fraction", default=0.005, type=float, metavar="X", help="of the text; default: %(default)s")
    add("--field", default="text", metavar="NAME", help="of .jsonl and .parquet; default: %(default)s")
    add("--processes", default=os.cpu_count(), type=int, metavar="N", help="default: %(default)s, the cores")
    arguments = parser.parse_args()
    outlive_readers()
    try:
        prepare(**vars(arguments))
    except DataError as error:
        sys.exit(f"error: {escaped(str(error))}")
    except ImportError as error:
        sys.exit(f"error: {error.name}: not installed; run pip install -r requirements-corpora.txt")
    except OSError as error:
        file = error.filename or arguments.out
        sys.exit(f"error: {escaped(str(file))}: {error.strerror}; make room or choose another --out")
    except KeyboardInterrupt:
        print("interrupted; rerun the same command to resume", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
