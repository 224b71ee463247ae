"""A benchmark in an empty folder; and nanoGPT and tinyshakespeare, where the environment names them."""

import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.harness import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    def make(rounds: int = 1, peer: Path | None = None, data: Path | None = None) -> Bench:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        options = Namespace(rounds=rounds, peer=peer, data=data, out=tmp_path / "result.json")
        return Bench("made-up", "A made-up measurement.", options, work)

    return make


def path_from(variable: str, content: str) -> Path:
    if variable not in os.environ:
        pytest.skip(f"the variable {variable} names no {content}")
    return Path(os.environ[variable])


@pytest.fixture
def nanogpt() -> Path:
    return path_from("BENCH_PEER", "checkout of nanoGPT")


@pytest.fixture
def tinyshakespeare() -> Path:
    return path_from("BENCH_DATA", "file of tinyshakespeare")
