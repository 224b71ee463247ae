"""Publish a study as tables, small enough for a repository, without weights and paths.

    python -m scripts.publish studies/norms --out results/norms

OUT gets study.json, chosen.json, runs.csv and curves.csv; python compare.py OUT reads them.
"""

from pathlib import Path

from cli import programs
from cli.errors import one_line_errors
from data.errors import ConfigError
from data.files import write_atomically
from study import files, report
from study.publish import CURVES, RUNS, public, write_runs

PUBLISHED = ("study.json", "chosen.json", "extended.json", RUNS, CURVES)


def publish(folder: Path, out: Path) -> None:
    """Write the tables of a study that was trained here into ``out``. Raises OSError, or ConfigError
    if ``out`` has other files."""
    study, chosen, extended, runs, skipped = report.read(folder)
    if not study.runs_dir:
        raise ConfigError(f"{folder}: is published already; copy the folder")
    present = {file.name for file in out.glob("[!.]*")}  # without hidden files, such as .DS_Store
    is_ours = "study.json" in present and files.read(out).written == study.written
    if others := present - ({*PUBLISHED} if is_ours else set()):
        raise ConfigError(f"{out}: it has other files, such as {min(others)}; name a new folder")
    for line in skipped:
        print(line)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "study.json", public(study).model_dump_json(by_alias=True, indent=1) + "\n")
    for name in ("chosen.json", "extended.json"):
        if (folder / name).exists():
            write_atomically(out / name, (folder / name).read_text(encoding="utf-8"))
    write_runs(out, study, chosen, extended, runs)
    size = sum(file.stat().st_size for file in out.glob("[!.]*"))
    print(f"{out}/: {len(runs)} runs, {size / 1e6:.1f} MB; python compare.py {out}")


def main() -> None:
    parser = programs.parser(__doc__, "scripts.publish")
    parser.add_argument("study", type=Path, help="folder of a study")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    args = parser.parse_args()
    with one_line_errors():
        publish(args.study, args.out)


if __name__ == "__main__":
    main()
