"""Write results for a reader: in the terminal, and as results/findings.md."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from comparison.figures import save
from comparison.table import markdown, number
from findings.figure import figure_spec
from findings.finding import Expected, Finding, Overrides, override
from findings.judging import Judged, Judgement, Verdict, judge
from findings.running import Result, find_result
from system.terminal import duration

COLORS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INCONCLUSIVE: "yellow"}
PROVENANCE = {
    "here": "the source was read for this project",
    "second hand": "second hand: from notes or a copied table",
    "memory": "from memory: the source was not read again",
    "ours": "first measured here, or from a formula",
}
INTRODUCTION = """# Findings: published claims, measured again

Written by `python -m findings --docs`. How to read it: [docs/findings.md](../docs/findings.md).

"""


class Entry:
    """A finding, its result and its control's result, each from the first folder that has one."""

    def __init__(self, name: str, finding: Finding, folders: Sequence[Path]) -> None:
        def first(key: str, conditions: Finding) -> Result | None:
            return next(
                (result for folder in folders if (result := find_result(key, conditions, folder))), None
            )

        control = finding.as_control()
        self.name, self.finding = name, finding
        self.result, self.control = first(name, finding), first(f"{name}-control", control)
        self.judgement = judge(finding, self.result.by_seed) if self.result else None
        self.control_judgement = judge(control, self.control.by_seed) if self.control else None


def entries(findings: Mapping[str, Finding], folders: Sequence[Path]) -> list[Entry]:
    return [Entry(name, finding, folders) for name, finding in findings.items()]


def expectation(expected: Expected) -> str:
    above, below = expected.above, expected.below
    if not expected.closed:
        return f"above {above:g}" if math.isfinite(above) else f"below {below:g}"
    return f"{above:g}" if above == below else f"{above:g} to {below:g}"


def interval(judged: Judged) -> str:
    numbers = judged.interval.mean, judged.interval.low, judged.interval.high
    return "{} ({} to {})".format(*(number(value, ".3g") for value in numbers))


def settings(overrides: Overrides) -> str:
    return " ".join(override(*pair) for pair in overrides.items())


def verdict_of(judgement: Judgement | None) -> str:
    return str(judgement.verdict) if judgement else "—"


def verdict_lines(name: str, finding: Finding, judgement: Judgement) -> RenderableType:
    """Return the verdict, and each quantity with its interval."""
    lines = [Text.assemble((str(judgement.verdict), COLORS[judgement.verdict]), f"  {name}: {finding.claim}")]
    groups = judgement.quantities, judgement.conditions, judgement.because
    kinds = "", "condition: ", "and, if the reason is right: "
    for kind, quantities in zip(kinds, groups, strict=True):
        for judged in quantities:
            words = f"  {kind}{judged.quantity}: {interval(judged)} at {judged.interval.n} seeds; "
            words += f"expected {expectation(judged.expected)}: "
            lines.append(Text.assemble(words, (str(judged.verdict), COLORS[judged.verdict])))
    if judgement.why:
        lines.append(Text(f"  {judgement.why}"))
    return Group(*lines)


def listing(findings: Sequence[Entry]) -> RenderableType:
    """Return a table of all findings with their verdicts."""
    minutes = Column("minutes", justify="right", no_wrap=True)
    columns = Column("finding", no_wrap=True), "claim", minutes, Column("verdict", no_wrap=True)
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for entry in findings:
        judgement = entry.judgement
        verdict = Text(verdict_of(judgement), COLORS[judgement.verdict] if judgement else "")
        table.add_row(entry.name, Text(entry.finding.claim), f"{entry.finding.minutes:g}", verdict)
    return table


def write_document(findings: Sequence[Entry], file: Path, pictures: Path) -> None:
    """Write a table of all findings and a section on each into ``file``, and the pictures as SVG."""
    pictures.mkdir(parents=True, exist_ok=True)
    for entry in findings:
        if entry.result:
            save(figure_spec(entry.finding, entry.result.rows), pictures / f"{entry.name}.svg")
    link = os.path.relpath(pictures, file.parent)
    file.write_text(document(findings, link), encoding="utf-8")


def document(findings: Sequence[Entry], pictures: str) -> str:
    summary = [
        {
            "finding": f"[{entry.name}](#{entry.name})",
            "claim": entry.finding.claim,
            "verdict": f"**{verdict_of(entry.judgement)}**",
            "its control": verdict_of(entry.control_judgement),
        }
        for entry in findings
    ]
    return INTRODUCTION + "\n".join([markdown(summary), *(section(entry, pictures) for entry in findings)])


def section(entry: Entry, pictures: str) -> str:
    finding, judgement = entry.finding, entry.judgement
    lines = [f"## {entry.name}\n", f"**{verdict_of(judgement)}** — {finding.claim}\n"]
    if judgement and judgement.why:
        lines.append(f"Why it is inconclusive: {judgement.why}.\n")
    if judgement:
        axes = f"{finding.picture.y} by {finding.picture.x or 'arm'}"
        lines += [f"![{axes}]({pictures}/{entry.name}.svg)\n", markdown(quantity_rows(judgement))]
    lines.append(f"{finding.remark.strip()}\n")
    lines += [f"- {name}: {text}" for name, text in facts(entry)]
    lines.append(f"\n```sh\npython -m findings {entry.name}\n```\n")
    return "\n".join(lines)


def quantity_rows(judgement: Judgement) -> list[dict[str, str]]:
    parts = (
        ("", "", judgement.quantities),
        ("condition: ", "or else ", judgement.conditions),
        ("the reason: ", "", judgement.because),
    )
    return [
        {
            "measured": kind + judged.quantity,
            "mean (95 % interval)": interval(judged),
            "expected": expectation(judged.expected),
            "why": before + judged.expected.why,
            "verdict": str(judged.verdict),
        }
        for kind, before, quantities in parts
        for judged in quantities
    ]


def facts(entry: Entry) -> list[tuple[str, str]]:
    """Return the source of a finding, and the conditions under which it was measured."""
    finding = entry.finding
    arms = (f"*{arm}*" + f" `{settings(keys)}`" * bool(keys) for arm, keys in finding.arms.items())
    lines = [
        ("Source", f"{finding.source}. Its numbers: {finding.numbers} ({PROVENANCE[finding.read]})"),
        ("Models", finding.size),
        ("Settings", f"`{settings(finding.all)}`" if finding.all else "the defaults"),
        ("Arms", "; ".join(arms)),
    ]
    lines += [("For each", f"`{key}={','.join(map(str, values))}`") for key, values in finding.over.items()]
    if entry.result:
        seconds, where = entry.result.seconds, entry.result.where
        runs = f"{where.runs} runs, {duration(seconds.training)} one after another; " * bool(where.runs)
        machine = f"{where.processor}, {where.precision}, torch {where.packages['torch']}"
        seeds = ", ".join(map(str, entry.result.by_seed))
        lines.append(("Measured", f"seeds {seeds}; {runs}measuring {duration(seconds.measuring)}; {machine}"))
    if entry.control_judgement:
        lines.append(("Control", f"{finding.control.what}: **{entry.control_judgement.verdict}**"))
    return lines
