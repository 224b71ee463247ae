"""Does memory stay flat, over many steps and beside a large corpus? ``python -m bench.scaling --only memory``
runs it."""

from functools import partial
from pathlib import Path

from bench import ours
from bench.report import Bench, Measured
from rundir.run_files import read_json

LOOK = 0.05  # seconds between looks at the process: reading /proc takes a moment of a core that trains
POINTS = 200  # of a long run's memory, at most
SMALL = 1_000_000  # tokens of the corpus that the large one is compared with


class Resident:
    """Watches a process's memory: its most, all that is resident and what of that is its own, and the run's
    step by step. Linux only: elsewhere it finds nothing."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.looked = 0.0
        self.most = {"VmRSS": 0, "RssAnon": 0}  # bytes
        self.by_step: dict[int, dict[str, int]] = {}  # the first look at each step

    def __call__(self, pid: int, seconds: float) -> None:
        if seconds - self.looked < LOOK:
            return
        self.looked = seconds
        try:
            lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        except OSError:
            return
        words = [line.split() for line in lines]
        now = {word[0][:-1]: 1024 * int(word[1]) for word in words if word[0][:-1] in self.most}
        self.most |= {key: max(value, self.most[key]) for key, value in now.items()}
        for file in self.runs_dir.glob("[!.]*/status.json"):
            self.by_step.setdefault(int(read_json(file).get("step", 0)), now)


def long_run(bench: Bench, steps: int) -> None:
    """Memory at steps of one long run of the CPU recipe, evaluations and checkpoints included."""
    part = f"memory over {steps} steps"
    overrides = ["experiment=nanogpt_cpu", f"train.steps={steps}"]
    runs_dir = bench.work / "long"
    resident = Resident(runs_dir)
    bench.settings[part] = ours.told(overrides)

    def take() -> Measured:
        run = ours.train(bench, overrides, runs_dir=runs_dir, watch=resident)
        return {"peak_memory_bytes": run.child.peak_memory}

    bench.alternate({part: take}, rounds=1)
    looks = sorted(resident.by_step.items())
    every = max(1, len(looks) // POINTS)
    bench.found["memory"] = [
        {"step": step, "resident_bytes": now.get("VmRSS"), "own_bytes": now.get("RssAnon")}
        for step, now in looks[::every]
    ]
    early = [now["RssAnon"] for step, now in looks if 0.1 * steps <= step <= 0.3 * steps and "RssAnon" in now]
    late = [now["RssAnon"] for step, now in looks if step >= 0.8 * steps and "RssAnon" in now]
    if early and late:
        growth = (max(late) - max(early)) / 1e6
        bench.found["memory growth"] = {"from": "10-30 % of the steps", "to": "the last 20 %", "MB": growth}
        bench.note(
            f"{part}: its own memory grew by {growth:+.1f} MB from 10-30 % of the steps to the last 20 %"
        )


def take_corpus(bench: Bench, data: list[str]) -> Measured:
    runs_dir = bench.work / "corpus" / str(len(list((bench.work / "corpus").glob("*"))))
    resident = Resident(runs_dir)
    overrides = ["train.steps=200", *ours.QUIET, "train.eval_windows=12", "train.batch_size=12"]
    run = ours.train(bench, overrides, data=data, runs_dir=runs_dir, watch=resident)
    own = {"own_memory_bytes": resident.most["RssAnon"]} if resident.most["RssAnon"] else {}
    return {"peak_memory_bytes": run.child.peak_memory, "program_s": run.child.seconds} | own


def large_corpus(bench: Bench, gigabytes: float) -> None:
    """A made-up corpus of that size, and one of 2 MB: when its tokens are counted once, and after that."""
    (bench.work / "corpus").mkdir()
    sizes = {"a corpus of 2 MB": SMALL, f"a corpus of {gigabytes:g} GB": round(gigabytes * 1e9 / 2)}
    parts = {}
    for number, (name, tokens) in enumerate(sizes.items()):
        data = ours.made_up_corpus(bench.work / f"tokens-{number}", tokens, 65, sparse=True)
        for when in ("the first time", "after that"):
            parts[f"{name}, {when}"] = partial(take_corpus, bench, data)
    small, large = (f"{name}, after that" for name in sizes)
    bench.compare(large, small, "peak_memory_bytes", "own_memory_bytes", "program_s")
    bench.alternate(parts, rounds=1)
