"""A benchmark in an empty folder."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.harness import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    def make(rounds: int = 1) -> Bench:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        options = Namespace(rounds=rounds, peer=None, data=tmp_path, out=tmp_path / "result.json")
        return Bench("made-up", "A made-up measurement.", options, work)

    return make
