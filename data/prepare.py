"""Any amount of text → a folder of tokens, in constant memory: for corpora that are larger than it.

    python -m data.prepare web/*.jsonl.zst --out prepared/web --tokenizer gpt2
    python train.py data=prepared data.path=prepared/web

It reads .txt and .jsonl (a document a line), both also compressed (.gz, .zst), and .parquet (a document a
row). Other processes make tokens of blocks of text, and this one writes them, in their order, to files of 100
million. Files that are whole are not made again: ended in whatever way, the same command goes on behind them.

Of every so many blocks one validates. Documents end with <|endoftext|> where the tokenizer has that, else
with the end of a line.
"""

import argparse
import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from data import tokenizers
from data.blocks import LARGEST, Block, blocks, kind_of
from data.making import Making
from data.workers import Workers
from system.errors import DataError
from system.terminal import escaped, outlive_readers

SAMPLE = 2**26  # bytes of text that bpe is trained on
SECONDS = 5.0  # between two lines on a pipe


def prepare(
    files: list[Path],
    out: Path,
    tokenizer: str,
    vocab_size: int,
    val_fraction: float,
    field: str,
    processes: int,
) -> None:
    """Arguments as on the command line.

    Raises:
        DataError: a file cannot be read, is not of its kind, or has what the tokenizer cannot encode.
    """
    if not 0 < val_fraction <= 0.5:
        raise DataError(f"--val-fraction: {val_fraction} is not above 0 and at most 0.5; give another")
    if processes < 1:
        raise DataError(f"--processes: {processes} is not 1 or more; give another")
    if not 256 <= vocab_size <= 2**20:
        raise DataError(f"--vocab-size: {vocab_size} is not in 256 to {2**20:,}; give another")
    if not out.name:
        raise DataError(f"--out: {out} is not the name of a folder; give one")
    for file in files:
        try:
            if not file.is_file():
                why = "is no file" if file.exists() else "no such file"
                raise DataError(f"{file}: {why}; give files of text")
            file.open("rb").close()
        except OSError as error:
            raise DataError(f"{file}: {error.strerror}; give files that can be read") from None
        kind_of(file)
    sizes = [file.stat().st_size for file in files]
    every = round(1 / val_fraction)
    size = min(LARGEST, max(2**10, sum(sizes) // (4 * every)))  # so that some blocks validate
    how = {
        "files": [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files],
        "tokenizer": [tokenizer, vocab_size if tokenizer == "bpe" else None],
        "val_every": every,
        "field": field,
    }
    making = Making(out, how)
    if making.is_done():
        print(f"{out}: is there already, made of these files")
        return
    with making, Bar(sum(sizes)) as bar:
        if making.tokenizer is None:
            bar.begin(f"making a tokenizer: {tokenizer}")
            text = through(files, size, field)
            making.begin(new_tokenizer(tokenizer, vocab_size, text).spec)
        assert making.tokenizer
        first, start, done = making.next
        bar.begin("starting" if not done else "finding its place in the text")
        left = through(files, size, field, first, start)
        with Workers(processes, making.tokenizer) as workers:
            for number, (block, tokens) in enumerate(workers.encoded(left), start=done):
                making.add(block.file, block.end, number, tokens)
                bar.show(sum(sizes[: block.file]) + block.stored, len(tokens))
        making.finish()
    train, val = (making.counts[split] for split in ("train", "val"))
    print(f"{out}: {train:,} tokens to train on, {val:,} to validate")


def through(files: Sequence[Path], size: int, field: str, first: int = 0, start: int = 0) -> Iterator[Block]:
    """The blocks of files, from ``start`` in the ``first`` on."""
    for number in range(first, len(files)):
        yield from blocks(files[number], number, start if number == first else 0, size, field)


def new_tokenizer(kind: str, vocab_size: int, text: Iterator[Block]) -> tokenizers.Tokenizer:
    """Of all characters there are, or trained on the first of the text, or GPT-2's."""
    if kind == "gpt2":
        return tokenizers.TRAINERS[kind]("", "", vocab_size)
    characters: set[str] = {"\n"}
    sample: list[str] = []
    size = 0
    for document in itertools.chain.from_iterable(block.documents() for block in text):
        for piece in document:
            size += len(piece)
            if kind == "char":
                characters.update(piece)
            else:
                sample.append(piece)
        if kind == "bpe" and size > SAMPLE:
            break
    whole = "".join(characters) if kind == "char" else "\n".join(sample)
    return tokenizers.TRAINERS[kind](whole, "", vocab_size)


class Bar:
    """What goes on, and how much of so many bytes is read: a live line on a terminal, else one each five
    seconds, also while there is nothing new to say."""

    def __init__(self, total: int) -> None:
        self.total, self.tokens = total, 0
        self.start = 0.0
        self.said = ""
        self.ended = threading.Event()
        columns = (BarColumn(30), TextColumn("{task.fields[said]}"), TextColumn("eta"), TimeRemainingColumn())
        self.live = Progress(*columns, console=Console(highlight=False)) if sys.stdout.isatty() else None
        if self.live:
            self.task = self.live.add_task("", total=total, said="")

    def __enter__(self) -> "Bar":
        if self.live:
            self.live.start()
        else:
            threading.Thread(target=self.tell, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        if self.live:
            self.live.stop()

    def tell(self) -> None:
        while not self.ended.wait(SECONDS):
            print(self.said, flush=True)

    def begin(self, what: str) -> None:
        self.start = time.monotonic()
        self.say(what)

    def say(self, said: str) -> None:
        self.said = said
        if self.live:
            self.live.update(self.task, said=said)

    def show(self, read: int, tokens: int) -> None:
        """So many bytes are read, all together, and so many tokens made since the last call."""
        if self.live and not self.tokens:  # what earlier processes have read is not this one's pace
            self.live.reset(self.task, completed=read)
        self.tokens += tokens
        pace = self.tokens / (time.monotonic() - self.start) / 1e6
        millions = f"{self.tokens / 1e6:,.1f} million tokens, {pace:.2f} million a second"
        self.say(f"{read / self.total:.0%}  {millions}")
        if self.live:
            self.live.update(self.task, completed=read)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m data.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="file", help="text, in the order in which it is read")
    add("--out", required=True, type=Path, metavar="FOLDER", help="where the tokens go")
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
        leave(1, f"error: {escaped(str(error))}")
    except OSError as error:
        leave(1, f"error: {escaped(str(error.filename))}: {error.strerror}; make room or name another --out")
    except KeyboardInterrupt:
        leave(130, "the same command goes on behind the last file that is whole")


def leave(status: int, why: str) -> NoReturn:
    """End now. A pool whose processes were killed waits for them at the end of the interpreter, too, and in 1
    of 13 for ever: for the rest of what one was saying."""
    with contextlib.suppress(OSError):
        print(why, file=sys.stderr, flush=True)
        sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
