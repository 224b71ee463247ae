"""Make the faults of tests/faults/test_matrix.py: damage a folder, and return the arguments of the command
that meets the damage."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from tests.conftest import LETTERS, TINY
from tests.helpers import programs

TEXT = ("data=text", "data.path=text.txt")


def a_text(content: bytes | str, *more: str) -> Callable[[Path], Sequence[str]]:
    def make(folder: Path) -> Sequence[str]:
        (folder / "text.txt").write_bytes(content.encode() if isinstance(content, str) else content)
        return [*more]

    return make


def a_folder_as_text(folder: Path) -> Sequence[str]:
    (folder / "texts").mkdir()
    return ["data=text", "data.path=texts"]


def an_elf(folder: Path) -> Sequence[str]:
    (folder / "text.txt").write_bytes(Path(os.path.realpath("/proc/self/exe")).read_bytes()[: 2**20])
    return []


def prepared_then(damage: Callable[[bytes], bytes], *more: str) -> Callable[[Path], Sequence[str]]:
    """The run's own tokens, damaged."""

    def make(folder: Path) -> Sequence[str]:
        a_run(folder)
        shutil.rmtree(folder / "runs")
        [file] = (folder / "cache").glob("text-*/train.bin")
        file.write_bytes(damage(file.read_bytes()))
        return [*more]

    return make


def too_large_a_token(folder: Path) -> Sequence[str]:
    (folder / "bins").mkdir()
    for split in ("train", "val"):
        np.array([0, 1, 2, 9] * 50, np.uint16).tofile(folder / f"bins/{split}.bin")
    meta = {"dtype": "uint16", "tokenizer": {"kind": "char", "chars": "abc"}}
    (folder / "bins/meta.json").write_text(json.dumps(meta))
    return ["data=prepared", "data.path=bins"]


def many_characters(folder: Path) -> Sequence[str]:
    every = [chr(code) for code in range(0x20, 0x11000) if not 0xD800 <= code < 0xE000]
    assert len(every) > 2**16
    (folder / "text.txt").write_text("".join(every) * 2, encoding="utf-8")
    return ["train.steps=0", "model.n_embd=4", "train.eval_windows=2"]


def a_wrong_file(content: str) -> Callable[[Path], Sequence[str]]:
    def make(folder: Path) -> Sequence[str]:
        (folder / "mine/norm").mkdir(parents=True)
        (folder / "mine/norm/odd.yaml").write_text(content)
        return ["--config-dir=mine", "norm=odd"]

    return make


def a_file_at(name: str) -> Callable[[Path], Sequence[str]]:
    def make(folder: Path) -> Sequence[str]:
        (folder / name).write_text("a file")
        return [f"runs_dir={name}"]

    return make


def a_run(folder: Path, text: str = LETTERS) -> None:
    done = programs.run("train.py", *TEXT, *TINY, "data.cache=cache", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "text.txt").write_text(text, encoding="utf-8")


def after_a_run(*more: str, text: str = LETTERS) -> Callable[[Path], Sequence[str]]:
    return lambda folder: (a_run(folder, text), more)[1]


class Payload:
    def __reduce__(self):
        return (os.system, ("touch owned",))


def sampled_from(make: Callable[[Path, Path], None], *more: str) -> Callable[[Path], Sequence[str]]:
    """A file ``bad.safetensors`` made of the folder's own checkpoint."""

    def prepare(folder: Path) -> Sequence[str]:
        [good] = sorted(folder.glob("runs/*/checkpoints/*"))[-1:]
        make(good, folder / "bad.safetensors")
        return ["checkpoint=bad.safetensors", *more]

    return prepare


def halved(good: Path, bad: Path) -> None:
    bad.write_bytes(good.read_bytes()[: good.stat().st_size // 2])


def flipped(good: Path, bad: Path) -> None:
    content = bytearray(good.read_bytes())
    content[-100] ^= 1
    bad.write_bytes(content)


def pickled(good: Path, bad: Path) -> None:
    torch.save({"model": Payload()}, bad)


def foreign(content: bytes) -> Callable[[Path, Path], None]:
    return lambda good, bad: bad.write_bytes(content) and None


def written_anew(change: Callable[[dict], None]) -> Callable[[Path, Path], None]:
    """Its tensors changed, and the digest right."""

    def make(good: Path, bad: Path) -> None:
        from rundir import checkpoint_file

        found = checkpoint_file.load(good)
        tensors = dict(found.tensors)
        change(tensors)
        made = checkpoint_file.save(bad.parent, found.meta, tensors, None)
        made.rename(bad)

    return make


def some_matrix(tensors: dict) -> str:
    return next(name for name, t in tensors.items() if t.ndim == 2 and not name.startswith("optimizer"))


def a_run_without_its_optimizer(folder: Path) -> Sequence[str]:
    """As of exported weights: the same command goes on there."""
    from rundir import checkpoint_file

    more = ("train.checkpoint_every=4", "train.eval_every=0")
    done = programs.run("train.py", *TEXT, *TINY, "data.cache=cache", *more, cwd=folder)
    assert done.returncode == 0, done.stderr
    [run] = folder.glob("runs/*-s*")
    (run / "status.json").unlink()
    older, newer = sorted((run / "checkpoints").iterdir())
    newer.unlink()
    found = checkpoint_file.load(older)
    tensors = {name: t for name, t in found.tensors.items() if not name.startswith("optimizer")}
    checkpoint_file.save(older.parent, found.meta.model_copy(update={"optimizer": {}}), tensors, None)
    return more
