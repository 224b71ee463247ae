"""The format of a checkpoint: one safetensors file with parameters, buffers, optimizer state and metadata.

The metadata is one JSON text (step, config, tokenizer, fingerprint of the tokens) and the file's SHA-256. The
file is written under a temporary name, synced and renamed, so a file with the final name is complete. No
pickle is involved.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import psutil
from pydantic import Field, field_validator, model_validator

from cli.schema import RunConfig
from interop.pickle_hint import SUFFIXES, conversion_advice
from system import os_compat
from system.errors import CheckpointError, ConfigError, NoCheckpointError, UserError
from system.files import parse_json, safetensors_header
from system.terminal import escaped
from system.validate import Checked, checked

if TYPE_CHECKING:
    from torch import Tensor

FORMAT: Literal[7] = 7
BLANK = "0" * 64  # placeholder while the SHA-256 is computed
CONFIG_LIMIT = 2**18  # characters of a config; a few thousand are typical
REMOVED_KEYS, ADDED_KEYS = ("tuned", "settings_of"), {"deterministic": True}  # since earlier versions
KEEP = 2  # number of newest checkpoints that are kept, besides the best


class Meta(Checked):
    """The metadata of a checkpoint: everything that is needed to use the tensors."""

    format: Literal[7] = FORMAT
    step: Annotated[int, Field(ge=0)]
    config: RunConfig
    tokenizer: dict[str, Any]  # its spec: data/tokenizers.py
    fingerprint: str  # of the training tokens
    run: str  # the run's name: rundir/identity.py
    optimizer: dict[str, Any]  # which tensors are the optimizers' state: training/state.py

    @field_validator("config", mode="before")
    @classmethod
    def up_to_date(cls, config: Any) -> Any:
        """Drop keys of earlier versions, and add those that these versions lack."""
        if isinstance(config, dict):
            config = ADDED_KEYS | {k: v for k, v in config.items() if k not in REMOVED_KEYS}
        return config

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.step > self.config.train.steps:
            raise ValueError(f"step: {self.step} is beyond the last one, {self.config.train.steps}")
        return self


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file: metadata, and tensors by name, on the CPU."""

    path: Path
    meta: Meta
    tensors: "dict[str, Tensor]"


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.safetensors"


