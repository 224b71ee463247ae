"""What was found, for people: in the terminal, as one page, as docs/findings.md with its pictures."""

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from comparison import figures
from comparison.cells import markdown
from comparison.page import table as as_html
from reproduction.finding import Expected, Finding, Overrides
from reproduction.judging import Judged, Judgement, Verdict, judge
from reproduction.pictures import picture
from reproduction.running import Result, kept

COLORS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INCONCLUSIVE: "yellow"}
PROVENANCE = {
    "here": "the source was read for this project",
    "second hand": "the numbers are second hand: from notes or a copied table, not read in the source",
    "memory": "from memory: the source was not read again for this project",
    "ours": "no published number: from a formula, or first measured here",
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


def entries(found: Mapping[str, Finding], folder: Path) -> list[Entry]:
    """All of them, with the results in ``folder``."""
    return [
        Entry(name, one, kept(name, one, folder), kept(f"{name}-control", one.as_control(), folder))
        for name, one in found.items()
    ]


# in words


def number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "—"


def should(expected: Expected) -> str:
    """Where a quantity should lie."""
    if expected.above is None:
        return f"at most {expected.below:g}"
    if expected.below is None:
        return f"at least {expected.above:g}"
    if expected.above == expected.below:
        return f"{expected.above:g}"
    return f"{expected.above:g} to {expected.below:g}"


def interval(one: Judged) -> str:
    found = one.found
    return f"{number(found.mean)} ({number(found.low)} to {number(found.high)})"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def settings(overrides: Overrides) -> str:
    return " ".join(f"{key}={'null' if value is None else value}" for key, value in overrides.items())


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
    for column in ("finding", "what is claimed", "minutes", "verdict", "its control"):
        table.add_column(
            column, justify="right" if column == "minutes" else "left", no_wrap=column != "what is claimed"
        )
    for entry in every:
        verdicts = [
            Text(verdict_of(one), COLORS[one.verdict] if one else "")
            for one in (entry.judgement, entry.of_control)
        ]
        table.add_row(entry.name, Text(entry.finding.claim), f"{entry.finding.minutes:g}", *verdicts)
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
        ("", judgement.quantities),
        ("condition: ", judgement.conditions),
        ("the reason: ", judgement.because),
    )
    return [
        {
            "measured": kind + one.quantity,
            "mean (95 % interval)": interval(one),
            "expected": should(one.expected),
            "as": one.expected.why,
            "verdict": str(one.verdict),
        }
        for kind, some in parts
        for one in some
    ]


def facts(entry: Entry) -> list[tuple[str, str]]:
    """What it was measured on."""
    finding = entry.finding
    found = [
        ("Source", f"{finding.source}; {finding.numbers} ({PROVENANCE[finding.read]})"),
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
        runs = f"{where['runs']} runs, {duration(seconds['training'])} one after another; " * bool(
            where["runs"]
        )
        machine = f"{where['processor']}, {where['precision']}, torch {where['packages']['torch']}"
        seeds = ", ".join(map(str, entry.result.by_seed))
        found.append(
            ("Measured", f"seeds {seeds}; {runs}measuring {duration(seconds['measuring'])}; {machine}")
        )
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
    lines.append(f"\n```sh\npython findings.py {entry.name}\n```\n")
    return "\n".join(lines)


# as a page


def page(every: Sequence[Entry]) -> str:
    """One file that needs nothing else: those that were measured, below a table of all."""
    parts = {
        "css": (Path(figures.__file__).parent / "page.css").read_text(encoding="utf-8"),
        "table": overview(every),
        "sections": "\n".join(map(html_section, (entry for entry in every if entry.result))),
    }
    template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\[\[(\w+)\]\]", lambda found: parts[found[1]], template)


def overview(every: Sequence[Entry]) -> str:
    lines = []
    for entry in every:
        name, claim = html.escape(entry.name), html.escape(entry.finding.claim)
        named = f'<a href="#{name}">{name}</a>' if entry.result else name
        verdicts = (verdict_of(entry.judgement), verdict_of(entry.of_control))
        cells = "".join(f'<td class="{verdict}">{verdict}</td>' for verdict in verdicts)
        lines.append(f'<tr><td>{named}</td><td class="words">{claim}</td>{cells}</tr>')
    heads = ("finding", "what is claimed", "verdict", "its control")
    head = "".join(f"<th scope=col>{name}</th>" for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def html_section(entry: Entry) -> str:
    finding, judgement, result = entry.finding, entry.judgement, entry.result
    assert result
    assert judgement
    words = {"measured", "mean (95 % interval)", "expected", "as", "verdict"}
    listed = (
        f"<li>{html.escape(name)}: {html.escape(re.sub('[*`]', '', text))}</li>"
        for name, text in facts(entry)
    )
    name, verdict = html.escape(entry.name), judgement.verdict
    return "\n".join(
        (
            f'<section><h2 id="{name}">{name}: <span class="{verdict}">{verdict}</span></h2>',
            f"<p>{html.escape(finding.claim)}</p>",
            f"<p>Why there is no verdict: {html.escape(judgement.why)}.</p>" if judgement.why else "",
            f"<figure>{figures.svg(picture(finding, result.rows))}</figure>",
            f'<div class="wide">{as_html(rows(judgement), words)}</div>',
            f"<p>{html.escape(finding.remark)}</p>",
            f'<ul class="note">{"".join(listed)}</ul></section>',
        )
    )
