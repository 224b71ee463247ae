"""S1, S2: untrusted files are refused in one line, in seconds, within 1 GB, and run no code."""

import time
from pathlib import Path

import pytest

from comparison.drawing.page import BUNDLE
from tests.conftest import LETTERS, TRAIN, daily, some_slow
from tests.helpers import programs
from tests.helpers.contract import check_refused, contents
from tests.helpers.malicious import ARTEFACTS, SAMPLE_GPT2, gpt2, gpt2_bpe

AUDITED = "tests/faults/controls/audited.py"
EVIL = """import os, pickle, socket, torch
os.system("touch owned")


class Payload:
    def __reduce__(self):
        return os.getcwd, ()


class Norm(torch.nn.Identity):
    def __init__(self, channels):
        super().__init__()
        pickle.loads(pickle.dumps(Payload()))
        exec("x = 1")
        open(os.environ["ELSEWHERE"], "w").close()
        with socket.socket() as client:
            client.connect_ex(("127.0.0.1", 9))
"""


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    assert programs.run("train.py", *TRAIN, cwd=folder).returncode == 0
    return sorted(folder.glob("runs/*/checkpoints/*"))[-1]


@pytest.mark.parametrize("name", daily(ARTEFACTS, lambda number: number % 30 == 0, some_slow))
def test_an_untrusted_file_is_refused_and_runs_nothing(good, tmp_path, name, record_property):
    arguments = ARTEFACTS[name](good, tmp_path)
    before = contents(tmp_path)
    began = time.monotonic()
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/evil.py").write_text(EVIL)
    environ = {"PYTHONPATH": str(tmp_path / "modules"), "SMALL": "1e-5", "TEST_MEMORY": str(2**30)}
    done = programs.run(
        AUDITED,
        *arguments,
        cwd=tmp_path,
        timeout=programs.PATIENCE,
        AUDIT=str(tmp_path / "audit.txt"),
        **environ,
    )
    record_property("S2 malicious artefacts: slowest refusal, seconds", round(time.monotonic() - began, 1))
    record_property("S2 malicious artefacts: most memory, GB", round(done.peak / 1e9, 2))
    check_refused(done, before=before)
    assert "out of memory" not in done.stderr  # refused before any allocation
    assert done.peak < 2**30
    assert not (tmp_path / "owned").exists()
    assert not (tmp_path / "audit.txt").exists(), (tmp_path / "audit.txt").read_text()


@pytest.mark.parametrize("make", [gpt2, gpt2_bpe])
def test_the_unchanged_folder_is_accepted(good, tmp_path, make):
    """The control: without the malicious change the folder is accepted, so the change is why it is refused
    above."""
    make(lambda unchanged: None)(good, tmp_path)
    programs.succeed(*SAMPLE_GPT2, cwd=tmp_path)


def audited(folder: Path, *arguments: str, **environ: str) -> tuple[str, list[str]]:
    """Return what a program printed, and the lines of its audit."""
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    common = TRAIN if arguments[0] == "train.py" else ()
    done = programs.succeed(
        AUDITED, *arguments, *common, cwd=folder, AUDIT=str(folder / "audit.txt"), **environ
    )
    audit = folder / "audit.txt"
    return done.stdout + done.stderr, audit.read_text(encoding="utf-8").splitlines() if audit.exists() else []


def test_the_hook_sees_what_runs(tmp_path, tmp_path_factory):
    """The control: a custom norm that does what it should not."""
    (tmp_path / "mine/norm").mkdir(parents=True)
    (tmp_path / "mine/norm/bad.yaml").write_text("_target_: evil.Norm\n")
    (tmp_path / "evil.py").write_text(EVIL)
    arguments = ("train.py", "--config-dir=mine", "norm=bad", "train.steps=0")
    elsewhere = str(tmp_path_factory.mktemp("elsewhere") / "file")
    _, lines = audited(tmp_path, *arguments, PYTHONPATH=str(tmp_path), ELSEWHERE=elsewhere)
    assert (tmp_path / "owned").exists()
    events = {line.split()[0] for line in lines}
    assert {"os.system", "pickle.find_class", "exec", "socket.connect", "open"} <= events


@pytest.mark.slow
def test_training_and_sampling_reach_no_network_and_write_nowhere_else(tmp_path):
    sampling = ("sample.py", "max_new_tokens=5", "device=cpu")
    for arguments in (("train.py", "stats.every=1"), sampling, ("compare.py",)):
        _, lines = audited(tmp_path, *arguments, HOME=str(tmp_path / "home"))
        others = [line for line in lines if not line.startswith("subprocess.Popen 'git'")]
        assert [line for line in others if repr(BUNDLE) not in line] == []  # a fixed text, without input
    assert not (tmp_path / "home").exists()


@pytest.mark.faults
def test_secrets_of_the_environment_are_written_nowhere(tmp_path, text_file):
    canary = "c0ffee" * 6 + "cafe"
    secrets = {"WANDB_API_KEY": canary, "MY_SECRET": canary, "AWS_SECRET_ACCESS_KEY": canary}
    for program, *arguments in (
        ("train.py", *TRAIN, "wandb.mode=offline"),
        ("train.py", *TRAIN, "train.steps=x"),
        ("sample.py", "max_new_tokens=5", "device=cpu"),
        ("compare.py",),
    ):
        done = programs.run(program, *arguments, cwd=tmp_path, **secrets)
        assert canary not in done.stdout + done.stderr
    files = contents(tmp_path)
    assert any("offline-run" in str(file) for file in files)
    assert [file for file, content in files.items() if canary.encode() in content] == []
