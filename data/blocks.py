"""Files of any size → blocks of text, in constant memory.

    .txt .md .text          UTF-8
    .jsonl .ndjson .json    a document a line: an object whose field ``text`` has it
    .gz .zst behind these   compressed
    .parquet                a document a row

Where a block ends is a function of where it begins, so reading may start again behind any of them.
"""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from data import DataError

LARGEST = 2**22  # bytes that a block should have at most; a line that is longer makes it longer
LONGEST = 2**28  # bytes without a place to cut
ROWS = 64  # of .parquet, that are read at once
TEXT, LINES, ROW = (".txt", ".md", ".text"), (".jsonl", ".ndjson", ".json"), ".parquet"


@dataclass(frozen=True)
class Block:
    """A piece of a file.

    Attributes:
        path, file: its name, and its number among those that are read.
        content: text; lines of JSON; or documents.
        field: of a line, that has its document.
        start, end: where in the file it begins, and the next one does: bytes, uncompressed, or rows.
        stored: bytes of the file, as it lies there, that are read by then.
    """

    path: Path
    file: int
    content: bytes | list[str]
    field: str
    start: int
    end: int
    stored: int

    @property
    def of_documents(self) -> bool:
        return isinstance(self.content, list) or kind_of(self.path) in LINES

    def texts(self) -> list[str]:
        """Its documents, or its plain text as one. Raises DataError."""
        if isinstance(self.content, list):
            return self.content
        if self.of_documents:
            lines = self.content.split(b"\n")
            return [document(line, self.field, self.path) for line in lines if line.strip()]
        try:
            return [self.content.decode()]
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path}: byte 0x{self.content[error.start]:02x} at offset {self.start + error.start} "
                "is not UTF-8; convert the file to UTF-8"
            ) from None


def document(line: bytes, field: str, file: Path) -> str:
    try:
        found = json.loads(line)[field]
        found.encode()  # no lone surrogate is in it
        return str(found)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    shown = line[:60].decode(errors="replace")
    raise DataError(f"{file}: a line is no object with a text {field!r}: {shown}…; mend it, or give --field")


def kind_of(file: Path) -> str:
    """Its ending, without that of its compression. Raises DataError where it is none of ours."""
    kind = Path(file.stem).suffix if file.suffix in (".gz", ".zst") else file.suffix

    if kind not in (*TEXT, *LINES, ROW):
        known = " ".join((*TEXT, *LINES, ROW))
        raise DataError(f"{file}: its name does not say of which kind it is; give it one of {known}")
    return kind


def blocks(path: Path, file: int, start: int, size: int, field: str) -> Iterator[Block]:
    """Those of a file from ``start`` on, where a block begins, of so many bytes or a little less.

    Raises:
        DataError: the file cannot be read, or what reads its kind is not installed.
    """
    try:
        if kind_of(path) == ROW:
            yield from rows(path, file, start, size, field)
            return
        cut = behind_a_line if kind_of(path) in LINES else between_words
        with path.open("rb") as raw, uncompressed(path, raw) as stream:
            skip(stream, start)
            rest = b""  # what is read behind the last block
            while rest := filled(stream, rest, size):
                at, wanted = 0, size
                while not at:
                    rest = filled(stream, rest, wanted)
                    at = cut(rest[:wanted]) if len(rest) >= wanted else len(rest)
                    wanted *= 2  # no line ends there
                    if wanted > LONGEST and not at:
                        raise DataError(f"{path}: a line of more than {LONGEST // 2:,} bytes; break it up")
                yield Block(path, file, rest[:at], field, start, start + at, raw.tell())
                start, rest = start + at, rest[at:]
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: {error}; check the path, its permissions and that it is whole") from None


def between_words(text: bytes) -> int:
    """Where to cut text so that no token spans it: at the last space or end of a line behind a letter or
    digit, before a letter if it is a space. 0 where there is none."""
    at = len(text)
    while (at := max(text.rfind(b" ", 0, at), text.rfind(b"\n", 0, at))) > 0:
        if text[at] == ord(" "):
            if text[at - 1 : at].isalnum() and text[at + 1 : at + 2].isalpha():  # of ASCII
                return at
        else:
            end = at - 1 if text[at - 1 : at] == b"\r" else at
            if text[max(0, end - 4) : end].decode(errors="ignore")[-1:].isalnum():
                return end
    return 0


