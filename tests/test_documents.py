"""Every command of the README and of docs/ is run, in a folder such as its page supposes, with smaller sizes,
and does what the text says. ELSEWHERE has the commands that cannot be run here, and why."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from filelock import FileLock

from cli.compose import key_of
from cli.errors import CONF, known_keys
from cli.errors import keys as keys_of
from cli.schema import SampleConfig
from data.external import TO_JSON
from findings.finding import load_findings
from interop.hub import HUB
from interop.pickle_hint import FROM_NANOGPT, conversion_command
from study.table import SCHEMA
from tests.conftest import LETTERS, ROOT, TINY
from tests.helpers import gpt2_models, programs

PAGES = [
    "README.md",
    "AGENTS.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "results/README.md",
    "results/findings.md",
    "results/leaking_placement.md",
]
PAGES += [f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md"))]

# Beginnings or parts of commands, and why they are not run here. make test-long runs those of LONG.
ELSEWHERE = {
    "pip install": "needs a network; the environment of these tests was made by it",
    "make": "is what runs these tests",
    "uv": "needs uv",
    "torchrun --nnodes=2": "needs two machines",
    "launcher=slurm": "needs a Slurm: tests/study/test_slurm.py",
    "bench.": "takes hours, and most need a checkout of nanoGPT: tests/bench/ runs them small",
    "--config-dir": "needs the files of its page: tests/test_own_norm.py makes them",
    "trust=mynorms": "needs the files of its page: tests/test_own_norm.py makes them",
    "export PYTHONPATH=mine": "is the shell's own",
    "pickle.load": "needs a file of nanoGPT's: tests/data/test_external.py makes one",
    "torch.load": "needs a file of nanoGPT's: tests/interop/test_pretrained.py makes one",
    "--candidate": "its exit status is a verdict: tests/study/test_table.py",
}
LONG = ("-m findings ", "torchrun", "-m experiment=cs336", "study=cs336_", "study=fair", "extend=true")
# In place of sizes that take long, and of downloads.
SHORT = {"train.steps": "6", "model.n_layer": "2", "seed": "0"}
# Appended to a finding, except for the keys that it varies.
SHORT_FINDING = ("train.steps=2", "data.val_fraction=0.002", "model.n_embd=16", "model.block_size=8")
ARMS = ("norm=layernorm,none", "placement=pre")  # of a study
OTHER_TEXT = ("data=text", "data.path=my.txt")


def commands() -> dict[str, str]:
    """Return each command without its comment, and the first page that has it."""
    first_page: dict[str, str] = {}
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    first_page.setdefault(shlex.join(words), page)
    return first_page


COMMANDS = commands()


def test_there_are_commands_to_run():
    assert len(COMMANDS) > 80
    assert "python train.py norm=layernorm placement=pre" in COMMANDS
    programs_own = [c for c in COMMANDS if c.startswith("python") and reason_of(c) == ELSEWHERE["make"]]
    assert programs_own == []
    unused = {part for part in ELSEWHERE if not any(is_of(command, part) for command in COMMANDS)}
    assert unused == set()


def is_of(command: str, part: str) -> bool:
    """Return whether a command begins with these words, or a program of ours is run with them."""
    inside = command.startswith(("python", "torchrun")) and not part.startswith(("make", "pip", "export"))
    return f"{command} ".startswith(f"{part} ") or (inside and part in command)


def reason_of(command: str) -> str | None:
    """Return why a command is not run here."""
    return next((why for part, why in ELSEWHERE.items() if is_of(command, part)), None)


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    """A folder with what the pages suppose: a text, runs, GPT-2's weights, exports. Processes that test side
    by side share it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return furnished(tmp_path_factory.mktemp("home"))
    home = tmp_path_factory.getbasetemp().parent / "home"
    with FileLock(f"{home}.lock"):
        if not home.exists():
            home.with_name("home.new").mkdir()
            furnished(home.with_name("home.new")).rename(home)
    return home


