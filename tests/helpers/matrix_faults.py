"""Make the faults of tests/faults/test_matrix.py: change a folder, and return the arguments of the command
that meets the fault."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rundir import checkpoint_file
from tests.conftest import LETTERS, TRAIN
from tests.helpers import programs

Fault = Callable[[Path], Sequence[str]]


def files(contents: dict[str, str | bytes], *arguments: str) -> Fault:
    def write(folder: Path) -> Sequence[str]:
        for name, content in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return arguments

    return write


def text(content: str | bytes, *arguments: str) -> Fault:
    return files({"text.txt": content}, *arguments)


def norm_file(content: str) -> Fault:
    return files({"mine/norm/odd.yaml": content}, "--config-dir=mine", "norm=odd")


def run_here(folder: Path, *arguments: str) -> None:
    done = programs.run("train.py", *TRAIN, *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr


def after_a_run(*arguments: str, text: str = LETTERS) -> Fault:
    def train(folder: Path) -> Sequence[str]:
        run_here(folder)
        (folder / "text.txt").write_text(text, encoding="utf-8")
        return arguments

    return train


def damaged_tokens(damage: Callable[[bytes], bytes]) -> Fault:
    """Prepare the tokens by a run of no steps, which another command than the row's is, and damage them."""

    def prepare(folder: Path) -> Sequence[str]:
        run_here(folder, "train.steps=0", "runs_dir=others")
        [file] = (folder / "cache").glob("text-*/train.bin")
        file.write_bytes(damage(file.read_bytes()))
        return ()

    return prepare


def damaged_checkpoint(damage: Callable[[bytes], bytes]) -> Fault:
    def write(folder: Path) -> Sequence[str]:
        good = sorted(folder.glob("runs/*/checkpoints/*"))[-1]
        (folder / "bad.safetensors").write_bytes(damage(good.read_bytes()))
        return ["checkpoint=bad.safetensors"]

    return write


def flip_a_bit(content: bytes, index: int) -> bytes:
    flipped = bytearray(content)
    flipped[index] ^= 1
    return bytes(flipped)


def changed_tensors(change: Callable[[dict[str, Any], str], Any], *arguments: str) -> Fault:
    """Write a checkpoint with changed tensors and the right digest. ``change`` gets them and one name."""

    def write(folder: Path) -> Sequence[str]:
        loaded = checkpoint_file.load(sorted(folder.glob("runs/*/checkpoints/*"))[-1])
        tensors = dict(loaded.tensors)
        matrix = next(n for n, t in tensors.items() if t.ndim == 2 and not n.startswith("optimizer"))
        change(tensors, matrix)
        file = checkpoint_file.save(folder, loaded.meta, tensors, None)
        file.rename(folder / "bad.safetensors")
        return ["checkpoint=bad.safetensors", *arguments]

    return write


def without_optimizer(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer")}


def a_run_without_its_optimizer(folder: Path) -> Sequence[str]:
    """Leave a checkpoint such as exported weights are, in a run that the same command resumes."""
    arguments = ("train.checkpoint_every=4", "train.eval_every=0")
    run_here(folder, *arguments)
    [run] = folder.glob("runs/*-s*")
    (run / "status.json").unlink()
    older, newer = sorted((run / "checkpoints").iterdir())
    newer.unlink()
    loaded = checkpoint_file.load(older)
    meta = loaded.meta.model_copy(update={"optimizer": {}})
    checkpoint_file.save(older.parent, meta, without_optimizer(loaded.tensors), None)
    return arguments
