"""A checkpoint is one safetensors file: parameters, buffers, optimizer state, and what is needed to use them.

Its metadata is one JSON text (step, config, tokenizer, fingerprint of the tokens) and a SHA-256 of the file.
It is written beside its place, synced and renamed into it, so a file of that name is whole. There is no
pickle anywhere.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import psutil
from pydantic import Field

from cli.schema import RunConfig
from interop.pickle_hint import SUFFIXES, pickled
from system import os_compat
from system.errors import CheckpointError, ConfigError
from system.files import header_length
from system.terminal import escaped
from system.validate import Checked, checked

if TYPE_CHECKING:
    from torch import Tensor

FORMAT: Literal[7] = 7
BLANK = "0" * 64  # stands for the SHA-256 while it is being taken
CONFIG_LIMIT = 2**18  # characters of a config; ours have some thousand
KEEP = 2  # newest checkpoints that stay, besides the best


class Meta(Checked):
    """What a checkpoint says besides its tensors: all that is needed to use them."""

    format: Literal[7] = FORMAT
    step: Annotated[int, Field(ge=0)]
    config: RunConfig
    tokenizer: dict[str, Any]  # data/tokenizers.py makes the tokenizer of it
    fingerprint: str  # of the tokens it was trained on
    run: str  # the run's name, which says all that determines it: rundir/folder.py
    optimizer: dict[str, Any]  # the structure of the optimizers' state: training/state.py


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds: what it says and its tensors by name, on the CPU."""

    path: Path
    meta: Meta
    tensors: "dict[str, Tensor]"


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.safetensors"


def saved_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint in the folder, ascending. A file of another name is none of ours."""
    found = (re.fullmatch(r"step-(\d{8,})\.safetensors", file.name) for file in folder.glob("step-*"))
    steps = sorted(int(name[1]) for name in found if name)
    return [step for step in steps if path_of(folder, step).is_file()]


def save(folder: Path, meta: Meta, tensors: "dict[str, Tensor]", best: int | None) -> Path:
    """Write the checkpoint of ``meta.step``, whole or not at all; then drop the superfluous.

    Kept are the newest KEEP and that of step ``best``. Raises CheckpointError where the disk refuses.
    """
    path = path_of(folder, meta.step)
    write(path, meta, tensors)
    prune(folder, best)
    return path


def write(path: Path, meta: Meta, tensors: "dict[str, Tensor]") -> None:
    """Write a checkpoint, whole or not at all. Raises CheckpointError where the disk refuses."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder = path.parent
    temporary = path.with_name(f".{path.name}.tmp")
    text = json.dumps(meta.model_dump(by_alias=True), sort_keys=True)
    try:
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, temporary, metadata={"normgpt": text, "sha256": BLANK})
        with temporary.open("r+b") as file:
            at = digest_offset(file.read(header_length(temporary)))
            file.seek(at)
            file.write(digest(temporary, at).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(folder.stat().st_mode & 0o666)  # safetensors' is for the owner alone
        temporary.replace(path)
        os_compat.sync_folder(folder)
    except (OSError, SafetensorError, ValueError) as error:
        temporary.unlink(missing_ok=True)
        needed, free = sum(tensor.nbytes for tensor in tensors.values()), shutil.disk_usage(folder).free
        raise CheckpointError(
            f"{path}: cannot be written ({error}; {needed:,} bytes are needed, {free:,} are free); "
            "make room or name another runs_dir"
        ) from None


def prune(folder: Path, best: int | None) -> None:
    """Remove all but the newest KEEP and that of step ``best``; what cannot be removed is only told of."""
    for step in saved_steps(folder)[:-KEEP]:
        if step != best:
            try:
                path_of(folder, step).unlink(missing_ok=True)
            except OSError as error:
                print(f"warning: {error.filename}: cannot be removed ({error.strerror})", file=sys.stderr)


def load(path: Path) -> Checkpoint:
    """Read and verify a checkpoint. Raises CheckpointError where it is missing, damaged or unknown."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(
            f"{path}: no such checkpoint; give a run's folder with run= or a file with checkpoint="
        )
    if path.suffix in SUFFIXES:
        raise CheckpointError(pickled(path))
    damaged = CheckpointError(f"{path}: damaged or not a checkpoint of normgpt; use another one")
    try:
        size, memory = path.stat().st_size, psutil.virtual_memory().total
        if size > memory:
            raise CheckpointError(
                f"{path}: has {size:,} bytes, and this machine's memory {memory:,}; use another"
            )
        with path.open("rb") as file:
            header = file.read(header_length(path))
        at = digest_offset(header)
        with safe_open(path, framework="pt") as content:  # which checks the header against the file's size
            if header[at : at + 64].decode() != digest(path, at):
                raise damaged
            said = dict(json.loads(content.metadata()["normgpt"]))
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 not a dict
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; check the file and its permissions") from None
    except (SafetensorError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
        raise damaged from None
    if said.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: is of format {said.get('format')!r}, but this version reads {FORMAT}; "
            "use the version that made it"
        )
    if said.keys() != Meta.model_fields.keys() or len(json.dumps(said["config"])) > CONFIG_LIMIT:
        raise damaged
    try:
        return Checkpoint(path, checked(Meta, said), tensors)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}; use a checkpoint of this version") from None


def newest(folder: Path, run: str) -> Checkpoint | None:
    """The newest usable checkpoint of ``run``; None where there is none at all.

    Newer ones that are damaged, or of another run, are set aside under another name, with one warning. Raises
    CheckpointError where there are some and none is usable; nothing is moved then.
    """
    refused: dict[Path, str] = {}  # and why
    for step in reversed(saved_steps(folder)):
        path = path_of(folder, step)
        try:
            found = load(path)
        except CheckpointError as error:
            refused[path] = str(error).removeprefix(f"{path}: ").split(";")[0]
            continue
        if (found.meta.run, found.meta.step) == (run, step):
            break
        refused[path] = "of another run or step"
    else:
        if refused:
            path, why = next(iter(refused.items()))
            raise CheckpointError(
                f"{path}: {why}, and no older one is usable; fresh=true starts the run over"
            )
        return None
    for path in refused:
        names = (path.with_name(f"{path.name}.unusable{n}") for n in itertools.count(1))
        path.rename(next(name for name in names if not name.exists()))
    if refused:
        what = ", ".join(f"{path.name} ({why})" for path, why in refused.items())
        print(
            f"warning: {folder}: set aside: {escaped(what)}; going on from {found.path.name}", file=sys.stderr
        )
    return found


def digest_offset(header: bytes) -> int:
    """Where in the file the 64 digits of its SHA-256 stand."""
    found = re.search(rb'"sha256":"[0-9a-f]{64}"', header)
    if found is None:
        raise ValueError("no SHA-256 in the header")
    return found.start() + len('"sha256":"')


def digest(path: Path, at: int) -> str:
    """SHA-256 of the file, every byte of it, the digest's own place taken as zeros."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        total.update(file.read(at) + BLANK.encode())
        file.seek(at + 64)
        while chunk := file.read(2**20):
            total.update(chunk)
    return total.hexdigest()
