"""Tokenize text of any size into a folder of token files, in constant memory.

    python -m scripts.prepare_corpus web/*.jsonl.zst --out prepared/web --tokenizer gpt2
    python train.py data=prepared data.path=prepared/web

The program reads .txt, .jsonl (each line a document) and .parquet (each row a document), the first two also
compressed (.gz, .bz2, .xz, .zst). Documents end with <|endoftext|>, or with a line break if the tokenizer has
no such token; files of plain text become one text, with nothing between them. Every n-th piece of about a
million characters is for validation; n is 1 / --val-fraction, rounded.

The tokens are written into a hidden folder beside FOLDER, which becomes FOLDER when it is complete. After an
interruption the same command starts over and writes the same tokens."""

import glob
import json
import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from locale import getpreferredencoding
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cli import programs
from cli.errors import checked, one_line_errors
from cli.schema import Checked
from data import tokenizers
from data.errors import DataError
from data.files import new_folder
from data.token_files import write_tokens
from study.launch import cores

# For the library datasets, which reads them when it is imported
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
OFFLINE |= {"USE_TORCH": "0", "DATASETS_VERBOSITY": "critical"}  # no import of torch, one line for an error
KINDS = {".txt": "text", ".md": "text", ".jsonl": "lines", ".json": "lines", ".parquet": "table"}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
ROWS = 1000  # rows read at once
PIECE = 2**20  # characters tokenized at once
SAMPLE = 2**26  # characters on which bpe is trained
Ids = NDArray[np.integer]
Piece = tuple[Path, list[str]]  # consecutive rows of a file: lines of a text, or documents


class Settings(Checked):
    """The arguments of the command line."""

    files: list[Path]
    out: Path
    tokenizer: Literal["bpe", "gpt2"]
    vocab_size: Annotated[int, Field(ge=256, le=2**20)]
    val_fraction: Annotated[float, Field(gt=0, le=0.5)]
    field: str


