"""The four comparisons with nanoGPT. Each yields the rows of one round; a row is a title, and values by name.
A ratio above 1 means that our program is faster."""

import argparse
from collections.abc import Iterator, Sequence
from statistics import median

from bench.programs import SIZES, BenchError, Programs, nanogpt_steps
from training import device
from training.run_folder import read_json, read_rows

Row = tuple[str, dict[str, float]]

STEPS = {"4x128": 400, "4x256": 120, "6x384": 9}  # for a steady median within minutes
LENGTHS = (64, 256, 1000)  # tokens of a sampled text
PRESETS = ("speedrun", "nanogpt_cpu")  # of conf/experiment
SWEEP = ("-m", "norm=layernorm,torch_layernorm,batchnorm,none", "placement=pre,post", "seed=0")
CPU_RECIPE = [*SIZES["4x128"].nanogpt(), "--eval_iters=20", "--log_interval=1"]  # in nanoGPT's README


def rates(title: str, ours: float, peer: float) -> Row:
    return title, {"ratio": ours / peer, "ours": ours, "nanoGPT": peer}


def times(title: str, ours: float, peer: float) -> Row:
    return title, {"ratio": peer / ours, "ours": ours, "nanoGPT": peer}


def steady(values: Sequence[float]) -> float:
    """Return the median without the first third, in which caches and allocators warm up."""
    if not values:
        raise BenchError("--steps: too few to time a step; give more")
    return median(values[len(values) // 3 :])


def train(programs: Programs, options: argparse.Namespace, _number: int) -> Iterator[Row]:
    """Tokens per second of a step, without start, compilation, evaluation and statistics."""
    for name in options.size or ("4x128", "4x256", "6x384"):
        size, steps = SIZES[name], options.steps or STEPS[name]
        flags = [*size.nanogpt(), *nanogpt_steps(steps), "--eval_iters=1", "--log_interval=1"]
        ended = programs.nanogpt_train(programs.new_folder(), *flags)
        peer = 1000 * size.tokens() / steady(ended.numbers(r"^iter .* time ([\d.]+)ms"))
        recipe = ["experiment=nanogpt_cpu", *size.ours(), f"train.steps={steps}"]
        quiet = ["train.eval_every=0", "train.checkpoint_every=0", "train.eval_windows=64"]
        quiet += [f"train.log_every={10 if steps >= 100 else 1}"]
        for precision in dict.fromkeys([device.choose(options.device, "auto").precision, "fp32"]):
            _, [run] = programs.train(*recipe, *quiet, f"precision={precision}")
            rows = read_rows(run / "metrics.jsonl")
            ours = steady([row["train/tokens_per_s"] for row in rows if "train/tokens_per_s" in row])
            yield rates(f"{name}, {precision}", ours, peer)


def sample(programs: Programs, options: argparse.Namespace, _number: int) -> Iterator[Row]:
    """Tokens per second when one text at a time is sampled, from a prompt of one token, at temperature 1,
    with all tokens allowed.

    When a text is longer than the context, nanoGPT reads a full context for each token; our model reads
    between half of it and all of it. The rows ``and start`` are the seconds from the program's start to the
    end of the first text.
    """
    for name in options.size or ("4x128", "6x384"):
        quick = ["--max_iters=1", "--batch_size=1", "--eval_interval=1", "--eval_iters=1"]
        out = programs.new_folder()
        programs.nanogpt_train(out, *SIZES[name].nanogpt(), *quick, "--always_save_checkpoint=True")
        quick = ["train.steps=1", "train.batch_size=1", "train.eval_windows=1", "data.val_fraction=0.01"]
        _, [run] = programs.train(*SIZES[name].ours(), *quick, "precision=fp32")
        for n in LENGTHS:
            texts = max(3, 640 // n)
            flags = [f"--max_new_tokens={n}", f"--num_samples={texts}", "--temperature=1.0", "--top_k=65"]
            ended = programs.nanogpt_sample(out, *flags)
            first, *_, last = (seconds for seconds, line in ended.lines if line == "---------------")
            peer = n * (texts - 1) / (last - first)
            ended = programs.sample(f"run={run}", "which=last", f"max_new_tokens={n}", "temperature=1.0")
            [rate] = ended.numbers(r"tokens, ([\d,]+) tokens/s$")
            yield rates(f"{name}, {n} tokens", rate, peer)
            yield times(f"{name}, {n} tokens and start", ended.lines[-1][0], first)


def quality(programs: Programs, options: argparse.Namespace, number: int) -> Iterator[Row]:
    """Seconds of a whole command, and its loss on the validation split. Our seed is the number of the round.

    nanoGPT trains its recipe for a CPU. It then estimates the loss of its last checkpoint on 200 batches of
    64 windows, which is not timed. This estimate is within about 0.003 of the whole split's loss. Seconds are
    comparable only if our loss is not above nanoGPT's.
    """
    steps = options.steps or 2000
    recipe = [*CPU_RECIPE, *nanogpt_steps(steps), f"--eval_interval={steps if steps % 250 else 250}"]
    out = programs.new_folder()
    peer = programs.nanogpt_train(out, *recipe, "--always_save_checkpoint=True").seconds
    resumed = ["--init_from=resume", "--eval_iters=200", "--batch_size=64"]
    ended = programs.nanogpt_train(out, *recipe, *resumed)
    yield "nanoGPT, loss", {"nats": ended.numbers(r"^step .* val loss (\S+)")[0]}
    for preset in PRESETS:
        length = [f"train.steps={steps}"] if options.steps else []
        ended, [run] = programs.train(f"experiment={preset}", f"seed={number}", *length)
        yield times(preset, ended.seconds, peer)
        yield f"{preset}, loss", {"nats": read_json(run / "status.json")["final"]}


def ablation(programs: Programs, options: argparse.Namespace, _number: int) -> Iterator[Row]:
    """Seconds of eight runs of our default size. Our runs are one sweep, with as many at once as there are
    cores. nanoGPT, whose norm is fixed, trains eight times, each time with all cores. Both evaluate as on a
    CPU."""
    steps = options.steps or 400
    flags = [*CPU_RECIPE, "--batch_size=32", *nanogpt_steps(steps), f"--eval_interval={steps}"]
    peer = sum(programs.nanogpt_train(programs.new_folder(), *flags).seconds for _ in range(8))
    rate = "optim.learning_rate=1e-3"  # nanoGPT's
    ended, runs = programs.train(*SWEEP, rate, f"train.steps={steps}", "train.eval_every=100")
    states = [read_json(run / "status.json")["state"] for run in runs]
    if states != ["finished"] * 8:
        raise BenchError(f"our sweep did less work, because its runs are {', '.join(states)}")
    yield times("8 runs", ended.seconds, peer)
