"""What was found, in words: in the terminal, and as docs/findings.md."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from comparison.table import markdown
from findings.finding import Expected, Finding, Overrides, override
from findings.judging import Judged, Judgement, Verdict, judge
from findings.running import Result, kept

COLORS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INCONCLUSIVE: "yellow"}
PROVENANCE = {
    "here": "the source was read for this project",
    "second hand": "second hand: from notes or a copied table",
    "memory": "from memory: the source was not read again",
    "ours": "first measured here, or from a formula",
}


@dataclass(frozen=True)
class Entry:
    """A finding with what is kept of it and of its control."""

    name: str
    finding: Finding
    result: Result | None
    control: Result | None

    @property
    def judgement(self) -> Judgement | None:
        return judge(self.finding, self.result.by_seed) if self.result else None

    @property
    def of_control(self) -> Judgement | None:
        return judge(self.finding.as_control(), self.control.by_seed) if self.control else None


def entries(found: Mapping[str, Finding], folders: Sequence[Path]) -> list[Entry]:
    """All of them, each with its results in the first of the folders that has one."""

    def first(name: str, one: Finding) -> Result | None:
        return next((result for folder in folders if (result := kept(name, one, folder))), None)

    return [Entry(n, one, first(n, one), first(f"{n}-control", one.as_control())) for n, one in found.items()]


# in words


def number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "—"


def should(expected: Expected) -> str:
    """Where a quantity should lie."""
    if expected.above is None:
        return f"below {expected.below:g}"
    if expected.below is None:
        return f"above {expected.above:g}"
    if expected.above == expected.below:
        return f"{expected.above:g}"
    return f"{expected.above:g} to {expected.below:g}"


def interval(one: Judged) -> str:
    found = one.found
    return f"{number(found.mean)} ({number(found.low)} to {number(found.high)})"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def settings(overrides: Overrides) -> str:
    return " ".join(override(*pair) for pair in overrides.items())


def verdict_of(judgement: Judgement | None) -> str:
    return str(judgement.verdict) if judgement else "—"


# in the terminal


def in_terminal(name: str, finding: Finding, judgement: Judgement) -> RenderableType:
    """The verdict, and each quantity with its interval."""
    lines = [Text.assemble((f"{judgement.verdict}", COLORS[judgement.verdict]), f"  {name}: {finding.claim}")]
    parts = (
        ("", judgement.quantities),
        ("condition: ", judgement.conditions),
        ("and, if the reason is right: ", judgement.because),
    )
    for kind, some in parts:
        for one in some:
            said = f"  {kind}{one.quantity}: {interval(one)} at {one.found.n} seeds; "
            said += f"expected {should(one.expected)}: "
            lines.append(Text.assemble(said, (str(one.verdict), COLORS[one.verdict])))
    if judgement.why:
        lines.append(Text(f"  {judgement.why}"))
    return Group(*lines)


def listing(every: Sequence[Entry]) -> RenderableType:
    """All findings, and what is known of them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("finding", no_wrap=True)
    table.add_column("what is claimed")
    table.add_column("minutes", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for entry in every:
        judgement = entry.judgement
        verdict = Text(verdict_of(judgement), COLORS[judgement.verdict] if judgement else "")
        table.add_row(entry.name, Text(entry.finding.claim), f"{entry.finding.minutes:g}", verdict)
    return table


# as Markdown


def document(every: Sequence[Entry]) -> str:
    """docs/findings.md, below its introduction."""
    lines = [markdown([summary(entry) for entry in every])]
    for entry in every:
        lines.append(section(entry))
    return "\n".join(lines)


def summary(entry: Entry) -> dict[str, str]:
    return {
        "finding": f"[{entry.name}](#{entry.name})",
        "what is claimed": entry.finding.claim,
        "verdict": f"**{verdict_of(entry.judgement)}**",
        "its control": verdict_of(entry.of_control),
    }


def rows(judgement: Judgement) -> list[dict[str, str]]:
    """A line a quantity."""
    parts = (
        ("", "", judgement.quantities),
        ("condition: ", "or else ", judgement.conditions),
        ("the reason: ", "", judgement.because),
    )
    return [
        {
            "measured": kind + one.quantity,
            "mean (95 % interval)": interval(one),
            "expected": should(one.expected),
            "as": before + one.expected.why,
            "verdict": str(one.verdict),
        }
        for kind, before, some in parts
        for one in some
    ]


def facts(entry: Entry) -> list[tuple[str, str]]:
    """What it was measured on."""
    finding = entry.finding
    found = [
        ("Source", f"{finding.source}. Its numbers: {finding.numbers} ({PROVENANCE[finding.read]})"),
        ("Models", finding.size),
        ("Settings", f"`{settings(finding.all)}`" if finding.all else "the defaults"),
        (
            "Arms",
            "; ".join(f"*{arm}*" + f" `{settings(own)}`" * bool(own) for arm, own in finding.arms.items()),
        ),
    ]
    found += [("For each", f"`{key}={','.join(map(str, values))}`") for key, values in finding.over.items()]
    if entry.result:
        seconds, where = entry.result.seconds, entry.result.where
        runs = f"{where.runs} runs, {duration(seconds.training)} one after another; " * bool(where.runs)
        machine = f"{where.processor}, {where.precision}, torch {where.packages['torch']}"
        seeds = ", ".join(map(str, entry.result.by_seed))
        found.append(("Measured", f"seeds {seeds}; {runs}measuring {duration(seconds.measuring)}; {machine}"))
    if entry.of_control:
        found.append(("Control", f"{finding.control.what}: **{entry.of_control.verdict}**"))
    return found


def section(entry: Entry) -> str:
    finding, judgement = entry.finding, entry.judgement
    lines = [f"## {entry.name}\n", f"**{verdict_of(judgement)}** — {finding.claim}\n"]
    if judgement and judgement.why:
        lines.append(f"Why there is no verdict: {judgement.why}.\n")
    if entry.result:
        lines.append(f"![{finding.picture.y} by {finding.picture.x or 'arm'}](findings/{entry.name}.svg)\n")
    if judgement:
        lines.append(markdown(rows(judgement)))
    lines.append(f"{finding.remark.strip()}\n")
    lines += [f"- {name}: {text}" for name, text in facts(entry)]
    lines.append(f"\n```sh\npython -m findings {entry.name}\n```\n")
    return "\n".join(lines)
