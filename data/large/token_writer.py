"""The token files of a large corpus, built in FOLDER.part and renamed to FOLDER once they are complete:

    train.bin, val.bin      token ids, appended batch by batch
    progress.json           how much of them is final; a process that resumes cuts off what follows

FOLDER.part.lock is held by the process that writes them.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import tokenizers
from data.token_files import FORMAT, SPLITS, file_digest
from system.errors import DataError
from system.files import naming, small_text, write_atomically
from system.lock import hold

EVERY = 32  # batches between two updates of progress.json
LARGEST = 2**26  # bytes of progress.json, with a tokenizer in it


@contextmanager
def only_process(out: Path) -> Iterator[None]:
    """Raise DataError if another process is preparing ``out``."""
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = out.with_name(out.name + ".part.lock")
    try:
        held = hold(lock)
    except BlockingIOError as holder:
        raise DataError(f"{out}: {holder} is preparing it; wait for it or stop it") from None
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file
            lock.unlink()
        held.release()


def read_json(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(small_text(file, LARGEST)))
    except (OSError, ValueError, TypeError):
        return {}


def is_complete(out: Path, made_from: str) -> bool:
    """Return whether ``out`` exists. Raises DataError if it was built from something else."""
    if out.exists() and read_json(out / "meta.json").get("made_from") != made_from:
        raise DataError(
            f"{out}: already exists and was built from other files or settings; choose another --out"
        )
    return out.exists()


class TokenWriter:
    """Appends the tokens of batches, in their order.

    Attributes:
        folder: FOLDER.part.
        tokenizer: its description; None until ``set_tokenizer``.
        batches: how many have been written.
    """

    def __init__(self, out: Path, made_from: str, val_every: int) -> None:
        self.out, self.made_from, self.val_every = out, made_from, val_every
        self.folder = out.with_name(out.name + ".part")
        progress = read_json(self.folder / "progress.json")
        if progress and progress["made_from"] != made_from:
            print(f"{out}: starts over, because files or settings have changed", flush=True)
            shutil.rmtree(self.folder)
            progress = {}
        elif not progress and self.folder.exists() and any(self.folder.iterdir()):
            raise DataError(f"{self.folder}: not created by this program; move it, or choose another --out")
        self.folder.mkdir(exist_ok=True)
        self.tokenizer: dict[str, Any] | None = progress.get("tokenizer")
        self.batches: int = progress.get("batches", 0)
        self.files = {split: self.folder / f"{split}.bin" for split in SPLITS}
        for split, file in self.files.items():
            with file.open("ab") as stream:
                stream.truncate(progress.get(split, 0))
        if self.batches:
            print(f"{out}: resumes after {self.batches:,} batches", flush=True)
        self.save()

    def set_tokenizer(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.tokenizer = tokenizer.spec
        self.save()

    def add(self, tokens: NDArray[np.unsignedinteger]) -> None:
        """Append the tokens of the next batch."""
        file = self.files["val" if self.batches % self.val_every == self.val_every - 1 else "train"]
        with naming(file), file.open("ab") as stream:
            stream.write(tokens.data)
        self.batches += 1
        if self.batches % EVERY == 0:
            self.save()

    def save(self) -> None:
        """Make what has been written final."""
        progress = {"made_from": self.made_from, "tokenizer": self.tokenizer, "batches": self.batches}
        for split, file in self.files.items():
            with naming(file), file.open("ab") as stream:
                os.fsync(stream.fileno())
                progress[split] = stream.tell()
        write_atomically(self.folder / "progress.json", json.dumps(progress), sync=True)

    def finish(self) -> dict[str, int]:
        """Write meta.json, rename the folder and return the tokens of each split. Raises DataError if a split
        has none."""
        self.save()
        vocab_size = tokenizers.from_spec(self.tokenizer).vocab_size
        dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
        meta: dict[str, Any] = {"format": FORMAT, "made_from": self.made_from, "dtype": str(dtype)}
        meta["tokenizer"] = self.tokenizer
        for split, file in self.files.items():
            meta[split] = {"tokens": file.stat().st_size // dtype.itemsize, "sha256": file_digest(file)}
            if not meta[split]["tokens"]:
                raise DataError("--val-fraction: the text is too short for a validation split; increase it")
        write_atomically(self.folder / "meta.json", json.dumps(meta, indent=1), sync=True)
        self.folder.rename(self.out)
        (self.out / "progress.json").unlink()
        return {split: meta[split]["tokens"] for split in SPLITS}
