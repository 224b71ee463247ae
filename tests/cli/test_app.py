"""Text arrives letter by letter, and whatever is wrong is said in one line, with a status that is not 0."""

import time

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cli.app import CONF, quote
from tests.conftest import NORMS, daily
from tests.helpers import programs

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.mark.slow
@given(WORDS)
@example("To be, or not to be")
@example("'Tis")
@example("What's in a name?")
@example("${x}")
@example("\\${x}\\\\${oc.env:HOME}")
@example("10")
@example("trailing \\")
@example('"quoted"')
@example("two\nlines\t")
@example("")
@settings(deadline=None, max_examples=30)
def test_a_prompt_arrives_letter_by_letter(text):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert compose("sample", overrides=[quote(f"prompt={text}")]).prompt == text


def test_only_text_is_quoted():
    assert quote("train.steps=3") == "train.steps=3"
    assert quote("--help") == "--help"
    assert quote("data.path=a b") == 'data.path="a b"'


BAD = [
    ("norm=nope", f"norm: there is no 'nope'; choose one of {', '.join(NORMS)}"),
    ("model.qk_norm.eps=1", "model.qk_norm.eps: unknown key; did you mean model.qk_norm?"),
    ("norm.epss=3", "norm.epss: unknown key; did you mean norm.eps?"),
    ("finding=warm_up", "finding: unknown key; a finding is measured by python -m findings NAME"),
    ("train.steps=abc", "train.steps: invalid value 'abc'; it should be a valid integer"),
    ("train.steps=[1", "'train.steps=[1': cannot be read"),
    ("optim.learning_rate=${nope}", "optim.learning_rate: "),
    ("seed=1,2", "seed=1,2: several values; add -m"),
    ("data=text", "data.path: a value is needed"),
    ("stats=most", "stats: there is no 'most'; choose one of all, default"),
    ("data.cache=/dev/null/x", "data.cache: /dev/null/x: "),
    ("norm=null", "group"),
    ("--config-dir=/nope", "/nope"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("argument", "said"), daily(BAD, lambda number: number % 3 == 0))
def test_a_wrong_command_is_one_line_and_leaves_nothing(command, tmp_path, argument, said):
    done = command("train.py", argument)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert not list((tmp_path).glob("runs*"))


def test_text_that_cannot_be_used_is_one_line(command, tmp_path):
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    for path, said in (
        ("a\x1b[31m\nb", r"data.path: a\x1b[31m\nb: no such file or folder"),
        ("latin.txt", "byte 0xe9 at offset 3 is not UTF-8"),
        ("short.txt", "the training split has 8 tokens, but model.block_size=64 needs at least 65"),
    ):
        done = command("train.py", "data=text", f"data.path={path}")
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done.stderr
        assert said in done.stderr


def test_help_lists_groups_and_keys_without_torch(tmp_path):
    started = time.monotonic()
    done = programs.from_scratch("train.py", "--help", cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert f"norm: {', '.join(NORMS)}" in done.stdout
    assert "learning_rate" in done.stdout
    assert " torch\n" not in done.stderr
    assert time.monotonic() - started < 60  # a hang, not a speed


@pytest.mark.parametrize(
    "argument", daily(["train.steps=x", "norm=foo", "+foo=1", "data.path=nope data=text"])
)
def test_a_refusal_does_not_wait_for_torch(tmp_path, argument, record_property):
    began = time.monotonic()
    done = programs.from_scratch("train.py", *argument.split(), cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    record_property("E seconds until a wrong key or path is refused", round(time.monotonic() - began, 1))
    assert done.returncode == 1
    assert "\nerror: " in done.stderr
    assert " torch\n" not in done.stderr


def test_a_bug_shows_its_place_and_the_status_is_not_0(command, tmp_path):
    (tmp_path / "broken.py").write_text(
        "from torch import nn\n\n\nclass Broken(nn.Module):\n"
        "    def __init__(self, n: int) -> None:\n        super().__init__()\n\n"
        "    def forward(self, x):\n        return x + undefined\n"
    )
    done = command("train.py", "norm=none", "norm._target_=broken.Broken", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "broken.py" in done.stderr
    assert "NameError" in done.stderr
