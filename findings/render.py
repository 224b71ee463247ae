"""Write results for a reader: in the terminal, and as results/findings.md."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from findings.figure import figure
from findings.finding import Finding, Interval, Overrides, override
from findings.judging import Judgement, Verdict, judge
from findings.running import Result, find_result
from study.figures import save
from training.environment import duration

COLORS: dict[str, str] = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INCONCLUSIVE: "yellow"}
READING = {  # how the source of a finding was read
    "here": "the source was read for this project",
    "second hand": "second hand: from notes or a copied table",
    "memory": "from memory: the source was not read again",
    "ours": "first measured here, or from a formula",
}


@dataclass
class Entry:
    """A finding or a finding's control, and the result from the first folder that has one."""

    name: str
    finding: Finding
    result: Result | None
    judgement: Judgement | None
    control: "Entry | None" = None

    @property
    def verdict(self) -> str:
        return str(self.judgement.verdict) if self.judgement else "—"


def entry(name: str, finding: Finding, folders: Sequence[Path]) -> Entry:
    result = next(filter(None, (find_result(name, finding, folder) for folder in folders)), None)
    return Entry(name, finding, result, judge(finding, result.by_seed) if result else None)


def entries(findings: Mapping[str, Finding], folders: Sequence[Path]) -> list[Entry]:
    """Return one entry per finding, ``control`` included."""
    result = [entry(name, finding, folders) for name, finding in findings.items()]
    for original in result:
        original.control = entry(f"{original.name}-control", original.finding.as_control(), folders)
    return result


def mean(interval: Interval) -> str:
    """Format a mean with its interval."""
    mean, low, high = (f"{x:.3g}" if math.isfinite(x) else "—" for x in interval[1:])
    return f"{mean} ({low} to {high})"


def settings(overrides: Overrides) -> str:
    return " ".join(override(*pair) for pair in overrides.items())


def verdict_lines(name: str, finding: Finding, judgement: Judgement) -> RenderableType:
    """Return the verdict, and each quantity with its interval."""
    lines = [Text.assemble((str(judgement.verdict), COLORS[judgement.verdict]), f"  {name}: {finding.claim}")]
    groups = judgement.quantities, judgement.conditions, judgement.because
    kinds = "", "condition: ", "if the likely reason is right: "
    for kind, quantities in zip(kinds, groups, strict=True):
        for judged in quantities:
            words = f"  {kind}{judged.quantity}: {mean(judged.interval)} at {judged.interval.n} seeds; "
            words += f"expected {judged.expected}: "
            lines.append(Text.assemble(words, (str(judged.verdict), COLORS[judged.verdict])))
    if judgement.reason:
        lines.append(Text(f"  {judgement.reason}"))
    return Group(*lines)


def listing(findings: Sequence[Entry]) -> RenderableType:
    """Return a table of all findings with their verdicts."""
    minutes = Column("minutes", justify="right", no_wrap=True)
    columns = Column("finding", no_wrap=True), "claim", minutes, Column("verdict", no_wrap=True)
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for entry in findings:
        verdict = Text(entry.verdict, COLORS.get(entry.verdict, ""))
        table.add_row(entry.name, Text(entry.finding.claim), f"{entry.finding.minutes:g}", verdict)
    return table


def write_document(findings: Sequence[Entry], file: Path, pictures: Path) -> None:
    """Write ``file``, with a table of all findings and a section on each, and the SVGs in ``pictures``."""
    pictures.mkdir(parents=True, exist_ok=True)
    for entry in findings:
        if entry.result:
            save(figure(entry.finding.picture, entry.result.rows), pictures / f"{entry.name}.svg")
    link = os.path.relpath(pictures, file.parent)
    file.write_text(document(findings, link), encoding="utf-8")


def document(findings: Sequence[Entry], pictures: str) -> str:
    """Return the document. ``pictures`` is the link to the folder of the pictures."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"mean": mean, "settings": settings, "duration": duration}
    template = environment.get_template("findings.md.jinja")
    return template.render(entries=findings, pictures=pictures, reading=READING)