def prepare(settings: Settings) -> None:
    """Tokenize files into a folder. Raises OSError, and DataError if a file cannot be tokenized or the folder
    was made from other files."""
    stats = [(str(file), file.stat()) for file in settings.files]
    made_from = settings.model_dump(mode="json", exclude={"out"})
    made_from["files"] = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    out, val_every = settings.out.resolve(), round(1 / settings.val_fraction)
    if out.exists() and any(out.iterdir()):
        meta = out / "meta.json"
        if not meta.exists() or json.loads(meta.read_bytes()).get("made_from") != made_from:
            raise DataError(f"--out: {out} exists, made from other files or settings; choose another name")
        print(f"{out}: already exists, made from these files")
        return
    # of killed processes; one that still writes loses its folder and ends with an error
    for unfinished in out.parent.glob(f".{glob.escape(out.name)}-????????"):
        shutil.rmtree(unfinished)
    for file in settings.files:
        kind_of(file)  # raises before anything is read
    # so short that the validation split has several pieces
    length = min(PIECE, sum(stat.st_size for _, stat in stats) // (4 * val_every))
    read = partial(pieces, settings.files, settings.field, length)
    tokenizer = tokenizers.gpt2()
    if settings.tokenizer == "bpe":
        sample = "\n".join(chain.from_iterable(rows for _, rows in islice(read(), SAMPLE // (length + 1))))
        tokenizer = tokenizers.train_bpe(sample, "", settings.vocab_size)
    ids = encode_all(tokenizer, read())
    with new_folder(out) as folder:
        splits = (("val" if n % val_every == 0 else "train", part) for n, part in enumerate(ids, 1))
        written = write_tokens(folder, tokenizer, splits, made_from)
        train, val = written.train[0].tokens, written.val[0].tokens
        if not train or not val:
            raise DataError("--val-fraction: the text has too few lines to be split; give a larger fraction")
    print(f"{out}: {train:,} tokens to train on, {val:,} to validate")


def kind_of(file: Path) -> str:
    """Return the kind of a file, by its extension. Raises DataError if it is unknown."""
    suffix = Path(file.stem).suffix if file.suffix in COMPRESSED else file.suffix
    if suffix not in KINDS:
        raise DataError(f"{file}: unknown extension; expected one of {' '.join(KINDS)}")
    return KINDS[suffix]


def pieces(files: list[Path], field: str, length: int) -> Iterator[Piece]:
    """Yield the rows in pieces of at least ``length`` characters; the last of a file may be shorter."""
    for file in files:
        rows, size = list[str](), 0
        for row in read_rows(file, field):
            rows.append(row)
            size += len(row)
            if size >= length:
                yield file, rows
                rows, size = [], 0
        if rows:
            yield file, rows


def read_rows(file: Path, field: str) -> Iterator[str]:
    """Yield the lines of a text, or the documents of another file. Raises DataError if it is unreadable."""
    import fsspec.compression
    import pyarrow
    from datasets import load_dataset

    # fsspec, by which datasets reads files, needs a further package for .zst; pyarrow needs none
    zstd = partial(pyarrow.CompressedInputStream, compression="zstd")
    fsspec.compression.register_compression("zstd", lambda stream, **_: zstd(stream), "zst", force=True)
    if file.suffix in COMPRESSED and getpreferredencoding(False).lower() != "utf-8":  # datasets decodes by it
        raise DataError(f"{file}: would not be read as UTF-8, by your locale; set PYTHONUTF8=1")
    options: dict[str, Any]
    if (kind := kind_of(file)) == "table":
        reader, column, options = "parquet", field, {"columns": [field], "batch_size": ROWS}
    else:  # JSON too: the reader "json" stops at a field that the first lines lack
        reader, column, options = "text", "text", {"keep_linebreaks": True}
    try:
        with TemporaryDirectory() as cache:
            options |= {"data_files": [glob.escape(str(file))], "cache_dir": cache}
            for batch in load_dataset(reader, split="train", streaming=True, **options).iter(ROWS):
                for row in batch[column]:
                    if kind == "lines":
                        if row.isspace():
                            continue
                        row = json.loads(row.removeprefix("\ufeff"))[field]  # a byte-order mark
                    if not isinstance(row, str | None):
                        raise TypeError(f"{row!r:.60} is not a text")
                    yield row or ""
    except (ValueError, LookupError, TypeError, OSError, EOFError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise DataError(f"{file}: cannot be read ({reason}); check the file and --field") from None


def encode_all(tokenizer: tokenizers.BytePairTokenizer, read: Iterable[Piece]) -> Iterator[Ids]:
    """Yield the token ids of each piece, 1-D. A thread for each core computes them a little ahead; tiktoken
    lets the others run."""
    from tqdm import tqdm

    end = [len(tokenizer.tokens)] if tokenizer.special else tokenizer.encode("\n")

    def encode(file: Path, rows: list[str]) -> Ids:
        try:
            if kind_of(file) == "text":
                return tokenizer.encode("".join(rows))
            return np.concatenate([ids for text in rows for ids in (tokenizer.encode(text), end)])
        except DataError as error:
            raise DataError(f"{file}: {error}") from None

    pending: deque[Future[Ids]] = deque()
    with ThreadPoolExecutor(cores()) as pool:
        for piece in tqdm(read, "tokenizing", unit=" pieces", mininterval=1):
            pending.append(pool.submit(encode, *piece))
            if len(pending) > 2 * cores():
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def main() -> None:
    os.environ |= OFFLINE
    parser = programs.parser(__doc__, "scripts.prepare_corpus")
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="file", help="text, in the order in which it is read")
    add("--out", required=True, type=Path, metavar="FOLDER", help="where the tokens are written")
    add("--tokenizer", default="gpt2", choices=["bpe", "gpt2"], help="default: %(default)s")
    add("--vocab-size", default=4096, type=int, metavar="N", help="size of bpe; default: %(default)s")
    add("--val-fraction", default=0.005, type=float, metavar="X", help="default: %(default)s; rounded to 1/N")
    add("--field", default="text", metavar="NAME", help="field in .jsonl, .parquet; default: %(default)s")
    arguments = parser.parse_args()
    with one_line_errors():
        try:
            prepare(checked(Settings, vars(arguments)))
        except ImportError as error:
            remedy = "run pip install -r requirements-corpora.txt"
            raise DataError(f"{error.name}: not installed; {remedy}") from None


if __name__ == "__main__":
    main()
