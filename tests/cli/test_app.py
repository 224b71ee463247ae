"""A prompt is passed on unchanged; a bad command is rejected quickly (all: tests/faults/test_matrix.py)."""

import importlib
import subprocess
import sys
import time

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cli import messages
from cli.app import CONF, as_typed, choices, quote
from cli.schema import RunConfig
from system.errors import ConfigError
from tests.conftest import NORMS, configured, daily
from tests.helpers import programs
from tests.helpers.contract import check_refused
from tests.helpers.runs import QUICK

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
@settings(max_examples=30)
def test_a_prompt_arrives_letter_by_letter(text):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert compose("sample", overrides=[quote(f"prompt={text}")]).prompt == text


def test_only_text_is_quoted():
    assert quote("train.steps=3") == "train.steps=3"
    assert quote("--help") == "--help"
    assert quote("data.path=a b") == 'data.path="a b"'
    assert quote("++data.path=null") == "++data.path=null"  # no path
    assert quote("prompt=null") == 'prompt="null"'


def test_a_path_may_begin_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")
    assert quote("data.cache=~/cache") == 'data.cache="/home/me/cache"'
    assert quote("prompt=~/x") == 'prompt="~/x"'


def test_debug_adds_the_traceback_to_an_error_outside_of_a_job_too(command, tmp_path):
    for options in ([], ["--debug"]):
        done = command("train.py", "norm=nope", *options)
        assert done.returncode == 1
        assert "error: norm: there is no 'nope'" in done.stderr
        assert ("Traceback" in done.stderr) == bool(options)


def test_help_lists_groups_and_keys_without_torch(tmp_path):
    started = time.monotonic()
    done = programs.from_scratch("train.py", "--help", cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert f"norm: {', '.join(NORMS)}" in done.stdout
    assert "learning_rate" in done.stdout
    assert " torch\n" not in done.stderr
    assert time.monotonic() - started < 60  # catches a hang; not a test of speed


@pytest.mark.parametrize(
    "argument",
    daily(["train.steps=x", "norm=foo", "+foo=1", "data.path=nope data=text hydra.sweep.subdir=mine"]),
)
def test_a_refusal_does_not_wait_for_torch(tmp_path, argument, record_property):
    began = time.monotonic()
    done = programs.from_scratch("train.py", *argument.split(), cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    record_property("E seconds until a wrong key or path is refused", round(time.monotonic() - began, 1))
    assert done.returncode == 1
    assert "\nerror: " in done.stderr
    assert " torch\n" not in done.stderr


@pytest.mark.parametrize("name", ["norm/layernorm", "placement/pre", "experiment/fair_ablation"])
def test_a_yaml_with_the_name_of_one_of_the_project_is_refused_as_it_would_not_be_used(
    command, text_file, tmp_path, name
):
    file = tmp_path / "mine" / f"{name}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("_target_: torch.nn.Identity\n")
    done = command("train.py", "--config-dir", "mine", *QUICK)
    check_refused(done, f"--config-dir: {file}: ", "would be used")


@pytest.mark.parametrize("override", ["seed=1,", "norm=layernorm,", "optim.learning_rate=1e-3,"])
def test_a_trailing_comma_is_named(command, tmp_path, override):
    check_refused(
        command("train.py", override.strip()), f"'{override.strip()}': ends with a comma; remove it"
    )


def test_more_combinations_than_anyone_wants_are_refused_at_once():
    with pytest.raises(ConfigError, match="seed: these are more than 100,000 combinations"):
        choices("config", RunConfig, ["-m", "seed=range(0,1000000000)", "norm=none,layernorm"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "_target_: model.norms.LayerNorm\na: &a [x, x]\nb: [" + "*a," * 21 + "]",
            "has more than 20 aliases; write the values out",
        ),
        (
            "defaults: [mine]\n_target_: model.norms.LayerNorm",
            "a value or a config contains itself or is nested too deeply",
        ),
        (
            "_target_: model.norms.LayerNorm\na: &a [*a]",
            "a value or a config contains itself or is nested too deeply",
        ),
    ],
)
def test_a_config_that_would_not_end_is_refused(command, tmp_path, text, line):
    (tmp_path / "dir" / "norm").mkdir(parents=True)
    (tmp_path / "dir" / "norm" / "mine.yaml").write_text(text)
    check_refused(command("train.py", "--config-dir", "dir", "norm=mine"), line)


def test_a_current_folder_that_was_removed_is_said(tmp_path):
    script = f"rmdir {tmp_path / 'gone'}; exec {sys.executable} {programs.ROOT / 'train.py'}"
    (tmp_path / "gone").mkdir()
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path / "gone", capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: the current folder: it was removed; change to another one\n"


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("placement=pe", ["placement=peri"]),
        ("experiment=beside", ["experiment=beside_atlas"]),
        ("train.ste", ["train.steps="]),
    ],
)
def test_the_shell_completes_choices_and_keys(tmp_path, typed, completed):
    line = f"python train.py {typed}"
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    done = programs.run("train.py", "-sc", "query=bash", cwd=tmp_path, **asked)
    assert done.stdout.split() == completed


def test_a_recursion_without_end_in_the_users_code_is_no_wrong_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "endless.py").write_text("def again(x):\n    return again(x)\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        importlib.import_module("endless").again(1)
    except RecursionError as error:
        line = messages.report(error, [])
    assert line.startswith(f"{tmp_path}/endless.py:2, in again: RecursionError: ")
    assert "command line" not in capsys.readouterr().err


def test_globs_find_the_users_choices_and_one_that_finds_none_is_refused(tmp_path):
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "l1.yaml").write_text("_target_: model.norms.LayerNorm\n")
    own = ["--config-dir", str(tmp_path), "--multirun"]
    assert [*choices("config", RunConfig, [*own, "norm=glob(l*)"])] == ["norm=l1", "norm=layernorm"]
    with pytest.raises(ConfigError, match=r"norm=glob\(zz\*\): names no value; give another pattern"):
        choices("config", RunConfig, [*own, "norm=glob(zz*)"])


def test_a_mistake_has_a_line_that_helps(command, tmp_path):
    check_refused(command("train.py", "optim.lr=1"), "did you mean optim.learning_rate?")
    check_refused(command("train.py", "norm=layernrom"), "did you mean layernorm? All: ")
    (tmp_path / "mine" / "norm").mkdir(parents=True)
    (tmp_path / "mine" / "norm" / "listed.yaml").write_text("[1, 2]\n")
    done = command("train.py", "--config-dir", "mine", "model.qk_norm=listed", *QUICK)
    check_refused(done, "model.qk_norm: ", "is no mapping of options; correct the file")


@given(WORDS)
def test_a_run_records_its_arguments_as_they_were_typed(text):
    assert as_typed(quote(f"prompt={text}")) == f"prompt={text}"
    assert as_typed(quote("seed=1")) == "seed=1"


def test_only_choices_of_the_projects_groups_must_have_other_names(tmp_path):
    (tmp_path / "norm").mkdir()
    for file in ("config.yaml", "norm/l1.yaml"):
        (tmp_path / file).write_text("_target_: model.norms.LayerNorm\n")
    assert configured("--config-dir", str(tmp_path), "norm=l1").norm.name == "l1"
