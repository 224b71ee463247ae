"""What looking layer by layer costs: seconds of a run with its default statistics over one without any.

    python -m bench.statistics --data tinyshakespeare.txt
    python -m bench.statistics --data tinyshakespeare.txt --steps 200

The default model and batch, in precision auto, compiled or not; wall time from step 0 to the last step,
without evaluations and checkpoints. Beside it what the run itself reports, as `stats/overhead`. At the
beginning of a run statistics are dense (steps 0, 1, 2, 4, …), so fewer steps cost more. nanoGPT has nothing
of this: --peer is not used."""

import argparse
from functools import partial

from bench import options, ours
from bench.report import Bench, Column, Measured

COLUMNS: list[Column] = [("seconds", "seconds", 1), ("reported_percent", "the run's own figure, %", 1)]


def take(bench: Bench, part: str, overrides: list[str]) -> Measured:
    bench.settings[part] = ours.told(overrides)
    timed = [row for row in ours.train(bench, overrides).rows() if "train/loss" in row]
    found = {"seconds": timed[-1]["seconds"]}  # from before step 0 to after the last one that is logged
    reported = [row["stats/overhead"] for row in timed if "stats/overhead" in row]
    return found | ({"reported_percent": 100 * reported[-1]} if reported else {})


def measure(bench: Bench, asked: argparse.Namespace) -> None:
    ours.warm_up(bench)
    parts = {}
    for compiled in ("false", "true"):
        mode = "compiled" if compiled == "true" else "eager"
        common = [*ours.QUIET, f"train.steps={asked.steps}", f"compile={compiled}"]
        for name, statistics in (("without", ["stats.every=0"]), ("default", ["stats=default"])):
            part = f"{mode}, {name} statistics" if name == "default" else f"{mode}, without statistics"
            parts[part] = partial(take, bench, part, [*common, *statistics])
        bench.compare(f"{mode}, default statistics", f"{mode}, without statistics", "seconds")
    bench.alternate(parts)
    bench.note(f"{asked.steps} steps; 1.02 of seconds is an overhead of 2 %")
    bench.show(COLUMNS)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=options.at_least_one, default=1000, help="of each run; 1000")


def main() -> None:
    options.program("statistics", __doc__, measure, rounds=3, more=arguments)


if __name__ == "__main__":
    main()
