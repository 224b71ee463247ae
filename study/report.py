"""The table of a study: read its folder, judge its arms, and say what they show."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from study import files
from study.files import Arm, Part, Study
from study.publish import read_runs_csv
from study.runs import RunResult, differing, read_runs
from study.statistics import (
    EXTENDED,
    FIRST,
    Row,
    compared_runs,
    has_two_parts,
    results_of,
    rows,
    seeds_needed,
)
from study.table import Table, Trial, ordered, plural, short
from training.run_folder import SELECT

THAN = {"better": "than", "worse": "than", "equivalent": "to"}
RECONSTRUCTED = (
    "The runs are older than study.json, which was reconstructed from the plan that they recorded."
)
BEING_DOUBLED = "The seeds are being doubled: verdicts follow when all runs have ended."
DOUBLED = (
    "The seeds were doubled, and every arm was judged anew at a stricter level: an arm that had a verdict "
    "may be open again."
)
LEAKS = (
    "LEAKS in training: in training mode, logits depend on later tokens or other rows of the batch. Losses "
    "are measured in evaluation mode, where logits do not, so the verdict holds."
)
COLLAPSED = "Collapsed: a seed that ended no better than guessing each token by its frequency."
TUNED = (
    "A verdict is about the chosen settings. Half the trials: how much higher the best trial's loss would "
    "be, on average, with half as many trials. Drawing other settings may change the loss as much."
)
NOT_TUNED = (
    "No arm was tuned: a verdict holds for the given settings. At each arm's own best settings the order "
    "may differ."
)
NOISE = "The noise of the evaluation text is not in the interval."

# study.json; chosen.json and extended.json; the runs that have ended, by name; a line for each skipped run
Content = tuple[Study, Part, Part, dict[str, RunResult], list[str]]


def load(folder: Path) -> Table:
    """Return the table of a study, live or published. Raises OSError and ConfigError."""
    return judged(read(folder))


def read(folder: Path) -> Content:
    """Return what is in a study's folder, and its runs. Raises OSError and ConfigError."""
    study = files.read(folder)
    chosen, extended = (files.read_part(folder / name) for name in ("chosen.json", "extended.json"))
    if not study.runs_dir:
        return study, chosen, extended, read_runs_csv(folder, study.metric), []
    compared = [name for arm in study.arms for name in compared_runs(arm.title, chosen, extended)]
    tried = [name for arm in study.arms for names in arm.trials for name in names]
    runs, skipped = read_runs(Path(study.runs_dir), [*compared, *tried], study.metric)
    return study, chosen, extended, runs, skipped


def judged(content: Content) -> Table:
    """Return the table of a study that was read."""
    study, chosen, extended, runs, skipped = content
    results = results_of(study, chosen, extended, runs)
    table = ordered(rows(study, chosen, extended, results), [arm.title for arm in study.arms])
    conditions = differing([run for own in results.values() for run in own.values()])
    warnings = [f"the compared runs differ in {', '.join(conditions)}"] if conditions else []
    warnings += [line for row in table for line in bimodal(row)]
    return Table(
        name=study.name,
        conclusion=conclusion(study, table),
        caption=caption(study, bool(extended)),
        rows=table,
        notes=notes(study, table, bool(extended)),
        warnings=warnings + skipped,
        advice=more_seeds(study, table, bool(extended)),
        runs=results,
        trials={arm.title: trials_of(study, arm, runs) for arm in study.arms} if study.tune else {},
        study=study,
        extended=bool(extended),
    )


def bimodal(row: Row) -> list[str]:
    """Return a warning if the seeds of an arm form two groups, which its mean hides."""
    losses = [loss for loss in row.losses.values() if loss is not None]
    if row.mean is None or not has_two_parts(losses):
        return []
    listed = ", ".join(f"{loss:.3f}" for loss in sorted(losses))
    groups = "its seeds form two groups, and the mean describes neither"
    return [f"{short(row.title)} is bimodal: {groups}: {listed}"]


