"""Tokenize text of any size into a folder of token files, in constant memory.

    python -m scripts.prepare_corpus web/*.jsonl.zst --out prepared/web --tokenizer gpt2
    python train.py data=prepared data.path=prepared/web

The program reads .txt, .jsonl (each line a document), both also compressed (.gz, .zst), and .parquet (each
row a document), in batches that several processes tokenize. Every n-th batch is for validation; n is 1 /
--val-fraction, rounded. Documents end with <|endoftext|>, or with a line break if the tokenizer has no such
token; files of plain text become one text, with nothing between them.

After any interruption the same command resumes and writes the same tokens: FOLDER.part has train.bin, val.bin
and progress.json, which says how much of the two is final; FOLDER.part becomes FOLDER once it is complete."""

import json
import os
import shutil
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import FileLock, Timeout
from pydantic import Field

from cli import programs
from cli.errors import checked, one_line_errors
from cli.schema import Checked, Count
from data import tokenizers
from data.errors import DataError
from data.external import SPLITS
from data.files import digest, file_digest, write_atomically
from data.large_corpus import Batch, Tokens, encode_all, kind_of, read_batches
from data.prepared import FORMAT, token_type
from study.launch import cores

BATCH = 2**20  # bytes of a batch, unless a single row is longer
EVERY = 32  # number of batches between updates of progress.json
SAMPLE = 2**26  # number of characters on which bpe is trained


class Settings(Checked):
    """The arguments of the command line."""

    files: list[Path]
    out: Path
    tokenizer: Literal["bpe", "char", "gpt2"]
    vocab_size: Annotated[int, Field(ge=256, le=2**20)]
    val_fraction: Annotated[float, Field(gt=0, le=0.5)]
    field: str
    processes: Count