def furnished(home: Path) -> Path:
    (home / "my.txt").write_text(LETTERS * 4, encoding="utf-8")
    (home / "beginning.txt").write_text("Now is", encoding="utf-8")
    (home / "results").symlink_to(ROOT / "results")
    several = ["norm=layernorm,none", "placement=pre,post", "model.n_layer=1,2", "model.block_size=64"]
    succeeded(home, "train.py", "-m", *several, *appended("train.py", several, sizes=True))
    arms = ["study=norms", *ARMS, "seeds=3", *OTHER_TEXT, *TINY, "runs_dir=studies/runs"]
    succeeded(home, "ablate.py", *arms)
    for form, out in (("hf", "exported"), ("safetensors", "weights")):
        succeeded(home, "scripts/export.py", named("run=runs/NAME", home), f"format={form}", f"out={out}")
    snapshot = home / "hub/hub/models--openai-community--gpt2/snapshots" / HUB["gpt2"]
    gpt2_models.theirs(vocab_size=50257, n_embd=4, n_positions=64).save_pretrained(snapshot)
    (home / "web").mkdir()
    rows = [json.dumps({"text": f"{number} {LETTERS[:300]}"}) for number in range(60)]
    (home / "web/1.jsonl.zst").write_bytes(
        pyarrow.compress("\n".join(rows).encode(), codec="zstd", asbytes=True)
    )
    prepared = ("web/1.jsonl.zst", "--out", "prepared/web", "--tokenizer", "gpt2", "--val-fraction", "0.5")
    succeeded(home, "scripts/prepare_corpus.py", *prepared)
    return home


@pytest.fixture
def folder(home, tmp_path) -> Path:
    """A copy of ``home`` for one command."""
    return shutil.copytree(home, tmp_path / "folder", symlinks=True)


def succeeded(folder: Path, program: str, *arguments: str) -> str:
    return programs.succeed(program, *arguments, cwd=folder, HF_HOME=str(folder / "hub")).stdout


def appended(program: str, given: list[str], sizes: bool) -> list[str]:
    """Return the settings that make a command short: TINY without ``given``, and sizes if wanted."""
    keys = {key_of(word) for word in given}
    tiny = [setting for setting in (*TINY, "stats.every=2") if sizes or not setting.startswith("model.")]
    return [setting for setting in tiny if program == "train.py" and key_of(setting) not in keys]


def shortened(program: str, words: list[str], folder: Path) -> list[str]:
    """Return the arguments of a command with names of files that exist, and small sizes."""
    words = [named(word, folder) for word in words if word != "…"]
    if {"results/reference", "results/atlas"} & {*words} and "runs" in words:
        return [*words, "--mixed"]  # too short to be compared with results/
    if program == "findings/__main__.py" and words and not words[0].startswith("-"):
        varied = load_findings()[words[0]].varied()
        return [*words, *(setting for setting in SHORT_FINDING if key_of(setting) not in varied)]
    if program == "scripts/prepare_corpus.py":
        return [*words, "--val-fraction", "0.5"]  # the text has less than 200 blocks
    if program == "ablate.py" and "--help" not in words:
        more = [
            "name=short",
            "seeds=2",
            "trials=4",
            *OTHER_TEXT,
            *([] if "cs336" in words[0] else ARMS),
            *TINY,
        ]
        own = {key_of(word) for word in more if key_of(word) != "train.steps"}
        return [*(word for word in words if key_of(word) not in {*own, "model", "train.steps"}), *more]
    if program not in ("train.py", "scripts/initial_statistics.py") or "--help" in words:
        return words
    words = [f"{key}={SHORT[key]}" if (key := key_of(word)) in SHORT else word for word in words]
    keys = {key_of(word): word.partition("=")[2] for word in words}
    weights, preset, more = "init_from" in keys, "experiment" in keys, []
    if "data" not in keys:
        more = [*OTHER_TEXT, *["seed=0", "train.grad_accum=1"] * preset]
        more += ["data.tokenizer=gpt2"] * (preset and weights)
    if weights:
        more += ["model.block_size=8"]
    words = [word for word in words if key_of(word) not in {key_of(other) for other in more}] + more
    return words + appended("train.py", words, sizes=not weights)


def named(word: str, folder: Path) -> str:
    """Return a word of a command with the file or run that it stands for."""
    runs = {run.name.rpartition("-s0-")[0]: run for run in sorted(folder.glob("runs/*-s0-*"))}
    [checkpoint, *_] = sorted(runs["layernorm-pre"].glob("checkpoints/*"))
    for name, run in (("NAME", "layernorm-pre"), ("A", "layernorm-pre"), ("B", "none-pre")):
        word = re.sub(rf"runs/{name}$", f"runs/{runs[run].name}", word)
    files = {"checkpoint": str(checkpoint), "prompt_file": "beginning.txt"}
    if word.endswith("=FILE"):
        return f"{key_of(word)}={files[key_of(word)]}"
    for text in ("tinyshakespeare.txt", "TinyStoriesV2-GPT4-train.txt"):
        word = word.replace(text, "my.txt")
    return word.replace("train.steps=400", "train.steps=6")


