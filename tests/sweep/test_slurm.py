"""Sweeps on Slurm: a real one, of this machine alone, that the tests start."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from rundir.folder import read_status
from tests.conftest import LETTERS, TINY
from tests.helpers.programs import ROOT, Program, from_scratch, run
from tests.helpers.rank_program import free_port

PROGRAMS = ("slurmctld", "slurmd", "munged")
CLUSTER = ("hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.array_parallelism=2")
CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory={memory} State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One node, in some seconds; its commands find it by the environment. A job that is given back to it
    begins again after cred_expire seconds."""
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        pytest.skip(f"not installed: {', '.join(missing)} (slurm-wlm, munge)")
    if os.getuid() != 0:
        pytest.skip("only root can start a Slurm")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    host = subprocess.check_output(["hostname", "-s"], text=True).strip()
    memory = int(psutil.virtual_memory().total * 0.8 / 2**20)
    ports = {"port": free_port(), "node_port": free_port()}
    (folder / "slurm.conf").write_text(
        CONF.format(folder=folder, host=host, cores=os.cpu_count(), memory=memory, **ports)
    )
    files = ("key-file=key", "socket=munge", "pid-file=munged.pid", "log-file=munged.log", "seed-file=seed")
    options = [f"--{option.replace('=', f'={folder}/')}" for option in files]
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        for command in (["munged", "-F", "--force", *options], ["slurmctld", "-D"], ["slurmd", "-D"]):
            stack.enter_context(in_background(command))
        wait_for(lambda: "idle" in said("sinfo", "-h", "-o", "%T"))
        yield


@pytest.fixture
def slurm(node: None) -> Iterator[None]:
    """It, without a job."""
    yield
    said("scancel", "--me")
    wait_for(lambda: not queue())


@contextmanager
def in_background(command: list[str]) -> Iterator[None]:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as process:
        try:
            yield
        finally:
            process.terminate()


