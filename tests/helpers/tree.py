"""The project's own Python files."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def project_files() -> list[Path]:
    """Return all of the project's Python files, except the tests."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = settings["tool"]["importlinter"]["root_packages"]
    return [
        *sorted(ROOT.glob("*.py")),
        *(f for name in packages for f in sorted((ROOT / name).rglob("*.py"))),
    ]
