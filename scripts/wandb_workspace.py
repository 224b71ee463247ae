"""Arrange this project's panels on wandb: the losses first, then each statistic with a line for each block.

    python -m scripts.wandb_workspace --entity NAME             saves the view; prints its address
    python -m scripts.wandb_workspace --entity NAME --json      prints the view; needs no account

Needs requirements-wandb.txt, and to save, wandb login.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from cli import programs
from probe.metric_names import matches, sites

LOSSES = ("train/loss", "val/loss")
TRAINING = ("train/grad_norm", "train/lr", "train/tokens_per_s", "val/batch_stats_gap")
STATS = Path(__file__).parents[1] / "conf" / "stats" / "default.yaml"
DEFAULT = yaml.safe_load(STATS.read_text(encoding="utf-8"))["metrics"]
BRANCHES = sorted(  # of each default statistic: act.ratio has attn.branch and mlp.branch
    {
        (name, site.partition(".")[2])
        for name, found in sites(1).items()
        for site in found
        if site[0] == "0" and any(matches(f"{name}/{site}", pattern) for pattern in DEFAULT)
    }
)


def workspace(entity: str, project: str) -> Any:
    """Return the view: a section for the losses, one for the rest of training, and one for each kind of
    statistics, where a panel has the lines of all blocks and the maps of all runs lie side by side."""
    from wandb_workspaces.reports import v2 as panels
    from wandb_workspaces.workspaces import Config, RunsetSettings, Section, Workspace

    def plot(title: str, **lines: Any) -> Any:
        return panels.LinePlot(title=title, x="step", **lines)

    sections = [
        Section(name="losses", is_open=True, pinned=True, panels=[plot(name, y=[name]) for name in LOSSES]),
        Section(name="training", panels=[plot(name, y=[name]) for name in TRAINING]),
    ]
    for kind in dict.fromkeys(name.partition(".")[0] for name, _ in BRANCHES):
        section = Section(name=kind)
        for name, branch in BRANCHES:
            if name.startswith(f"{kind}."):
                title = f"{name} {branch}".strip()
                site = r"\d+" + re.escape(f".{branch}" if branch else "")
                section.panels += [
                    plot(title, metric_regex=rf"^{re.escape(name)}/{site}$"),
                    panels.MediaBrowser(title=f"{title} map", media_keys=[f"within/{title} map"]),
                ]
        sections.append(section)
    grouped = RunsetSettings(groupby=[Config("norm"), Config("placement")])
    return Workspace(entity=entity, project=project, name="norms", sections=sections, runset_settings=grouped)


def main(arguments: list[str] | None = None) -> None:
    parser = programs.parser(__doc__, "scripts.wandb_workspace")
    parser.add_argument("--entity", required=True, help="the user or team at wandb")
    parser.add_argument("--project", default="normgpt")
    parser.add_argument("--json", action="store_true", help="print the view instead of saving it")
    options = parser.parse_args(arguments)
    try:
        view = workspace(options.entity, options.project)
    except ImportError as error:
        raise SystemExit(f"error: {error}; pip install -r requirements-wandb.txt") from None
    if options.json:
        spec = view._to_model().spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        print(json.dumps(spec, indent=1))
    else:
        print(view.save().url)


if __name__ == "__main__":
    main()