def behind_a_line(text: bytes) -> int:
    return text.rfind(b"\n") + 1


def filled(stream: BinaryIO, rest: bytes, size: int) -> bytes:
    """``rest`` and what follows it, ``size`` bytes together, or fewer at the end of the stream."""
    parts = [rest]
    missing = size - len(rest)
    while missing > 0 and (more := stream.read(missing)):
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)


def skip(stream: BinaryIO, start: int) -> None:
    if isinstance(stream, io.BufferedReader):
        stream.seek(start)
        return
    while start > 0 and (some := stream.read(min(start, LARGEST))):
        start -= len(some)


@contextmanager
def uncompressed(file: Path, raw: BinaryIO) -> Iterator[BinaryIO]:
    if file.suffix == ".gz":
        with gzip.GzipFile(fileobj=raw) as stream:
            yield stream  # type: ignore[misc]
    elif file.suffix == ".zst":
        zstandard = extra("zstandard", file)
        try:
            yield Zstandard(raw, zstandard.ZstdDecompressor().decompressobj)  # type: ignore[misc]
        except zstandard.ZstdError as error:
            raise DataError(f"{file}: {error}; check that it is whole") from None
    else:
        yield raw


class Zstandard:
    """A stream of frames, uncompressed. (The package's own does not notice that the last one is cut.)"""

    def __init__(self, raw: BinaryIO, new: Callable[[], Any]) -> None:
        self.raw, self.new = raw, new
        self.frame: Any = None
        self.ready = b""

    def read(self, size: int) -> bytes:
        """At most that many bytes; none at the end. Raises EOFError where it ends within a frame."""
        while not self.ready:
            rest = self.frame.unused_data if self.frame and self.frame.eof else b""
            if not (some := rest or self.raw.read(2**17)):
                if self.frame and not self.frame.eof:
                    raise EOFError("ends in the middle")
                return b""
            if self.frame is None or self.frame.eof:
                self.frame = self.new()
            self.ready = self.frame.decompress(some)
        found, self.ready = self.ready[:size], self.ready[size:]
        return found


def rows(path: Path, file: int, start: int, size: int, field: str) -> Iterator[Block]:
    """The blocks of a .parquet file from a row on."""
    parquet = extra("pyarrow.parquet", path)
    try:
        whole = parquet.ParquetFile(path, buffer_size=2**20)
        columns = {column.name: str(column.type) for column in whole.schema_arrow}
        if not columns.get(field, "").endswith(("string", "string_view")):
            names = ", ".join(name for name, kind in columns.items() if kind.endswith("string"))
            raise DataError(f"{path}: has no column {field!r} of text; choose one with --field: {names}")
        total, stored = max(1, whole.metadata.num_rows), path.stat().st_size
        waiting: list[str] = []
        length = 0
        for row, text in enumerate(column_of(whole, field, start), start=start + 1):
            waiting.append(text)
            length += len(text)
            if length >= size or row == total:
                yield Block(path, file, waiting, field, start, row, stored * row // total)
                waiting, length, start = [], 0, row
    except ValueError as error:  # as Arrow's are
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: {error}; check that it is whole") from None


def column_of(whole: Any, field: str, start: int) -> Iterator[str]:
    """A column's texts from a row on; a row without one has an empty one."""
    row = 0
    for group in range(whole.num_row_groups):
        count = whole.metadata.row_group(group).num_rows
        if row + count > start:
            for batch in whole.iter_batches(ROWS, row_groups=[group], columns=[field]):
                if row + batch.num_rows > start:
                    yield from (text or "" for text in batch.column(0).to_pylist()[max(0, start - row) :])
                row += batch.num_rows
        else:
            row += count


def extra(module: str, file: Path) -> Any:
    """A package that only some files need. Raises DataError where it is not installed."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(
            f"{file}: needs {module.split('.')[0]}; pip install -r requirements-corpora.txt"
        ) from None
