"""A benchmark in an empty folder; and nanoGPT and tinyshakespeare, where the environment names them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.report import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    def make(rounds: int = 1, peer: Path | None = None, data: Path | None = None) -> Bench:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        out = tmp_path / "result.json"
        return Bench("made", "What is made up.", rounds=rounds, peer=peer, data=data, work=work, out=out)

    return make


def named(variable: str, what: str) -> Path:
    if variable not in os.environ:
        pytest.skip(f"the variable {variable} names no {what}")
    return Path(os.environ[variable])


@pytest.fixture
def nanogpt() -> Path:
    return named("BENCH_PEER", "checkout of nanoGPT")


@pytest.fixture
def tinyshakespeare() -> Path:
    return named("BENCH_DATA", "file of tinyshakespeare")
