"""Every command of the documents runs, with smaller sizes, in a folder that has what its page supposes.
ELSEWHERE has the commands that cannot be run here, and why."""

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
from interop.pretrained import HUB
from tests.conftest import LETTERS, ROOT, TINY
from tests.helpers import gpt2_models, programs

PAGES = [
    str(file.relative_to(ROOT))
    for folder in (ROOT, ROOT / "docs", ROOT / "results")
    for file in sorted(folder.glob("*.md"))
]
ELSEWHERE = {  # beginnings or parts of commands
    "pip install": "needs a network; the environment of these tests was made by it",
    "make": "is what runs these tests",
    "uv": "needs uv",
    "torchrun --nnodes=2": "needs two machines",
    "launcher=slurm": "needs a Slurm: tests/study/test_slurm.py",
    "-m bench": "takes hours, and needs a checkout of nanoGPT: tests/bench/ runs it small",
    "--config-dir": "needs the files of its page: tests/test_own_norm.py makes them",
    "trust=mynorms": "needs the files of its page: tests/test_own_norm.py makes them",
    "export PYTHONPATH=mine": "is the shell's own",
    "pickle.load": "needs a file of nanoGPT's: tests/data/test_external.py makes one",
    "studies/l1": "needs the study of its page; its exit status is a verdict: tests/study/test_table.py",
}
LONG = ("-m findings ", "torchrun", "-m experiment=cs336", "study=cs336_", "study=fair", "extend=true")
SHORT = {"train.steps": "6", "model.n_layer": "2", "seed": "0"}  # in place of values that take long
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


def reason_of(command: str) -> str | None:
    """Return why a command is not run here."""
    ours = command.startswith(("python ", "torchrun "))
    for part, why in ELSEWHERE.items():
        if f"{command} ".startswith(f"{part} ") or (ours and part in command and part not in ("make", "uv")):
            return why
    return None


def cases() -> list[Any]:
    params = []
    for command, page in COMMANDS.items():
        marks = [pytest.mark.long] if any(part in command for part in LONG) else []
        if reason := reason_of(command):
            marks = [pytest.mark.skip(reason=reason)]
        params.append(pytest.param(command, marks=marks, id=f"{page}: {command[:100]}"))
    return params


def test_there_are_commands_to_run():
    assert len([command for command in COMMANDS if not reason_of(command)]) > 50
    assert {part for part, why in ELSEWHERE.items() if why not in map(reason_of, COMMANDS)} == set()


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    """A folder with what the pages suppose: a text, runs, a study, GPT-2's weights, an export. Processes that
    test side by side share it."""
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
    succeeded(home, "scripts/export.py", named("run=runs/NAME", home), "out=exported")
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
    if program == "scripts/prepare_corpus.py":
        words = [word.replace("*", "1") for word in words]
        return [*words, "--val-fraction", "0.5"]  # the text has less than 200 documents
    if program == "ablate.py" and "--help" not in words:
        arms = [] if "cs336" in words[0] else ARMS
        more = ["name=short", "seeds=2", "trials=4", *OTHER_TEXT, *arms, *TINY]
        own = {key_of(word) for word in more if key_of(word) != "train.steps"}
        return [*(word for word in words if key_of(word) not in {*own, "model", "train.steps"}), *more]
    if program not in ("train.py", "scripts/initial_statistics.py") or "--help" in words:
        return words
    words = [f"{key}={SHORT[key]}" if (key := key_of(word)) in SHORT else word for word in words]
    keys = {key_of(word) for word in words}
    weights, preset, more = "init_from" in keys, "experiment" in keys, list[str]()
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
    short = shortened(program, words, folder)
    out = [words[i + 1] for i, word in enumerate(words) if word == "--out"]
    out += [word.removeprefix("out=") for word in words if word.startswith("out=")]
    for path in out:
        shutil.rmtree(folder / path, ignore_errors=True)  # home may have it already
    output = succeeded(folder, program, *short)
    assert output.strip()
    assert all((folder / path).exists() for path in out)
    if program == "train.py" and not {"-m", "--help"} & {*words}:
        assert "finished, val/full_loss" in output or "nothing left to do" in output


def launched(folder: Path, words: list[str]) -> None:
    """Run train.py by torchrun."""
    options, arguments = words[: words.index("train.py")], words[words.index("train.py") + 1 :]
    program = [sys.executable, "-m", "torch.distributed.run", *options, str(ROOT / "train.py")]
    done = subprocess.run(
        [*program, *shortened("train.py", arguments, folder)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "finished, val/full_loss" in done.stdout
    assert " ranks of " in done.stdout


@pytest.mark.slow
def test_the_loop_for_programs_decides(folder):
    [loop] = re.findall(r"```python\n(.*?)```", (ROOT / "AGENTS.md").read_text(encoding="utf-8"), re.DOTALL)
    tiny = ", ".join(map(repr, ("study=norms", "name=tried", "seeds=2", *OTHER_TEXT, *TINY)))
    for old, new in {
        '"study=fair", "name=tried"': tiny,
        '"rmsnorm", "dyt", "scalenorm"': '"rmsnorm"',
        '"ablate.py"': repr(str(ROOT / "ablate.py")),
        '"compare.py"': repr(str(ROOT / "compare.py")),
    }.items():
        assert loop.count(old) == 1
        loop = loop.replace(old, new)
    program = [sys.executable, "-c", loop]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "best: layernorm"  # of two seeds there is no verdict


@pytest.mark.slow
def test_the_python_of_the_page_on_hugging_face_prints_the_text_of_sample(folder, monkeypatch, capsys):
    text = (ROOT / "docs/ecosystem.md").read_text(encoding="utf-8")
    lines = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    lines = lines.replace("max_new_tokens=40", "max_new_tokens=2").replace("ROMEO:", "Now is")
    monkeypatch.chdir(folder)
    exec(lines, {})
    transformers_text = capsys.readouterr().out
    words = ("init_from=exported", "prompt=Now is", "max_new_tokens=2", "temperature=0")
    assert transformers_text == succeeded(folder, "sample.py", *words)


def test_every_key_beside_a_flag_of_nanogpts_exists():
    text = (ROOT / "docs/ecosystem.md").read_text(encoding="utf-8")
    table = text.partition("| nanoGPT | here |")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    keys = {key for _, right in rows for key in re.findall(r"`?([a-z_.]+)=", right)}
    groups = {group.name for group in CONF.iterdir() if group.is_dir()}
    assert keys
    assert keys <= {*known_keys(), *keys_of(SampleConfig), *groups}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for path, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
        if path.startswith("http"):
            continue
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), path
        if heading:
            assert heading in headings(target), f"{path}#{heading}"


def headings(page: Path) -> list[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines]


def test_every_page_is_in_the_readmes_list():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page for page in PAGES if page.startswith("docs/") and page not in text] == []


@pytest.mark.parametrize("group", ["experiment", "study"])
def test_the_presets_that_pages_name_exist(group):
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    named = {*re.findall(rf"{group}=(\w+\w)(?!…)\b", text)}
    assert named <= {file.stem for file in (CONF / group).glob("*.yaml")} | {"cs336_"}
