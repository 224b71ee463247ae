"""The project's own Python files."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = (
    *(
        "system",
        "model",
        "data",
        "diagnostics",
        "interop",
        "cli",
        "rundir",
        "training",
        "comparison",
        "sweep",
    ),
    *("bench", "findings", "scripts", "hydra_plugins"),
)


def ours() -> list[Path]:
    """All of the project's Python files but the tests."""
    return [
        *sorted(ROOT.glob("*.py")),
        *(file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))),
    ]
