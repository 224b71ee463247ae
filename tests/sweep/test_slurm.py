"""Sweeps on a real Slurm, which the tests start on this machine."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from data.errors import ConfigError
from sweep import job_record
from tests.conftest import LETTERS, TINY
from tests.helpers.contract import check_refused, error_lines
from tests.helpers.own_norm import write_norm
from tests.helpers.programs import PATIENCE, Program, from_scratch, succeed
from tests.helpers.rank_program import free_port
from tests.helpers.waiting import until
from training.run_folder import read_status

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
    """A cluster of one node. A requeued job starts again after cred_expire seconds."""
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
        until(lambda: "idle" in output_of("sinfo", "-h", "-o", "%T"))
        yield


@pytest.fixture
def slurm(node: None) -> Iterator[None]:
    """The cluster, with an empty queue after the test."""
    yield
    output_of("scancel", "--me")
    until(lambda: not queue())


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


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def queue() -> dict[str, str]:
    lines = output_of("squeue", "--noheader", "--array", "--format=%i %T").splitlines()
    return dict(line.split() for line in lines)


def losses(runs: Path) -> dict[str, float]:
    return {file.parent.name: read_status(file.parent)["final"] for file in runs.glob("*/status.json")}


def saved(folder: Path, run: str) -> list[Path]:
    return [*folder.glob(f"{run}-*/checkpoints/step-*")]


def job_of(folder: Path, number: int) -> str:
    """Return Slurm's number of the job ``number`` of a sweep."""
    [record] = folder.glob(f".sweep/*/{number:03}/slurm.json")
    return json.loads(record.read_text())["job"]


@pytest.mark.long
def test_a_sweep_on_slurm_gives_the_same_losses_also_if_runs_are_requeued(slurm, sweep, tmp_path):
    sweep = (*sweep, "norm=layernorm,batchnorm", "placement=pre,post", "seed=0,1", "train.steps=600")
    succeed("train.py", *sweep, "runs_dir=local", cwd=tmp_path)
    folder = tmp_path / "cluster"
    cluster = Program("train.py", *sweep, *CLUSTER, "runs_dir=cluster", cwd=tmp_path)
    for number, warning in enumerate([signal.SIGUSR2, signal.SIGTERM]):  # time limit, pre-emption
        until(lambda number=number: saved(folder, f"layernorm-pre-s{number}"))
        worker(job_of(folder, number)).send_signal(warning)
    output, errors = cluster.communicate(timeout=180)
    assert (cluster.returncode, error_lines(errors)) == (0, [])
    assert "8/8" in output
    assert "failed" not in output
    logs = [file.read_text() for file in folder.glob(".sweep/*/*/log.txt")]
    assert len(logs) == 8
    assert sum("resumes from step" in log for log in logs) == 2
    assert losses(folder) == losses(tmp_path / "local")


@pytest.mark.slow
def test_failed_and_killed_jobs_are_named_and_the_others_finish(slurm, sweep, tmp_path):
    write_norm(tmp_path, "raises", "raise KeyError('boo')")
    jobs = (*sweep, "--config-dir", str(tmp_path), "norm=layernorm,raises,none", "train.steps=600")
    process = Program("train.py", *jobs, *CLUSTER, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    until(lambda: saved(tmp_path / "runs", "layernorm"))
    killed = job_of(tmp_path / "runs", 0)
    worker(killed).kill()
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert output.count(" finished ") == 1
    lines = sorted(error_lines(errors))
    assert len(lines) == 2
    assert f"its Slurm job {killed} has ended: FAILED; see " in lines[0]
    assert "Killed" in Path(lines[0].split("; see ")[1].split(";")[0]).read_text()
    assert "KeyError: 'boo', at raises.py:6; correct this code; its output is in " in lines[1]


def worker(job: str) -> psutil.Process:
    """Return the process that runs a job of an array."""
    array, number = job.split("_")
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has just ended
            environment = process.environ() if process.name().startswith("python") else {}
            if (environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")) == (
                array,
                number,
            ):
                return process
    raise AssertionError(f"no process runs {job}")


@pytest.mark.slow
def test_the_same_command_rejoins_its_jobs_and_ctrl_c_cancels_them(slurm, sweep, tmp_path):
    jobs = (*sweep, *CLUSTER, "seed=0,1,2", "train.steps=1000000")
    killed = Program("train.py", *jobs, cwd=tmp_path)
    until(lambda: all(saved(tmp_path / "runs", f"layernorm-pre-s{seed}") for seed in (0, 1)))
    before = queue()
    assert sorted(before.values()) == ["PENDING", "RUNNING", "RUNNING"]
    killed.kill()
    killed.communicate()
    again = Program("train.py", *jobs, cwd=tmp_path)
    again.until(lambda: "3 of the jobs are already in Slurm's queue" in again.printed())
    assert queue() == before
    again.send_signal(signal.SIGINT)
    _, errors = again.communicate()
    assert again.returncode == 128 + signal.SIGINT
    assert "cancelling jobs in Slurm: 3\n" in errors
    assert not error_lines(errors)
    assert not queue()
    statuses = [read_status(file.parent) for file in tmp_path.glob("runs/*/status.json")]
    assert [status["state"] for status in statuses] == ["interrupted"] * 2
    assert all(status["saved"] == status["step"] > 0 for status in statuses)


@pytest.mark.slow
def test_a_missing_slurm_or_package_is_one_error_line(command, sweep, tmp_path):
    nowhere = command("train.py", *sweep, *CLUSTER, "seed=0,1", PATH=str(tmp_path))
    check_refused(nowhere, "error: hydra/launcher: slurm: sbatch not found; start the sweep")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n\nsys.modules['hydra_plugins.hydra_submitit_launcher'] = None\n"
    )
    without = from_scratch("train.py", *sweep, *CLUSTER, "seed=0,1", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    check_refused(without, "error: hydra/launcher: slurm needs extra packages; run pip install -r ")


def test_jobs_in_the_queue_go_on_if_new_jobs_are_refused(monkeypatch, tmp_path):
    slurm = pytest.importorskip("sweep.slurm", reason="needs requirements-slurm.txt")
    old, new = tmp_path / "0", tmp_path / "1"
    job_record.write(old, {"job": "7_0"}, "slurm.json")
    job_record.write(new, {"state": "waiting"})

    def refuse(*_: object) -> None:
        raise ConfigError("hydra.launcher: sbatch says no")

    cancelled: list[str] = []
    monkeypatch.setattr(slurm, "states", lambda: {"7_0": "RUNNING"})
    monkeypatch.setattr(slurm, "submit", refuse)
    monkeypatch.setattr(slurm, "cancel", cancelled.extend)
    with pytest.raises(ConfigError, match="sbatch says no"):
        slurm.run_jobs(print, {}, [(), ()], [old, new])
    assert not cancelled
