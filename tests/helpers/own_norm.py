"""A norm of the user's own, outside the project, that misbehaves."""

from pathlib import Path

MODULE = """from torch import nn


class Own(nn.Module):
    def __init__(self, n: int) -> None:
        {statement}
"""


def write_norm(folder: Path, name: str, statement: str) -> None:
    """Write a norm whose constructor runs ``statement``; --config-dir and PYTHONPATH must be ``folder``."""
    (folder / f"{name}.py").write_text(MODULE.format(statement=statement))
    (folder / "norm").mkdir(exist_ok=True)
    (folder / "norm" / f"{name}.yaml").write_text(f"_target_: {name}.Own\n")
