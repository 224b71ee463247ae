"""Tokenize text of any size into a folder of token files, in constant memory.

    python -m scripts.prepare_corpus web/*.jsonl.zst --out prepared/web --tokenizer gpt2
    python train.py data=prepared data.path=prepared/web

The program reads .txt, .md, .jsonl (each line is a document) and .parquet (each row is a document). All but
.parquet may be compressed: .gz, .bz2, .xz, .zst. Each document ends with <|endoftext|>, or with a line break
if the tokenizer has no such token. Files of plain text are joined into one text. The text is cut into pieces
of about a million characters. Every n-th piece is for validation; n is 1 / --val-fraction, rounded.

The program writes the tokens into a hidden folder beside FOLDER, and renames it to FOLDER when it is
complete. After an interruption the same command starts over and writes the same tokens."""

import glob
import json
import lzma
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
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

KINDS = {".txt": "text", ".md": "text", ".jsonl": "lines", ".parquet": "table"}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
PIECE = 2**20  # characters tokenized at once
SAMPLE = 2**26  # characters on which bpe is trained
READ_ERRORS = (ValueError, LookupError, TypeError, OSError, EOFError, RuntimeError, lzma.LZMAError)
Ids = NDArray[np.integer]
Piece = tuple[Path, list[str]]  # consecutive rows of a file: lines of a text, or documents


class Settings(Checked):
    """The arguments of the command line."""

    files: list[Path]
    out: Path
    tokenizer: Literal["bpe", "gpt2"]
    vocab_size: Annotated[int, Field(ge=256, le=2**20)]
    val_fraction: Annotated[float, Field(ge=1e-6, le=0.5)]
    field: str


def prepare(settings: Settings) -> None:
    """Tokenize files into a folder. Raises DataError if the folder exists or a file cannot be tokenized, and
    OSError."""
    out, val_every = settings.out.resolve(), round(1 / settings.val_fraction)
    if out.exists():
        raise DataError(f"--out: {out} already exists; choose another folder")
    for folder in out.parent.glob(f".{glob.escape(out.name)}-*"):
        if re.fullmatch("[0-9a-f]{8}", folder.name.rpartition("-")[2]):  # left by a killed process
            shutil.rmtree(folder)
    for file in settings.files:
        kind_of(file)  # raises before anything is read
    # so short that the validation split has several pieces
    length = min(PIECE, sum(file.stat().st_size for file in settings.files) // (4 * val_every))
    tokenizer = tokenizers.gpt2()
    if settings.tokenizer == "bpe":
        sample = islice(pieces(settings.files, settings.field, length), SAMPLE // (length + 1))
        text = "\n".join(("" if kind_of(file) == "text" else "\n").join(rows) for file, rows in sample)
        tokenizer = tokenizers.train_bpe(text, "", settings.vocab_size)
    ids = encode_all(tokenizer, pieces(settings.files, settings.field, length))
    with new_folder(out) as folder:
        splits = (("val" if n % val_every == 0 else "train", part) for n, part in enumerate(ids, 1))
        written = write_tokens(folder, tokenizer, splits)
        train, val = written.train[0].tokens, written.val[0].tokens
        if not train or not val:
            raise DataError("--val-fraction: the text has too few lines to be split; give more")
    print(f"{out}: {train:,} tokens to train on, {val:,} to validate")


def kind_of(file: Path) -> str:
    """Return the kind of a file, by its extension. Raises DataError if it is unknown."""
    suffix = Path(file.stem).suffix if file.suffix in COMPRESSED else file.suffix
    if suffix not in KINDS:
        raise DataError(f"{file}: unknown extension; expected one of {' '.join(KINDS)}")
    return KINDS[suffix]


def pieces(files: list[Path], field: str, length: int) -> Iterator[Piece]:
    """Yield the rows in pieces of at least ``length`` characters; the last piece of a file may be shorter.
    Raises DataError if a file is unreadable."""
    for file in files:
        rows, size = list[str](), 0
        try:
            for row in read_rows(file, field):
                if not isinstance(row, str | None):
                    raise TypeError(f"{row!r:.60} is not a text")
                rows.append(row or "")
                size += len(rows[-1])
                if size >= length:
                    yield file, rows
                    rows, size = [], 0
        except READ_ERRORS as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise DataError(f"{file}: cannot be read ({reason}); check the file and --field") from None
        if rows:
            yield file, rows


def read_rows(file: Path, field: str) -> Iterator[Any]:
    """Yield the lines of a text file; of any other file, ``field`` of each document."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    kind = kind_of(file)
    if kind == "table":
        for batch in ParquetFile(file).iter_batches(1000, columns=[field]):
            yield from batch[field].to_pylist()
        return
    # pyarrow decompresses all but .xz
    binary: Any = lzma.open(file) if file.suffix == ".xz" else pyarrow.input_stream(str(file))  # noqa: SIM115
    with TextIOWrapper(binary, encoding="utf-8-sig") as lines:
        if kind == "text":
            yield from lines
        else:
            yield from (json.loads(line)[field] for line in lines if not line.isspace())


def encode_all(tokenizer: tokenizers.BytePairTokenizer, read: Iterator[Piece]) -> Iterator[Ids]:
    """Yield the token ids of each piece, 1-D, computed by threads, as tiktoken releases Python's lock."""
    from tqdm import tqdm

    end = [len(tokenizer.tokens)] if tokenizer.special else tokenizer.encode("\n")

    def encode(piece: Piece) -> Ids:
        file, rows = piece
        try:
            if kind_of(file) == "text":
                return tokenizer.encode("".join(rows))
            return np.concatenate([ids for text in rows for ids in (tokenizer.encode(text), end)])
        except DataError as error:
            raise DataError(f"{file}: {error}") from None

    progress = iter(tqdm(read, "tokenizing", unit=" pieces", mininterval=1))
    with ThreadPoolExecutor(cores()) as pool:
        while some := [*islice(progress, 4 * cores())]:
            yield from pool.map(encode, some)


def main() -> None:
    parser = programs.parser(__doc__, "scripts.prepare_corpus")
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="file", help="files of text, in the order to read them")
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
