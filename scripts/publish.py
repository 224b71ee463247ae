"""Publish a study as tables, small enough for a repository, without weights and paths.

    python -m scripts.publish studies/norms --out results/norms
    python -m scripts.publish results/norms        write the table.md of a published study again

OUT gets study.json, chosen.json, runs.csv, curves.csv and table.md; python compare.py OUT reads them.
"""

from pathlib import Path

from cli import programs
from cli.errors import one_line_errors
from data.errors import ConfigError
from data.files import write_atomically
from study import files, report
from study.publish import PUBLISHED, public, write_runs
from study.table import markdown


def publish(folder: Path, out: Path) -> None:
    """Write a study that ran here into ``out``. Raises OSError; ConfigError: ``out`` has other files."""
    study, chosen, extended, runs, skipped = report.read(folder)
    present = {file.name for file in out.glob("[!.]*")}  # not .DS_Store
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
    write_table(out)
    size = sum((out / name).stat().st_size for name in PUBLISHED if (out / name).exists())
    print(f"{out}/: {len(runs)} runs, {size / 1e6:.1f} MB; python compare.py {out}")


def write_table(folder: Path) -> None:
    """Write table.md of a published study. Raises OSError and ConfigError."""
    write_atomically(folder / "table.md", markdown(report.load(folder)))


def main() -> None:
    parser = programs.parser(__doc__, "scripts.publish")
    parser.add_argument("study", type=Path, help="folder of a study")
    parser.add_argument("--out", type=Path, help="folder of the tables")
    args = parser.parse_args()
    with one_line_errors():
        is_published = not files.read(args.study).runs_dir
        if is_published == bool(args.out):
            what = "is published already; leave out --out" if is_published else "give --out FOLDER"
            raise ConfigError(f"{args.study}: {what}")
        if is_published:
            write_table(args.study)
        else:
            publish(args.study, args.out)


if __name__ == "__main__":
    main()
