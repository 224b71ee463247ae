"""Text files -> batches of rows -> token ids. `datasets` converts the files to Arrow files of rows, which the
processes that tokenize map into memory: no more than a batch of text is in memory for each of them.
"""

import errno
import glob
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import tokenizers
from system.errors import DataError

BATCH = 2**22  # bytes of text tokenized at once, unless a single row is longer
END = "<|endoftext|>"
TEXT, LINES, TABLE = (".txt", ".md", ".text"), (".jsonl", ".ndjson", ".json"), (".parquet",)
Tokens = NDArray[np.unsignedinteger]


def kind_of(file: Path) -> str:
    """Return the file's extension, without that of its compression. Raises DataError if it is unknown."""
    kind = Path(file.stem).suffix if file.suffix in (".gz", ".zst") else file.suffix
    if kind not in (*TEXT, *LINES, *TABLE):
        raise DataError(f"{file}: unknown extension; expected one of {' '.join((*TEXT, *LINES, *TABLE))}")
    return kind


@dataclass(frozen=True)
class Batch:
    """Rows of a file: lines of text, JSON objects or documents."""

    file: Path
    table: str  # the Arrow file with the rows
    start: int
    stop: int
    field: str

    def texts(self) -> list[str]:
        """Return its documents; plain text is joined into one. Raises DataError at a row without text."""
        import pyarrow

        with pyarrow.memory_map(self.table) as file:
            [column] = pyarrow.ipc.open_stream(file).read_all()[self.start : self.stop].columns
            rows = column.to_pylist()
        if kind_of(self.file) in TEXT:
            return ["".join(rows)]
        if kind_of(self.file) in TABLE:
            return [text or "" for text in rows]
        return [self.document(line) for line in rows if not line.isspace()]

    def document(self, line: str) -> str:
        try:
            text: str = json.loads(line)[self.field]
            text.encode()  # refuses lone surrogates
            return text
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise DataError(
                f"{self.file}: not a JSON object with a text {self.field!r}: {line[:60].rstrip()}…; "
                "correct the line, or choose another --field"
            ) from None


def batches_of(files: list[Path], field: str, val_every: int, cache: Path) -> list[Batch]:
    """Convert the files to Arrow files in ``cache``, unless that is done, and cut their rows into batches."""
    from datasets import Dataset, logging

    logging.set_verbosity(logging.CRITICAL)
    tables = [(file, table) for file in files for table in converted(file, field, cache)]
    rows = [Dataset.from_file(table).num_rows for _, table in tables]
    sizes = [os.path.getsize(table) for _, table in tables]
    largest = min(BATCH, sum(sizes) // (4 * val_every))  # so that several batches are for validation
    batches: list[Batch] = []
    for (file, table), count, size in zip(tables, rows, sizes, strict=True):
        step = max(1, count * largest // size)
        starts = range(0, count, step)
        batches += [Batch(file, table, start, min(start + step, count), field) for start in starts]
    return batches


def converted(file: Path, field: str, cache: Path) -> list[str]:
    """Convert a file to Arrow files and return their names. Raises DataError if the file cannot be read."""
    import datasets

    name = glob.escape(str(file))
    # A large writer_batch_size keeps the tables together that are read at once: small ones are slow to open.
    how: dict[str, Any] = {"cache_dir": str(cache), "writer_batch_size": 10**9}
    try:
        if not file.stat().st_size:
            return []
        if file.suffix == ".zst":
            check_complete(file)
        if kind_of(file) in TABLE:
            rows = datasets.Dataset.from_parquet(name, columns=[field], **how)
            if rows.features[field].dtype not in ("string", "large_string"):
                raise ValueError(f"column {field!r} is not text")
        else:
            rows = datasets.Dataset.from_text(name, keep_linebreaks=True, **how)
    except (datasets.exceptions.DatasetGenerationError, ValueError, EOFError, OSError) as error:
        reason = error.__cause__ or error
        if isinstance(reason, OSError) and reason.errno == errno.ENOSPC:
            raise reason from None
        message = str(reason).partition("\n")[0]
        raise DataError(f"{file}: {message}; check the file and --field") from None
    return [table["filename"] for table in rows.cache_files]


def check_complete(file: Path) -> None:
    """Raise ValueError if a .zst file is truncated, which `datasets` does not notice, or damaged."""
    import zstandard

    frame: Any = None
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(2**17):
                while chunk:
                    if frame is None or frame.eof:
                        frame = zstandard.ZstdDecompressor().decompressobj()
                    frame.decompress(chunk)
                    chunk = frame.unused_data
    except zstandard.ZstdError as error:
        raise ValueError(error) from None
    if frame and not frame.eof:
        raise ValueError("is truncated")


# --------------------------------------------------------------------------------------------------
# Tokens of batches


class Encoder:
    """Batch -> token ids, 1-D. Documents end with <|endoftext|>, or a line break in its absence."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.tokenizer = tokenizer
        special = getattr(tokenizer, "special", ())
        self.dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
        end = [tokenizer.vocab_size - len(special) + special.index(END)] if END in special else []
        self.end = np.array(end, self.dtype)

    def __call__(self, batch: Batch) -> Tokens:
        documents = kind_of(batch.file) not in TEXT
        parts = [self.end[:0]]
        for text in batch.texts():
            try:
                ids = self.tokenizer.encode(text + "\n" if documents and not len(self.end) else text)
            except DataError as error:
                raise DataError(f"{batch.file}: after row {batch.start:,}: {error}") from None
            parts += [ids.astype(self.dtype, copy=False), self.end[: int(documents)]]
        return np.concatenate(parts)


encode: Encoder  # in a worker


def start_worker(spec: dict[str, Any]) -> None:
    """Initialise a worker, which ends when its parent does."""
    global encode

    def follow() -> None:
        parent = multiprocessing.parent_process()
        assert parent
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    encode = Encoder(tokenizers.from_spec(spec))


def encoded(batch: Batch) -> Tokens:
    return encode(batch)


@contextmanager
def workers(processes: int, spec: dict[str, Any]) -> Iterator[ProcessPoolExecutor]:
    """Start processes that tokenize; Ctrl-C reaches this process alone."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=start_worker, initargs=(spec,))
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by processes started now
    for _ in range(processes):
        pool.submit(os.getpid)
    signal.signal(signal.SIGINT, handler)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