@pytest.fixture
def sweep(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "text.txt").write_text(LETTERS)
    return ("-m", *TINY, "data=text", "data.path=text.txt", "train.checkpoint_every=20", "train.log_every=10")


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def queue() -> dict[str, str]:
    """The state of each job that Slurm has."""
    lines = said("squeue", "--noheader", "--array", "--format=%i %T").splitlines()
    return dict(line.split() for line in lines)


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """What it gives, as soon as that is something."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def saved(folder: Path, run: str) -> list[Path]:
    return [*folder.glob(f"{run}-*/checkpoints/step-*")]


def job_of(folder: Path, number: int) -> str:
    """What Slurm calls the job of a sweep that has that number."""
    [record] = folder.glob(f".sweep/*/{number:03}/slurm.json")
    return json.loads(record.read_text())["job"]


@pytest.mark.faults
def test_a_sweep_on_slurm_is_that_of_this_machine_also_where_runs_are_taken_back(slurm, sweep, tmp_path):
    sweep = (*sweep, "norm=layernorm,batchnorm", "placement=pre,post", "seed=0,1", "train.steps=600")
    here = run("train.py", *sweep, "runs_dir=here", cwd=tmp_path)
    assert here.returncode == 0, here.stderr
    folder = tmp_path / "there"
    there = Program("train.py", *sweep, *CLUSTER, "runs_dir=there", cwd=tmp_path)
    for number, warning in enumerate([signal.SIGUSR2, signal.SIGTERM]):  # of a job's time, of pre-emption
        wait_for(lambda number=number: saved(folder, f"layernorm-pre-s{number}"))
        worker(job_of(folder, number)).send_signal(warning)
    output, errors = there.communicate(timeout=180)
    assert (there.returncode, errors) == (0, "")
    assert "8/8" in output
    assert "failed" not in output
    logs = [file.read_text() for file in folder.glob(".sweep/*/*/log.txt")]
    assert len(logs) == 8
    assert sum("resuming from step" in log for log in logs) == 2
    assert table(folder) == table(tmp_path / "here")


@pytest.mark.faults
def test_a_job_that_raises_and_one_that_is_killed_are_named_and_the_others_finish(slurm, sweep, tmp_path):
    (tmp_path / "raises.py").write_text(
        "from torch import nn\n\n\nclass Raises(nn.Module):\n    def __init__(self, n: int) -> None:\n"
        "        raise KeyError('boo')\n"
    )
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "raises.yaml").write_text("_target_: raises.Raises\n")
    jobs = (*sweep, "--config-dir", str(tmp_path), "norm=layernorm,raises,none", "train.steps=600")
    process = Program("train.py", *jobs, *CLUSTER, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    wait_for(lambda: saved(tmp_path / "runs", "layernorm"))
    killed = job_of(tmp_path / "runs", 0)
    worker(killed).kill()
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert output.count(" finished ") == 1
    lines = sorted(errors.splitlines())
    assert len(lines) == 2
    assert f"its Slurm job {killed} is over: FAILED; see " in lines[0]
    assert "Killed" in Path(lines[0].split("; see ")[1].split(";")[0]).read_text()
    assert "KeyError: 'boo'; its output is in " in lines[1]


def worker(job: str) -> psutil.Process:
    """The process that does a job of an array."""
    array, number = job.split("_")
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has just ended
            theirs = process.environ() if process.name().startswith("python") else {}
            if (theirs.get("SLURM_ARRAY_JOB_ID"), theirs.get("SLURM_ARRAY_TASK_ID")) == (array, number):
                return process
    raise AssertionError(f"no process does {job}")


@pytest.mark.faults
def test_after_kill_9_the_same_command_waits_for_its_jobs_and_ctrl_c_ends_them(slurm, sweep, tmp_path):
    jobs = (*sweep, *CLUSTER, "seed=0,1,2", "train.steps=1000000")
    killed = Program("train.py", *jobs, cwd=tmp_path)
    wait_for(lambda: saved(tmp_path / "runs", "layernorm-pre-s0"))
    before = queue()
    assert sorted(before.values()) == ["PENDING", "RUNNING", "RUNNING"]
    killed.kill()
    killed.communicate()
    again = Program("train.py", *jobs, cwd=tmp_path)
    assert again.stdout
    assert any("3 of them are in Slurm's queue already" in line for line in iter(again.stdout.readline, ""))
    assert queue() == before
    again.send_signal(signal.SIGINT)
    _, errors = again.communicate()
    assert again.returncode == 128 + signal.SIGINT
    assert errors == "cancelling 3 jobs of Slurm\n"
    assert not queue()
    found = [read_status(file.parent) for file in tmp_path.glob("runs/*/status.json")]
    assert [status["state"] for status in found] == ["interrupted"] * 2
    assert all(status["saved"] == status["step"] > 0 for status in found)


def test_where_there_is_no_slurm_or_not_its_package_that_is_one_line(command, sweep, tmp_path):
    nowhere = command("train.py", *sweep, *CLUSTER, "seed=0,1", PATH=str(tmp_path))
    assert nowhere.returncode == 1
    assert nowhere.stderr.startswith("error: hydra/launcher: slurm: there is no sbatch here; start the sweep")
    assert len(nowhere.stderr.splitlines()) == 1
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n\nsys.modules['hydra_plugins.hydra_submitit_launcher'] = None\n"
    )
    without = from_scratch("train.py", *sweep, *CLUSTER, "seed=0,1", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert without.returncode == 1
    assert without.stderr.startswith("error: hydra/launcher: slurm needs extra packages; run pip install -r ")
    assert len(without.stderr.splitlines()) == 1


def table(runs: Path) -> list[dict[str, str]]:
    """compare.py's table and numbers of each run, to the last digit; but for what a machine's load does."""
    out = runs.with_name(f"report of {runs.name}")
    subprocess.run([sys.executable, ROOT / "compare.py", runs, "--out", out], capture_output=True, check=True)
    rows = [
        row
        for name in ("table.csv", "runs.csv")
        for row in csv.DictReader((out / name).read_text().splitlines())
    ]
    load = {"tokens/s", "memory", "seconds", "peak_memory"}
    return [{key: value for key, value in row.items() if key not in load} for row in rows]