def prepare(settings: Settings) -> None:
    """Tokenize files into a folder. Raises OSError, and DataError if a file cannot be tokenized or the folder
    was made from other files."""
    files, out, tokenizer, field = settings.files, settings.out, settings.tokenizer, settings.field
    for file in files:
        kind_of(file)  # raises DataError for an unknown kind
    if not out.name or out.is_symlink():
        raise DataError(f"--out: {out} is not the name of a folder; choose another name")
    val_every = round(1 / settings.val_fraction)
    made_from = digest(
        {
            "files": [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files],
            "tokenizer": [tokenizer, settings.vocab_size if tokenizer == "bpe" else None],
            "val_every": val_every,
            "field": field,
            "format": 4,
        }
    )
    # so small that the validation split has several batches
    size = min(BATCH, sum(file.stat().st_size for file in files) // (4 * val_every))

    def batches() -> Iterator[Batch]:
        return (batch for file in files for batch in read_batches(file, field, size))

    with lock_output(out):
        if out.exists() and any(out.iterdir()):
            if read_json(out / "meta.json").get("made_from") == made_from:
                print(f"{out}: already exists, built from these files")
                return
            raise DataError(
                f"{out}: already exists and was built from other files or settings; choose another --out"
            )
        part = out.with_name(out.name + ".part")
        progress = begin(part, made_from)
        if "tokenizer" not in progress:
            print(f"preparing the tokenizer {tokenizer}", file=sys.stderr, flush=True)
            progress["tokenizer"] = new_tokenizer(tokenizer, settings.vocab_size, batches()).spec
        remaining = iter(batches())
        deque(islice(remaining, progress["batches"]), maxlen=0)  # these are tokenized already
        try:
            tokens_of_batches = encode_all(remaining, settings.processes, progress["tokenizer"])
            write_tokens(part, progress, tokens_of_batches, val_every)
        except BrokenProcessPool:
            raise DataError(
                "--processes: a process was killed, perhaps because memory ran out; "
                "rerun with fewer processes to resume"
            ) from None
        print("computing checksums", file=sys.stderr, flush=True)
        meta = finish(part, progress, out)
    print(f"{out}: {meta['train']['tokens']:,} tokens to train on, {meta['val']['tokens']:,} to validate")


@contextmanager
def lock_output(out: Path) -> Iterator[None]:
    """Context manager: lock ``out``. Raises DataError if another process is preparing it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out.with_name(out.name + ".part.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise DataError(f"{out}: another process is preparing it; wait for it or stop it") from None
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def read_json(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def begin(part: Path, made_from: str) -> dict[str, Any]:
    """Return progress.json, a new one if it is missing. Raises DataError if it has other settings."""
    progress = read_json(part / "progress.json")
    if not progress and part.exists() and any(part.iterdir()):
        raise DataError(f"{part}: not created by this program; move the folder, or choose another --out")
    if progress and progress.get("made_from") != made_from:
        problem = "was begun with other files or settings"
        raise DataError(f"{part}: {problem}; continue with those, remove the folder, or choose another --out")
    part.mkdir(exist_ok=True)
    for unfinished in part.glob(".*.tmp"):  # left by a killed process
        unfinished.unlink()
    if progress.get("batches"):
        print(f"{part.with_suffix('')}: resumes after {progress['batches']:,} batches", flush=True)
    progress = {"made_from": made_from, "batches": 0, "train": 0, "val": 0} | progress
    write_atomically(part / "progress.json", json.dumps(progress))
    return progress


def new_tokenizer(kind: str, vocab_size: int, batches: Iterable[Batch]) -> tokenizers.Tokenizer:
    """Return GPT-2's tokenizer, one of the text's characters, or bpe trained on the text's beginning."""
    texts = (text for batch in batches for text in batch.texts())
    if kind == "char":
        characters = {"\n"}
        for text in texts:
            characters.update(text)
        return tokenizers.train_char("".join(characters), "", 0)
    if kind == "gpt2":
        return tokenizers.gpt2()
    sample, length = list[str](), 0
    for text in texts:
        sample.append(text)
        length += len(text)
        if length > SAMPLE:
            break
    return tokenizers.train_bpe("\n".join(sample), "", vocab_size)


def write_tokens(
    part: Path, progress: dict[str, Any], tokens_of_batches: Iterable[Tokens], val_every: int
) -> None:
    """Append the tokens of the batches to train.bin and val.bin, after the tokens that are already final."""
    from tqdm import tqdm

    with (
        (part / "train.bin").open("ab") as train,
        (part / "val.bin").open("ab") as val,
        tqdm(desc="tokenizing", unit=" tokens", unit_scale=True, mininterval=1) as bar,
    ):
        streams = {"train": train, "val": val}

        def save_progress() -> None:
            for split, stream in streams.items():
                stream.flush()
                os.fsync(stream.fileno())
                progress[split] = stream.tell()
            write_atomically(part / "progress.json", json.dumps(progress), sync=True)

        for split, stream in streams.items():
            stream.truncate(progress[split])
        for tokens in tokens_of_batches:
            progress["batches"] += 1
            streams["train" if progress["batches"] % val_every else "val"].write(tokens.data)
            bar.update(len(tokens))
            if progress["batches"] % EVERY == 0:
                save_progress()
        save_progress()


def finish(part: Path, progress: dict[str, Any], out: Path) -> dict[str, Any]:
    """Write meta.json, rename the folder and return meta.json. Raises DataError if a split has no tokens."""
    dtype = token_type(tokenizers.from_spec(progress["tokenizer"]).vocab_size)
    meta: dict[str, Any] = {"format": FORMAT, "dtype": str(dtype)}
    meta |= {key: progress[key] for key in ("made_from", "tokenizer")}
    for split in SPLITS:
        file = part / f"{split}.bin"
        meta[split] = {"tokens": file.stat().st_size // dtype.itemsize, "sha256": file_digest(file)}
        if not meta[split]["tokens"]:
            shutil.rmtree(part, ignore_errors=True)  # so that another fraction can be tried
            raise DataError(
                "--val-fraction: the text is too short, or has too few lines, to be split; give a larger "
                "fraction, or a text of more lines"
            )
    write_atomically(part / "meta.json", json.dumps(meta, indent=1), sync=True)
    if out.exists():
        out.rmdir()  # it is empty
    part.rename(out)
    (out / "progress.json").unlink()
    return meta


def main() -> None:
    parser = programs.parser(__doc__, "scripts.prepare_corpus")
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="file", help="text, in the order in which it is read")
    add("--out", required=True, type=Path, metavar="FOLDER", help="where the tokens are written")
    add("--tokenizer", default="gpt2", choices=sorted(tokenizers.TRAINERS), help="default: %(default)s")
    add("--vocab-size", default=4096, type=int, metavar="N", help="size of bpe; default: %(default)s")
    add("--val-fraction", default=0.005, type=float, metavar="X", help="default: %(default)s; rounded to 1/N")
    add("--field", default="text", metavar="NAME", help="field in .jsonl, .parquet; default: %(default)s")
    add("--processes", default=cores(), type=int, metavar="N", help="default: %(default)s (cores)")
    arguments = parser.parse_args()
    with one_line_errors():
        try:
            prepare(checked(Settings, vars(arguments)))
        except ImportError as error:
            raise DataError(
                f"{error.name}: not installed; run pip install -r requirements-corpora.txt"
            ) from None
        except KeyboardInterrupt:
            print("interrupted; rerun the same command to resume", file=sys.stderr)
            raise


if __name__ == "__main__":
    main()
