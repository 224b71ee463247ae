"""Files of any size → blocks of text, in constant memory.

    .txt .md .text          UTF-8
    .jsonl .ndjson .json    a document a line: an object whose field ``text`` has it
    .gz .zst behind these   compressed
    .parquet                a document a row

Where a block ends is a function of where it begins, so reading may start again behind any of them.
"""

import gzip
import io
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from data.documents import document, pieces
from system.errors import DataError

LARGEST = 2**22  # bytes that a block should have at most; a line that is longer makes it longer
LONGEST = 2**28  # bytes without a place to cut: a line of JSON, or words without a space
ROWS = 64  # of .parquet, that are read at once, if they are no long ones
LINE = re.compile(rb"^[^\S\n]*+\S[^\n]*+", re.MULTILINE)  # one with something in it
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

    @property
    def size(self) -> int:
        """Bytes of its content in memory, about."""
        return len(self.content) if isinstance(self.content, bytes) else sum(map(sys.getsizeof, self.content))

    def documents(self) -> Iterator[Iterable[str]]:
        """Its documents, or its plain text as one, each in pieces that no token spans. Raises DataError."""
        if isinstance(self.content, list):
            yield from map(pieces, self.content)
        elif self.of_documents:
            for line in LINE.finditer(self.content):
                yield document(self.content, *line.span(), self.field, self.path)
        else:
            try:
                yield pieces(self.content.decode())
            except UnicodeDecodeError as error:
                byte, at = self.content[error.start], self.start + error.start
                raise DataError(
                    f"{self.path}: byte 0x{byte:02x} at offset {at} is not UTF-8; convert the file to UTF-8"
                ) from None


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
            rest = bytearray()  # what is read behind the last block
            while fill(rest, stream, size):
                at, wanted, seen = 0, size, 0
                while not at:
                    if wanted > LONGEST:
                        raise DataError(f"{path}: a line of more than {LONGEST:,} bytes; break it up")
                    fill(rest, stream, wanted)
                    at = cut(rest, seen, wanted) if len(rest) >= wanted else len(rest)
                    wanted, seen = wanted + size, wanted - 1  # no line ends there
                content = bytes(memoryview(rest)[:at])
                del rest[:at]
                yield Block(path, file, content, field, start, start + at, raw.tell())
                start += at
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: {why}; check the path, its permissions and that it is whole") from None


def between_words(text: bytearray, seen: int, end: int) -> int:
    """Where to cut text so that no token spans it: at the last space or end of a line behind a letter or
    digit, before a letter if it is a space. 0 where there is none from ``seen`` to ``end``."""
    at = end - 1  # what is behind a space counts
    while (at := max(text.rfind(b" ", seen, at), text.rfind(b"\n", seen, at))) > 0:
        if text[at] == ord(" "):
            if text[at - 1 : at].isalnum() and text[at + 1 : at + 2].isalpha():  # of ASCII
                return at
        else:
            end = at - 1 if text[at - 1 : at] == b"\r" else at
            if text[max(0, end - 4) : end].decode(errors="ignore")[-1:].isalnum():
                return end
    return 0


def behind_a_line(text: bytearray, seen: int, end: int) -> int:
    return text.rfind(b"\n", seen, end) + 1


def fill(rest: bytearray, stream: BinaryIO, size: int) -> int:
    """Read behind ``rest`` until it has ``size`` bytes, or the stream ends; how many it has."""
    while len(rest) < size and (more := stream.read(size - len(rest))):
        rest += more
    return len(rest)


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
        about = whole.metadata.row_group(group)
        count = about.num_rows
        if row + count > start:
            at_once = max(1, min(ROWS, count * LARGEST // max(1, about.total_byte_size)))
            for batch in whole.iter_batches(at_once, row_groups=[group], columns=[field]):
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
