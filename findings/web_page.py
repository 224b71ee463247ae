"""findings/index.html: one file that holds every finding with its picture and fetches nothing."""

import html
import re
from collections.abc import Sequence
from pathlib import Path

from comparison import figures
from comparison.page import table
from findings.figure import picture
from findings.render import Entry, facts, rows, verdict_of


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
    drawn = picture(finding, result.rows) | {"background": "transparent"}  # the page may be dark
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
            f"<figure>{figures.svg(drawn)}</figure>",
            f'<div class="wide">{table(rows(judgement), words)}</div>',
            f"<p>{html.escape(finding.remark)}</p>",
            f'<ul class="note">{"".join(listed)}</ul></section>',
        )
    )