# One after the other, in an empty folder. The test below has the others, and takes minutes.
FIRST_COMMANDS = (
    "python train.py norm=layernorm placement=pre",
    "python train.py -m norm=layernorm,none seed=0,1,2",
    "python compare.py results/atlas",
    "python sample.py prompt=ROMEO:",
)


def cases() -> list[Any]:
    params = []
    for command, page in COMMANDS.items():
        if command in FIRST_COMMANDS:
            continue
        reason = reason_of(command)
        marks = [pytest.mark.skip(reason=reason)] if reason else []
        if not reason and any(part in command for part in LONG):
            marks = [pytest.mark.long]
        params.append(pytest.param(command, marks=marks, id=f"{page}: {command[:100]}"))
    return params


@pytest.mark.long
def test_the_first_commands_of_the_readme_do_what_the_text_says(tmp_path):
    (tmp_path / "results").symlink_to(ROOT / "results")
    for command in FIRST_COMMANDS:
        assert COMMANDS[command] == "README.md"
        _, program, *words = shlex.split(command)
        if program == "train.py":
            words += [*appended(program, words, sizes=True), "data.val_fraction=0.002"]
        before = {run.name for run in tmp_path.glob("runs/*-s*")}
        output = succeeded(tmp_path, program, *words)
        CHECKS[program](tmp_path, words, output, {run.name for run in tmp_path.glob("runs/*-s*")} - before)


@pytest.mark.slow
@pytest.mark.parametrize("command", cases())
def test_the_command_does_what_the_text_says(command, folder):
    first, *words = shlex.split(command)
    if first == "torchrun":
        launched(folder, words)
        return
    assert first == "python"
    if words[0] == "-m":
        module, words = words[1].replace(".", "/"), words[2:]
        program = f"{module}/__main__.py" if (ROOT / module).is_dir() else f"{module}.py"
    else:
        program, *words = words
    before = {file.name for file in folder.glob("runs/*")}
    short = shortened(program, words, folder)
    out = {word.removeprefix("out=") for word in words if word.startswith("out=")}
    for name in {"exported", "weights", "prepared/web"} & ({*words} if "--out" in words else out):
        shutil.rmtree(folder / name)  # home has it already
    output = succeeded(folder, program, *expanded(short, folder))
    CHECKS.get(program, printed)(
        folder, short, output, {file.name for file in folder.glob("runs/*-*")} - before
    )
    if "--out" in words:
        assert (folder / words[words.index("--out") + 1]).exists()


def expanded(words: list[str], folder: Path) -> list[str]:
    """Expand the names of .zst files as a shell does."""
    matches = {word: sorted(folder.glob(word)) for word in words if word.endswith(".zst")}
    return [name for word in words for name in (map(str, matches[word]) if word in matches else [word])]


def launched(folder: Path, words: list[str]) -> None:
    """Run train.py by torchrun."""
    options, arguments = words[: words.index("train.py")], words[words.index("train.py") + 1 :]
    short = shortened("train.py", arguments, folder)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(ROOT / "train.py"), *short],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "finished, val/full_loss" in done.stdout
    assert " ranks of " in done.stdout


def printed(folder: Path, words: list[str], output: str, new: set[str]) -> None:
    assert output.strip()


def trained(folder: Path, words: list[str], output: str, new: set[str]) -> None:
    if "--help" in words:
        assert "norm: batchnorm" in output
        return
    expected = 1
    for word in words if "-m" in words else ():
        if key_of(word) in ("norm", "placement", "seed", "optim.learning_rate", "train.batch_size"):
            expected *= len(word.split(","))
    statuses = [json.loads((folder / "runs" / name / "status.json").read_text()) for name in new]
    known = expected if "-m" in words else output.count("nothing left to do")  # some may have run before
    assert len(statuses) + known >= expected, output
    assert all(status["state"] == "finished" for status in statuses)
    if "-m" not in words and statuses:
        assert "finished, val/full_loss" in output
        assert "causality: in " in output or "LEAKS" in output


def sampled(folder: Path, words: list[str], output: str, new: set[str]) -> None:
    given = dict(word.split("=", 1) for word in words)
    samples = int(given.get("num_samples", 1))
    assert output.count("---------------\n") == samples - 1
    assert output.startswith(given.get("prompt", ""))
    assert len(output) > int(given.get("max_new_tokens", 500)) * samples / 2


def ablated(folder: Path, words: list[str], output: str, new: set[str]) -> None:
    if "--dry-run" in words:
        assert output.count("train.py") == 4  # 2 arms, 2 seeds
    elif "--help" not in words:
        assert "without a verdict" in output  # of two seeds
        assert (folder / "studies/short/chosen.json").exists()


