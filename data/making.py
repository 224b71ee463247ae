"""A folder of token files that is being made, FOLDER.part beside its place, and renamed into it when it is
whole:

    train-00000.bin …       token ids
    val-00000.bin …
    progress.json           what is whole, and where the next one begins in the text; until it is all
    meta.json               then

FOLDER.part.lock is held by the process that makes it.
"""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from data.external import together
from data.token_files import FORMAT, SPLITS, digest
from system.errors import DataError
from system.files import naming, small_text, write_atomically
from system.lock import hold

SHARD = 100_000_000  # tokens of a file; it ends with the block in which it has them
LARGEST = 2**26  # bytes of progress.json, with a tokenizer in it


class Making:
    """The folder ``out`` while it is made of ``how``, plain data that determines all of it.

    Attributes:
        tokenizer: the description of the one that is used, or None where it is not made yet.
        next: where the text goes on: in which file, where in it, and with which block.
        counts: tokens of each split, in files that are whole.
    """

    def __init__(self, out: Path, how: dict[str, Any]) -> None:
        self.out, self.how = out, digest({"format": FORMAT} | how)
        self.every = int(how["val_every"])
        self.folder = out.with_name(out.name + ".part")
        self.state: dict[str, Any] = {"how": self.how, "tokenizer": None, "next": [0, 0, 0], "shards": []}
        self.lock = out.with_name(out.name + ".part.lock")
        self.held: IO[str] | None = None
        self.open: dict[str, Shard] = {}
        self.behind = (0, 0, 0)  # the last block that was added, as ``next``

    def is_done(self) -> bool:
        """Raises DataError where there is something else."""
        if not self.out.exists():
            return False
        try:
            if json.loads(small_text(self.out / "meta.json", LARGEST)).get("made_from") == self.how:
                (self.out / "progress.json").unlink(missing_ok=True)
                return True
        except (OSError, ValueError, AttributeError):
            pass
        raise DataError(
            f"{self.out}: is there, and is not made of these files in this way; name another --out"
        )

    def __enter__(self) -> Self:
        """Go on where an earlier process was, or begin. Raises DataError where one is at it."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.held = hold(self.lock)
        except BlockingIOError as who:
            raise DataError(f"{self.out}: {who} is making it; wait for it or end it") from None
        try:
            self.go_on()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for shard in self.open.values():
            shard.file.close()
        if self.held:
            with suppress(OSError):  # Windows removes no file that is open
                self.lock.unlink()
            self.held.close()

    def go_on(self) -> None:
        if self.is_done():
            raise DataError(f"{self.out}: another process has made it by now; use it")
        before = self.found()
        if before.get("how") == self.how:
            self.state = before
            done = self.counts
            if self.state["shards"]:
                print(f"{self.out}: goes on; {sum(done.values()):,} tokens are there", flush=True)
        elif before:
            print(f"{self.out}: starts over, as files or arguments have changed", flush=True)
            shutil.rmtree(self.folder)
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise DataError(f"{self.folder}: is there, and is not of ours; move it, or name another --out")
        self.folder.mkdir(exist_ok=True)
        for left in self.folder.glob(".*.tmp"):  # by a process that was killed
            left.unlink()
        self.write()

    def found(self) -> dict[str, Any]:
        try:
            return dict(json.loads(small_text(self.folder / "progress.json", LARGEST)))
        except (OSError, ValueError, TypeError):
            return {}

    def write(self) -> None:
        write_atomically(self.folder / "progress.json", json.dumps(self.state), sync=True)

    @property
    def tokenizer(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.state["tokenizer"]
        return found

    def begin(self, tokenizer: dict[str, Any]) -> None:
        self.state["tokenizer"] = tokenizer
        self.write()

    @property
    def next(self) -> tuple[int, int, int]:
        file, offset, block = self.state["next"]
        return file, offset, block

    @property
    def counts(self) -> dict[str, int]:
        """Tokens of each split in files that are whole."""
        every = [shard for pair in self.state["shards"] for shard in pair]
        return {split: sum(s["tokens"] for s in every if s["split"] == split) for split in SPLITS}

    def add(self, file: int, end: int, block: int, tokens: NDArray[np.unsignedinteger]) -> None:
        """The tokens of the next block, behind which the text goes on at ``end`` of ``file``."""
        split = "val" if block % self.every == self.every - 1 else "train"
        if split not in self.open:
            number = len(self.state["shards"])
            self.open[split] = Shard(self.folder / f"{split}-{number:05d}.bin", split)
        self.open[split].write(tokens)
        self.behind = file, end, block + 1
        if sum(shard.tokens for shard in self.open.values()) >= SHARD:
            self.close()

    def close(self) -> None:
        """All files that are open are whole."""
        self.state["shards"].append([shard.finish() for shard in self.open.values()])
        self.state["next"] = self.behind
        self.open.clear()
        self.write()

    def finish(self) -> None:
        """There is no more text. Raises DataError where there was too little."""
        if self.open:
            self.close()
        if not all(self.counts.values()):
            raise DataError("--val-fraction: the text is too short for a block that validates; raise it")
        every = [shard for pair in self.state["shards"] for shard in pair]
        meta: dict[str, Any] = {"format": FORMAT, "made_from": self.how, "tokenizer": self.tokenizer}
        for split in SPLITS:
            files = [shard for shard in every if shard["split"] == split]
            meta["dtype"] = files[0]["dtype"]
            meta[split] = together([{key: s[key] for key in ("name", "tokens", "sha256")} for s in files])
        write_atomically(self.folder / "meta.json", json.dumps(meta, indent=1), sync=True)
        self.folder.rename(self.out)
        (self.out / "progress.json").unlink(missing_ok=True)  # another process may have looked by


class Shard:
    """A file of tokens that grows; a part of it is never seen under its name."""

    def __init__(self, path: Path, split: str) -> None:
        self.path, self.split = path, split
        self.temporary = path.with_name(f".{path.name}.tmp")
        self.file = self.temporary.open("wb")
        self.sha256 = hashlib.sha256()
        self.tokens, self.dtype = 0, ""

    def write(self, tokens: NDArray[np.unsignedinteger]) -> None:
        with naming(self.temporary):
            self.file.write(tokens.data)
        self.sha256.update(tokens.data)
        self.tokens += len(tokens)
        self.dtype = str(tokens.dtype)

    def finish(self) -> dict[str, Any]:
        with naming(self.temporary), self.file:
            self.file.flush()
            os.fsync(self.file.fileno())
        self.temporary.replace(self.path)
        about = {"name": self.path.name, "split": self.split, "dtype": self.dtype}
        return about | {"tokens": self.tokens, "sha256": self.sha256.hexdigest()}