def trials_of(study: Study, arm: Arm, runs: Mapping[str, RunResult]) -> list[Trial]:
    """Return the settings that an arm tried, each with its loss on the first tuning seed; None: it
    diverged."""
    tried = [(settings, runs.get(names[0])) for settings, names in zip(study.trials, arm.trials, strict=True)]
    return [(settings, run.losses.get(SELECT)) for settings, run in tried if run]


def conclusion(study: Study, table: Sequence[Row]) -> str:
    """Return the sentence above the table."""
    compared = [row for row in table if row.baseline]
    bases = sorted({row.baseline for row in compared if row.baseline})
    base = short(bases[0]) if len(bases) == 1 else f"their baselines (by {', '.join(study.by)})"
    arms = plural(len(compared), "arm")
    if not compared:
        return "No arm is compared with another one."
    if not study.verdicts:
        return f"{arms} compared with {base}; the study was declared to give no verdicts."
    counts = Counter(row.outcome for row in compared)
    named = next((outcome for outcome in THAN if counts[outcome]), "")  # the phrase that names the baseline
    phrases = [
        f"{counts[outcome]} {outcome or 'without a verdict'}"
        + f" {THAN.get(named)} {base}" * (outcome == named)
        for outcome in (*THAN, "open", None)
        if counts[outcome]
    ]
    verb = " is " if phrases[0].startswith("1 ") else " are "
    beside = "" if named else f" compared with {base}"
    return f"Of {arms}{beside}, {', '.join(phrases).replace(' ', verb, 1)}."


def notes(study: Study, table: Sequence[Row], extended: bool) -> list[str]:
    """Return the sentences below the table: what its remarks mean, and what a verdict leaves out."""
    is_unfinished = any(row.reason == "unfinished" for row in table)
    lines = {
        RECONSTRUCTED: study.declared == "reconstructed",
        BEING_DOUBLED: extended and is_unfinished,
        DOUBLED: extended and not is_unfinished,
        LEAKS: any(row.leaks == ["training"] for row in table),
        COLLAPSED: any(row.collapsed for row in table),
        TUNED: study.tune,
        NOT_TUNED: not study.tune,
        NOISE: True,
    }
    return [line for line, holds in lines.items() if holds]


def more_seeds(study: Study, table: Sequence[Row], extended: bool) -> tuple[str, str] | None:
    """Return a sentence and a command for the open arm that needs the fewest seeds; None if MOST_SEEDS would
    decide no open arm."""
    needing = [(row.seeds_needed, row.title, row) for row in table if row.seeds_needed]
    if not needing:
        return None
    needed, title, row = min(needing, key=lambda each: each[:2])
    words = [word for word in study.declared_by if word.partition("=")[0] not in ("name", "seeds", "extend")]
    words += [f"name={study.name}_{needed}_seeds", f"seeds={needed}"]
    how = "declare a new study, with its own seeds"
    if study.runs_dir and not extended:
        theirs = next(other.losses for other in table if other.title == row.baseline)
        own, base = (np.array([losses[seed] for seed in row.seeds], float) for losses in (row.losses, theirs))
        doubled = seeds_needed(own - base, study.comparisons, study.matters, EXTENDED)
        if doubled and doubled <= 2 * len(study.seeds):
            needed, words, how = doubled, [*study.declared_by, "extend=true"], "double the seeds, once"
    observed = f"would need about {needed} seeds, if its true difference is the observed one"
    return f"{short(title)} {observed}: {how}.", shlex.join(["python", "ablate.py", *words])


def caption(study: Study, extended: bool) -> str:
    """Return the line above the table: what its numbers are."""
    half = " on the half of the text that tuning did not read" if study.tune else " on half of the text"
    half *= study.metric == "val/report_loss"
    mean = f"Mean validation loss{half} over {plural(len(study.seeds) * (1 + extended), 'seed')}"
    if not study.comparisons:
        return f"{mean}."
    share = EXTENDED if extended else FIRST
    level = f"{1 - share / study.comparisons:.2%} Student's t interval (1 − {share}/{study.comparisons})"
    return f"{mean}; difference paired by seed, with its {level}."