def compared(folder: Path, words: list[str], output: str, new: set[str]) -> None:
    assert "layernorm" in output
    if "--json" in words:
        SCHEMA.validate_json(output)
    else:
        is_live = words[0].startswith("studies/")
        default = words[0] if is_live else words[0].replace("results", "report")
        out = words[words.index("--out") + 1] if "--out" in words else default.replace("runs", "report")
        assert "| layernorm pre" in (folder / out / "table.md").read_text()


def exported(folder: Path, words: list[str], output: str, new: set[str]) -> None:
    [out] = [word.removeprefix("out=") for word in words if word.startswith("out=")]
    assert (folder / out / "model.safetensors").is_file()
    assert (folder / out / "README.md").is_file()


CHECKS = {
    "train.py": trained,
    "ablate.py": ablated,
    "sample.py": sampled,
    "compare.py": compared,
    "scripts/export.py": exported,
}


@pytest.mark.slow
def test_the_loop_of_the_page_for_programs_decides(folder):
    page = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
    [loop] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    tiny = ", ".join(map(repr, ("study=norms", "name=tried", "seeds=2", *OTHER_TEXT, *TINY)))
    for old, new in {
        '"study=fair", "name=tried"': tiny,
        '"rmsnorm", "dyt", "scalenorm"': '"rmsnorm"',
        '"ablate.py"': repr(str(ROOT / "ablate.py")),
        '"compare.py"': repr(str(ROOT / "compare.py")),
    }.items():
        assert loop.count(old) == 1
        loop = loop.replace(old, new)
    done = subprocess.run(
        [sys.executable, "-c", loop], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any("1 is without a verdict" in line for line in lines), done.stdout
    assert lines[-1] == "best: layernorm"


# What is not in a block of commands -----------------------------------------------------------------------


@pytest.mark.slow
def test_the_python_of_the_page_on_hugging_face_prints_the_text_of_sample(folder, monkeypatch, capsys):
    text = (ROOT / "docs/ecosystem.md").read_text(encoding="utf-8")
    [lines] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    lines = lines.replace("max_new_tokens=40", "max_new_tokens=2").replace("ROMEO:", "Now is")
    monkeypatch.chdir(folder)
    exec(lines, {})
    transformers_text = capsys.readouterr().out
    our_text = succeeded(
        folder, "sample.py", "init_from=exported", "prompt=Now is", "max_new_tokens=2", "temperature=0"
    )
    assert transformers_text == our_text


# nanoGPT's train.py and sample.py at 3adf61e1: every variable that its command line sets.
FLAGS = """
    out_dir eval_interval log_interval eval_iters eval_only always_save_checkpoint init_from wandb_log
    wandb_project wandb_run_name dataset gradient_accumulation_steps batch_size block_size n_layer n_head
    n_embd dropout bias learning_rate max_iters weight_decay beta1 beta2 grad_clip decay_lr warmup_iters
    lr_decay_iters min_lr backend device dtype compile start num_samples max_new_tokens temperature top_k
    seed
""".split()


def test_every_flag_of_nanogpts_is_in_the_table_beside_a_key_that_exists():
    text = (ROOT / "docs/ecosystem.md").read_text(encoding="utf-8")
    table = text.partition("| nanoGPT | here |")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    keys = {key for _, right in rows for key in re.findall(r"`?([a-z_.]+)=", right)}
    groups = {group.name for group in CONF.iterdir() if group.is_dir()}
    assert len(keys) > 25
    assert keys <= {*known_keys(), *keys_of(SampleConfig), *groups}
    flags = " ".join(left for left, _ in rows)
    assert [flag for flag in FLAGS if f"--{flag}" not in flags] == []


def test_the_page_and_the_programs_agree_on_nanogpts_pickles():
    text = (ROOT / "docs/ecosystem.md").read_text(encoding="utf-8")
    assert TO_JSON in text
    assert conversion_command("ckpt.pt", FROM_NANOGPT) in text


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not link.startswith("http"):
            assert ((ROOT / page).parent / link).exists(), link


def test_every_page_is_in_the_readmes_list():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page for page in PAGES if page.startswith("docs/") and page not in text] == []


@pytest.mark.parametrize("group", ["experiment", "study"])
def test_the_presets_that_pages_name_exist(group):
    named = {
        name
        for page in PAGES
        for name in re.findall(rf"{group}=(\w+)", (ROOT / page).read_text(encoding="utf-8"))
    }
    assert named <= {file.stem for file in (CONF / group).glob("*.yaml")}
