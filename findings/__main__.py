"""Published claims about normalization, each measured again by one command, with a verdict.

    python -m findings                              list all findings: claim, minutes, verdict
    python -m findings batch_spread init_scale      measure these two: PASS, FAIL or INCONCLUSIVE
    python -m findings --docs                       write docs/findings.md from results/findings

runs/findings has the numbers, the picture and the runs of each finding. To measure one again, delete its
NAME.json. A finding is a YAML file in conf/finding; put your own into DIR/finding and add --config-dir=DIR.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from cli import programs
from cli.errors import no_such_choice, one_line_errors
from data.errors import ConfigError
from data.files import jsonable, write_atomically
from findings.finding import Finding, judge, load_findings, read_result
from training.environment import ROOT

OUT, PUBLISHED = Path("runs/findings"), ROOT / "results" / "findings"


def listing(findings: dict[str, Finding]) -> Iterator[str]:
    """Yield a line for each finding, with this machine's verdict, or otherwise the published one."""
    for name, finding in findings.items():
        results = [read_result(finding, folder / f"{name}.json") for folder in (OUT, PUBLISHED)]
        result = results[0] or results[1]
        verdict = judge(finding.expected, result["by_seed"])[0] if result else "not measured"
        yield f"{verdict:12}  {finding.minutes:2g} min  {name}: {finding.claim}"


def obtain(name: str, finding: Finding, config_dir: str | None) -> None:
    """Measure a finding, unless it was measured before; draw its picture, and print its verdict."""
    from findings.document import figure, numbers  # imports Altair

    file = OUT / f"{name}.json"
    result = read_result(finding, file)
    if not result:
        print(f"{name}: takes at most about {finding.minutes:g} min on two cores", flush=True)
        from findings.models import measure  # imports torch

        result = measure(finding, OUT / name, config_dir)
        OUT.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(jsonable(result)))
    figure(finding.picture, result["rows"]).save(OUT / f"{name}.svg")
    verdict, outcomes = judge(finding.expected, result["by_seed"])
    print(f"{verdict}  {name}: {finding.claim}")
    for outcome in outcomes:
        print(f"  {outcome.verdict}  {outcome.quantity}: {numbers(outcome)}")
    if finding.control:
        print(f"  control: {finding.control}")
    print(f"  {len(result['by_seed'])} seeds; numbers and picture: {OUT / name}.json and .svg")


def main() -> None:
    parser = programs.parser(__doc__, "findings")
    parser.add_argument("names", nargs="*", metavar="NAME", help="findings to measure; default: list all")
    parser.add_argument("--docs", action="store_true", help="write docs/findings.md and its pictures")
    parser.add_argument("--config-dir", help="a folder with additions to conf/: finding, norm, …")
    args = parser.parse_args()
    with one_line_errors():
        findings = load_findings(args.config_dir)
        for name in args.names:
            if name not in findings:
                raise ConfigError(no_such_choice("finding", name, [*findings]))
        if args.docs:
            from findings.document import write_document

            write_document()
        elif not args.names:
            print(*listing(findings), sep="\n")
            print("For a finding that was not measured here, the verdict is that of docs/findings.md.")
        for name in args.names:
            obtain(name, findings[name], args.config_dir)


if __name__ == "__main__":
    main()