def saved_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint in the folder, ascending; files of other names are ignored."""
    matches = (re.fullmatch(r"step-(\d{8,})\.safetensors", file.name) for file in folder.glob("step-*"))
    steps = sorted(int(match[1]) for match in matches if match)
    return [step for step in steps if path_of(folder, step).is_file()]  # no folder, no extra leading zeros


def save(folder: Path, meta: Meta, tensors: "dict[str, Tensor]", best: int | None) -> Path:
    """Write the checkpoint of ``meta.step`` atomically, then ``prune``. Raises CheckpointError if it cannot
    be written."""
    path = path_of(folder, meta.step)
    write(path, meta, tensors)
    prune(folder, best)
    return path


def prune(folder: Path, best: int | None) -> None:
    """Remove all checkpoints but the newest KEEP and ``best``; warn if a file cannot be removed."""
    for step in saved_steps(folder)[:-KEEP]:
        if step != best:
            try:
                path_of(folder, step).unlink(missing_ok=True)
            except OSError as error:
                print(f"warning: {error.filename}: cannot be removed ({error.strerror})", file=sys.stderr)


def write(path: Path, meta: Meta, tensors: "dict[str, Tensor]") -> None:
    """Write a checkpoint atomically. Raises CheckpointError if it cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder = path.parent
    temporary = path.with_name(f".{path.name}.tmp")
    text = json.dumps(meta.model_dump(by_alias=True), sort_keys=True)
    try:
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, temporary, metadata={"normgpt": text, "sha256": BLANK})
        offset, _, computed = digest(temporary)
        with temporary.open("r+b") as file:
            file.seek(offset)
            file.write(computed.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(folder.stat().st_mode & 0o666)  # safetensors lets only the owner read it
        temporary.replace(path)
        os_compat.sync_folder(folder)
    except (OSError, SafetensorError, ValueError) as error:
        temporary.unlink(missing_ok=True)
        size, free = sum(tensor.nbytes for tensor in tensors.values()), shutil.disk_usage(folder).free
        raise CheckpointError(
            f"{path}: cannot be written ({error}; {size:,} bytes are needed, {free:,} are free); "
            "make room or choose another runs_dir"
        ) from None


def load(path: Path) -> Checkpoint:
    """Read and verify a checkpoint. Raises NoCheckpointError if it is missing or is removed meanwhile, and
    CheckpointError if it is damaged or of another format."""
    import torch  # noqa: F401 now, as it takes a second, in which a run may remove the file

    before = inode(path)
    if before is None:
        advice = "give a run's folder with run= or a file with checkpoint="
        raise NoCheckpointError(f"{path}: no such checkpoint; {advice}")
    replaced = NoCheckpointError(f"{path}: was removed or replaced while it was read; run the command again")
    try:
        checkpoint = read(path)
    except UserError as error:
        raise (error if inode(path) == before else replaced) from None
    if inode(path) != before:  # what was read may not be what was verified
        raise replaced
    return checkpoint


def inode(path: Path) -> tuple[int, int] | None:
    """Return what tells a regular file from one that has replaced it; None if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def read(path: Path) -> Checkpoint:
    """Read and verify a checkpoint. Raises CheckpointError if the file is unusable, and ConfigError if this
    machine cannot read it now, for which no checkpoint is renamed."""
    from safetensors import SafetensorError, safe_open

    if path.suffix in SUFFIXES:
        raise CheckpointError(conversion_advice(path))
    damaged = CheckpointError(f"{path}: damaged or not a checkpoint of normgpt; use another file")
    try:
        size, memory = path.stat().st_size, psutil.virtual_memory().total
        if size > memory:
            problem = f"has {size:,} bytes, but this machine has {memory:,} of memory"
            raise ConfigError(f"{path}: {problem}; use a smaller checkpoint")
        parse_json(safetensors_header(path)[8:])  # raises if a key is there twice
        if len({*digest(path)[1:]}) > 1:
            raise ValueError("the SHA-256 differs")
        with safe_open(path, framework="pt") as content:  # checks the header against the file's size
            meta = dict(parse_json(content.metadata()["normgpt"]))
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 not a dict
    except ConfigError:
        raise
    except (SafetensorError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
        raise damaged from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; check the file and its permissions") from None
    except (MemoryError, RuntimeError) as error:  # such as torch's for a file that it cannot map
        why = str(error).partition("\n")[0] or "out of memory"
        raise ConfigError(f"{path}: cannot be read now ({why}); free memory and run this again") from None
    if meta.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: is of format {meta.get('format')!r}, but this version reads {FORMAT}; "
            "use the version that wrote it"
        )
    if meta.keys() != Meta.model_fields.keys() or len(json.dumps(meta["config"])) > CONFIG_LIMIT:
        raise damaged
    try:
        return Checkpoint(path, checked(Meta, meta), tensors)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}; use a checkpoint of this version") from None


def newest(folder: Path, run: str) -> Checkpoint | None:
    """Return the newest usable checkpoint of ``run``; None if the folder has no checkpoint.

    Newer checkpoints that are damaged, or of another run, are renamed, with one warning. Raises
    CheckpointError if all checkpoints are unusable; then no checkpoint is renamed.
    """
    unusable: dict[Path, str] = {}  # path -> reason
    for step in reversed(saved_steps(folder)):
        path = path_of(folder, step)
        try:
            checkpoint = load(path)
            if (checkpoint.meta.run, checkpoint.meta.step) == (run, step):
                break
            unusable[path] = "of another run or step"
        except NoCheckpointError:  # removed meanwhile
            continue
        except CheckpointError as error:
            unusable[path] = str(error).removeprefix(f"{path}: ").split(";")[0]
    else:
        if not unusable:
            return None
        path, why = next(iter(unusable.items()))
        raise CheckpointError(f"{path}: {why}, and no older file is usable; fresh=true starts the run over")
    for path in unusable:
        names = (path.with_name(f"{path.name}.unusable{n}") for n in itertools.count(1))
        path.rename(next(name for name in names if not name.exists()))
    if unusable:
        names_and_reasons = escaped(", ".join(f"{path.name} ({why})" for path, why in unusable.items()))
        print(
            f"warning: {folder}: renamed to *.unusableN: {names_and_reasons}; "
            f"resuming from {checkpoint.path.name}",
            file=sys.stderr,
        )
    return checkpoint


def digest(path: Path) -> tuple[int, str, str]:
    """Return the offset of the 64 digits of the SHA-256 in a checkpoint, these digits, and the SHA-256
    computed with zeros in their place. Raises ValueError if the file has no such digits."""
    header = safetensors_header(path)
    with path.open("rb") as file:
        file.seek(len(header))
        match = re.search(rb'"sha256":"([0-9a-f]{64})"', header)
        if match is None:
            raise ValueError("no SHA-256 in the header")
        sha256 = hashlib.sha256(header[: match.start(1)] + BLANK.encode() + header[match.end(1) :])
        return match.start(1), match[1].decode(), hashlib.file_digest(file, lambda: sha256).hexdigest()
