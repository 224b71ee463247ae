"""Studies and their runs: as values, as tables, and as the files that training leaves."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from study.files import Arm, Study, write_once
from study.report import judged
from study.runs import RunResult

WRITTEN = datetime(2026, 11, 29, 10, tzinfo=UTC)
BASE, OTHER = "norm=layernorm placement=pre", "norm=rmsnorm placement=pre"
WORSE = {BASE: [2.0, 2.1, 1.9, 2.0], OTHER: [2.1, 2.2, 2.001, 2.1]}
RATE, REPORT = "optim.learning_rate", "val/report_loss"
TUNE = {RATE: "log 1e-3 1e-2"}
CLEAN = {"causal": True, "independent_rows": True, "train": {"future": 0.0}, "eval": {"future": 0.0}}
ENVIRONMENT = {
    "began": "2026-11-29T10:00:01+00:00",
    "packages": {"torch": "2.13.0"},
    "git": {"commit": "0123456789", "clean": True},
    "device": "cpu",
    "gpu": None,
    "ranks": 1,
    "threads": 1,
    "compile": False,
    "processor": "a processor",
}


def a_study(*titles, seeds=4, **changes):
    """Return a study of these arms, the first of which is the baseline."""
    titles = titles or (BASE, OTHER)
    trials = [[] for _ in changes.get("trials", ())]
    keys = {
        "schema": 1,
        "name": "norms",
        "written": WRITTEN.isoformat(),
        "torch": "2.13.0",
        "declared_by": ["study=norms"],
        "runs_dir": "runs",
        "baseline": titles[0],
        "metric": "val/full_loss",
        "matters": 0.01,
        "verdicts": True,
        "tune": {},
        "seeds": [*range(10, 10 + seeds)],
        "further_seeds": [*range(90, 90 + seeds)],
        "comparisons": len(titles) - 1,
        "arms": [Arm(title=t, overrides=t.split(), same_as=[], group="", trials=trials) for t in titles],
        **dict.fromkeys(("git", "config_dir", "precision", "tokens")),
        **{key: [] for key in ("words", "by", "trials", "trial_seeds")},
    }
    return Study(**keys | changes)


def a_run(loss, **changes):
    """Return a run that ended at ``loss``; None: it diverged."""
    losses = {} if loss is None else {"val/full_loss": loss, REPORT: loss, "val/bpb": 2 * loss}
    curve = ((0, 4.0), (100, loss or 4.0))
    began = WRITTEN + timedelta(seconds=1)
    state = "diverged" if loss is None else "finished"
    run = RunResult("a", None, state, False, losses, [], began, 1000.0, 2**30, curve, {"threads": "1"})
    return replace(run, **changes)


def a_table(losses, changes=None, chosen=None, **declared):
    """Return the table of a study.

    Args:
        losses: of each arm, by seed; more than the study has seeds: it was extended.
        changes: of each run of an arm, by title. chosen: what chosen.json says of an arm, by title.
    """
    study = a_study(*losses, **declared)
    n, all_seeds = len(study.seeds), study.seeds + study.further_seeds
    runs, names = {}, {}
    for title, values in losses.items():
        own = {f"{title} {seed}": loss for seed, loss in zip(all_seeds, values, strict=False)}
        names[title] = [*own]
        runs |= {name: a_run(loss, **(changes or {}).get(title, {})) for name, loss in own.items()}
    arms = {
        title: {"settings": {}} | (chosen or {}).get(title, {}) | {"runs": each[:n]}
        for title, each in names.items()
    }
    further = {title: each[n:] for title, each in names.items()}
    extended = {"seeds": study.further_seeds, "runs": further} if any(further.values()) else None
    return judged((study, {"arms": arms}, extended, runs, []))


def write_run(folder, loss=2.0, curve=((0, 4.0),), end=None, status=None, leak=None, **environment):
    """Write a run that ended at ``loss``; None: it diverged. ``leak``: the mode in which it leaks."""
    folder.mkdir(parents=True)
    rows = [{"step": step, "val/loss": each, "train/tokens_per_s": 100.0} for step, each in curve]
    state = {"state": "diverged", "final": "NaN"}
    if loss is not None:
        state = {"state": "finished", "final": loss, "peak_memory": 2**30, "collapsed": False}
        names = ("val/loss", "val/full_loss", REPORT)
        rows.append({"step": 100, **dict.fromkeys(names, loss), "val/bpb": 2 * loss} | (end or {}))
    certificate = CLEAN | ({"causal": False, leak: {"future": 0.5}} if leak else {})
    files = {"status": state | (status or {}), "environment": ENVIRONMENT | environment}
    for name, content in {**files, "certificate": {"start": CLEAN, "end": certificate}}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_study(folder, losses, tried=(), options=None, **declared):
    """Write the files of a study and its runs. The last setting is chosen, at the edge of its range.

    Args:
        losses: of each arm, by seed; more than the study has seeds: it was extended.
        tried: the loss of each setting. options: of ``write_run``, by the title of an arm.
    """
    rates = [0.001 + number / 1000 for number, _ in enumerate(tried)]
    tuning = {"tune": TUNE, "trials": [{RATE: r} for r in rates], "trial_seeds": [0]} if tried else {}
    study = a_study(*losses, **tuning | declared)
    n, arms, chosen, further = len(study.seeds), [], {}, {}
    for number, (arm, values) in enumerate(zip(study.arms, losses.values(), strict=True)):
        names = [f"arm{number}-s{seed}" for seed in (*study.seeds, *study.further_seeds)][: len(values)]
        trials = [f"trial{number}-{setting}" for setting, _ in enumerate(tried)]
        for name, loss in zip(names, values, strict=True):
            write_run(Path(study.runs_dir, name), loss, **(options or {}).get(arm.title, {}))
        for name, loss in zip(trials, tried, strict=True):
            write_run(Path(study.runs_dir, name), loss, end={"val/select_loss": loss})
        choice = {"settings": study.trials[-1], "edges": [RATE]} if tried else {"settings": {}}
        chosen[arm.title] = choice | {"runs": names[:n], "half_the_trials": 0.01}
        further[arm.title] = names[n:]
        arms.append(arm.model_copy(update={"trials": [[name] for name in trials]}))
    folder.mkdir(parents=True, exist_ok=True)
    write_once(folder / "study.json", study.model_copy(update={"arms": arms}).model_dump(by_alias=True))
    write_once(folder / "chosen.json", {"written": study.written, "arms": chosen})
    if any(further.values()):
        write_once(folder / "extended.json", {"seeds": study.further_seeds, "runs": further})
