"""Tokenize corpora larger than memory: text files -> batches of rows -> token ids. pyarrow streams the rows,
and several processes tokenize them, so only a few batches are in memory at once.
"""

import io
import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import tokenizers
from data.errors import DataError
from data.prepared import token_type

END = "<|endoftext|>"
TEXT, LINES, TABLE = (".txt", ".md", ".text"), (".jsonl", ".ndjson", ".json"), (".parquet",)
ROWS = 1000  # number of rows read at once
Tokens = NDArray[np.unsignedinteger]


def kind_of(file: Path) -> str:
    """Return the file's extension, ignoring .gz or .zst. Raises DataError if the extension is unknown."""
    kind = Path(file.stem).suffix if file.suffix in (".gz", ".zst") else file.suffix
    if kind not in (*TEXT, *LINES, *TABLE):
        known = " ".join((*TEXT, *LINES, *TABLE))
        raise DataError(
            f"{file}: unknown extension; expected {known}, the text formats also with .gz or .zst"
        )
    return kind


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of a file: lines of text, JSON objects or documents."""

    file: Path
    field: str
    start: int  # number of the file's rows before this batch
    rows: list[str]

    def texts(self) -> list[str]:
        """Return the documents in the batch; lines of plain text are joined into one. Raises DataError at a
        row without text."""
        if kind_of(self.file) in TEXT:
            return ["".join(self.rows)]
        if kind_of(self.file) in TABLE:
            return self.rows
        return [self.document(line) for line in self.rows if not line.isspace()]

    def document(self, line: str) -> str:
        try:
            text = json.loads(line.removeprefix("\ufeff"))[self.field]  # a byte-order mark
            if text is None:  # as in a table, an empty document
                return ""
            text.encode()  # raises at lone surrogates
            return str(text)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise DataError(
                f"{self.file}: not a JSON object with a text {self.field!r}: {line[:60].rstrip()}…; "
                "correct the line, or choose another --field"
            ) from None


def read_batches(file: Path, field: str, size: int) -> Iterator[Batch]:
    """Yield the rows of a file in batches of at least ``size`` bytes; the last may be shorter."""
    start, length, rows = 0, 0, list[str]()
    for row in read_rows(file, field):
        rows.append(row)
        length += len(row.encode())
        if length >= size:
            yield Batch(file, field, start, rows)
            start, length, rows = start + len(rows), 0, []
    if rows:
        yield Batch(file, field, start, rows)


def read_rows(file: Path, field: str) -> Iterator[str]:
    """Yield the lines of a file, or the texts of a Parquet file. Raises DataError if it is unreadable."""
    import pyarrow
    import pyarrow.parquet

    try:
        if kind_of(file) not in TABLE:
            with pyarrow.input_stream(str(file)) as stream:  # decompresses .gz and .zst
                yield from io.TextIOWrapper(stream, encoding="utf-8", newline="\n")  # leaves \r as it is
            return
        with pyarrow.parquet.ParquetFile(file) as table:
            if field not in table.schema_arrow.names:
                raise ValueError(f"no column {field!r}")
            for batch in table.iter_batches(ROWS, columns=[field]):
                for text in batch.column(0).to_pylist():
                    if not isinstance(text, str | None):
                        raise ValueError(f"column {field!r} is not text")
                    yield text or ""
    except (ValueError, OSError) as error:
        message = str(error).partition("\n")[0]
        raise DataError(f"{file}: {message}; check the file and --field") from None


# --------------------------------------------------------------------------------------------------
# Tokens of batches

tokenizer: tokenizers.Tokenizer  # set in worker processes only


def start_worker(spec: dict[str, Any]) -> None:
    """Initialise a worker process, which ends when its parent ends."""
    global tokenizer

    parent: Any = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    tokenizer = tokenizers.from_spec(spec)


def encode(batch: Batch) -> Tokens:
    """Return the token ids of a batch, 1-D. Documents end with <|endoftext|>, or with a line break if the
    tokenizer has no such token."""
    is_document = kind_of(batch.file) not in TEXT
    has_end = END in getattr(tokenizer, "special", ())
    end = [tokenizer.vocab_size - 1] if is_document and has_end else []  # GPT-2's only special token
    line_break = "\n" if is_document and not has_end else ""
    try:
        ids = [part for text in batch.texts() for part in (tokenizer.encode(text + line_break), end)]
    except DataError as error:
        raise DataError(f"{batch.file}: after row {batch.start:,}: {error}") from None
    return np.concatenate([[], *ids], dtype=token_type(tokenizer.vocab_size), casting="unsafe")


def encode_all(batches: Iterable[Batch], processes: int, spec: dict[str, Any]) -> Iterator[Tokens]:
    """Yield the token ids of each batch, computed by several processes; Ctrl-C reaches this process alone."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=start_worker, initargs=(spec,))
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by the workers, which start now
    for _ in range(processes):
        pool.submit(os.getpid)
    signal.signal(signal.SIGINT, handler)
    pending: deque[Future[Tokens]] = deque()
    with pool:
        for batch in batches:
            pending.append(pool.submit(encode, batch))
            if len(pending) > 2 * processes:
                yield pending.popleft().result()
        yield from (future.result() for future in pending)
