"""Read a study's folder: its rows, and what is said of them."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from study import files
from study.files import Arm, Part, Study
from study.publish import read_runs_csv
from study.runs import RunResult, differing, read_runs
from study.statistics import EXTENDED, FIRST, Row, compared_runs, has_two_parts, results_of, rows
from study.table import Table, Trial, short
from training.run_folder import SELECT

THAN = {"better": " than", "worse": " than", "equivalent": " to"}


Content = tuple[Study, Part, Part, dict[str, RunResult], list[str]]


def load(folder: Path) -> Table:
    """Return the table of a study, live or published. Raises OSError and ConfigError."""
    return judged(read(folder))


def judged(content: Content) -> Table:
    study, chosen, extended, runs, skipped = content
    results = results_of(study, chosen, extended, runs)
    conditions = differing([run for own in results.values() for run in own.values()])
    warnings = [f"the compared runs differ in {', '.join(conditions)}"] if conditions else []
    trials = {arm.title: trials_of(study, arm, runs) for arm in study.arms} if study.tune else {}
    table = rows(study, chosen, extended, results)
    warnings += [line for row in table for line in two_parts(row)]
    return table_of(study, table, bool(extended), results, trials, warnings + skipped)


def read(folder: Path) -> Content:
    """Return study.json, chosen.json and extended.json of a study; its runs that have ended, by name; and a
    line for each run that is skipped. Raises OSError and ConfigError."""
    study = files.read(folder)
    chosen, extended = (files.read_part(folder / name) for name in ("chosen.json", "extended.json"))
    if not study.runs_dir:
        return study, chosen, extended, read_runs_csv(folder, study.metric), []
    compared = [name for arm in study.arms for name in compared_runs(arm.title, chosen, extended)]
    tried = [name for arm in study.arms for names in arm.trials for name in names]
    runs, skipped = read_runs(Path(study.runs_dir), [*compared, *tried], study.metric)
    return study, chosen, extended, runs, skipped


def table_of(
    study: Study,
    judged: Sequence[Row],
    extended: bool,
    results: Mapping[str, Mapping[int, RunResult]],
    trials: Mapping[str, Sequence[Trial]],
    warnings: Sequence[str],
) -> Table:
    return Table(
        name=study.name,
        conclusion=conclusion(study, judged),
        caption=caption(study, extended),
        rows=ordered(study, judged),
        notes=notes(study, judged, extended),
        warnings=[*warnings],
        advice=more_seeds(study, judged, extended),
        runs=results,
        trials=trials,
        study=study,
        extended=extended,
    )


def two_parts(row: Row) -> list[str]:
    """Return a warning if a mean hides that the seeds of an arm fall into two parts."""
    losses = sorted(loss for loss in row.losses.values() if loss is not None)
    listed = ", ".join(f"{loss:.3f}" for loss in losses)
    warning = (
        f"{short(row.title)} is bimodal: its seeds form two groups, and the mean describes neither: {listed}"
    )
    return [warning] if row.mean and has_two_parts(losses) else []


def trials_of(study: Study, arm: Arm, runs: Mapping[str, RunResult]) -> list[Trial]:
    """Return the settings that an arm tried, with the loss on the first tuning seed; None: diverged."""
    firsts = [names[0] for names in arm.trials]
    ended = [
        (settings, runs[name]) for settings, name in zip(study.trials, firsts, strict=True) if name in runs
    ]
    return [(settings, run.losses.get(SELECT)) for settings, run in ended]


def ordered(study: Study, judged: Sequence[Row]) -> list[Row]:
    """Return each baseline followed by the arms that are compared with it, the lowest loss first."""
    titles = [arm.title for arm in study.arms]

    def place(row: Row) -> tuple[int, bool, float]:
        loss = math.inf if row.mean is None else row.mean
        return titles.index(row.baseline or row.title), row.baseline is not None, loss

    return sorted(judged, key=place)


def conclusion(study: Study, judged: Sequence[Row]) -> str:
    """Return the sentence that comes first."""
    compared = [row for row in judged if row.baseline]
    bases = sorted({row.baseline for row in compared if row.baseline})
    base = short(bases[0]) if len(bases) == 1 else f"their baselines (by {', '.join(study.by)})"
    if not compared:
        return "No arm is compared with another one."
    if not study.verdicts:
        arms = f"{len(compared)} arm{'s' * (len(compared) != 1)}"
        return f"{arms} beside {base}; the study was declared to give no verdicts."
    counts = Counter(row.outcome for row in compared)
    phrases: list[str] = []
    for outcome in ("better", "worse", "equivalent", "open", None):
        if count := counts[outcome]:
            verb = "" if phrases else "is " if count == 1 else "are "
            against = f"{THAN[outcome]} {base}" if outcome in THAN and base not in "".join(phrases) else ""
            phrases.append(f"{count} {verb}{outcome or 'without a verdict'}{against}")
    said = ", ".join(phrases)
    beside = "" if base in said else f" compared with {base}"
    return f"Of {len(compared)} arm{'s' * (len(compared) != 1)}{beside}, {said}."


def notes(study: Study, judged: Sequence[Row], extended: bool) -> list[str]:
    """Return the sentences below the table: how the arms were extended, what remarks mean, and what a verdict
    leaves out."""
    lines = []
    if study.declared == "reconstructed":
        lines.append(
            "The runs are older than study.json, which was reconstructed from the plan that they recorded."
        )
    if extended and any(row.reason == "unfinished" for row in judged):
        lines.append("The seeds are being doubled: verdicts come when all runs have ended.")
    elif extended:
        lines.append(
            "The seeds were doubled, and every arm was judged anew at a stricter level: one that had a "
            "verdict may be open again."
        )
    if any(row.leaks == ["training"] for row in judged):
        lines.append(
            "LEAKS in training: there, logits depend on later tokens or other rows. Losses are measured in "
            "evaluation, where they do not, so the verdict holds."
        )
    if any(row.collapsed for row in judged):
        lines.append("Collapsed: a seed that ended no better than guessing each token by its frequency.")
    if study.tune:
        lines.append(
            "A verdict is about the chosen settings. Half the trials: how much higher the best trial's loss "
            "would be, on average, with half as many trials. Another draw may change as much."
        )
    else:
        lines.append(
            "No arm was tuned: a verdict holds for the given settings. At each arm's own best settings the "
            "order may differ."
        )
    lines.append("The noise of the evaluation text is not in the interval.")
    return lines


def more_seeds(study: Study, judged: Sequence[Row], extended: bool) -> tuple[str, str] | None:
    """Return a sentence and a command for the open arm that needs the fewest seeds; None if there is none, or
    if no number of seeds that anyone would run decides."""
    needing = [(row.seeds_needed, row.title) for row in judged if row.seeds_needed]
    if not needing:
        return None
    needed, title = min(needing)
    words = [word for word in study.declared_by if word.partition("=")[0] not in ("name", "seeds", "extend")]
    if needed <= 2 * len(study.seeds) and not extended and study.runs_dir:
        words, how = [*study.declared_by, "extend=true"], "double the seeds, once"
    else:
        words += [f"name={study.name}_{needed}_seeds", f"seeds={needed}"]
        how = "declare a new study, with its own seeds"
    sentence = (
        f"{short(title)} would need about {needed} seeds, if its true difference is the observed one: {how}."
    )
    return sentence, shlex.join(["python", "ablate.py", *words])


def caption(study: Study, extended: bool) -> str:
    """Return the line above the table: what is in it."""
    share = EXTENDED if extended else FIRST
    half = " on the half of the text that tuning did not read" * (study.metric == "val/report_loss")
    count = len(study.seeds) * (1 + extended)
    seeds = f"{count} seed{'s' * (count != 1)}"
    if not study.comparisons:
        return f"Mean validation loss{half} over {seeds}."
    level = f"{1 - share / study.comparisons:.2%} Student's t interval (1 − {share}/{study.comparisons})"
    return f"Mean validation loss{half} over {seeds}; difference paired by seed, with its {level}."
