"""Runs as jobs of a real Slurm, which the tests start on this machine."""

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
from study.launch import Job
from study.slurm import submit
from tests.conftest import TINY
from tests.helpers.contract import check_refused, error_lines
from tests.helpers.own_norm import write_norm
from tests.helpers.programs import PATIENCE, Program, from_scratch, succeed
from tests.helpers.rank_program import free_port
from tests.helpers.waiting import until
from training.run_folder import read_json, read_status

PROGRAMS = ("slurmctld", "slurmd", "munged")
SWEEP = ("-m", *TINY, "data=text", "data.path=text.txt", "train.checkpoint_every=20", "train.log_every=100")
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


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def queue() -> dict[str, str]:
    lines = output_of("squeue", "--noheader", "--array", "--format=%i %T").splitlines()
    return dict(line.split() for line in lines)


def losses(runs: Path) -> dict[str, float]:
    return {file.parent.name: read_status(file.parent)["final"] for file in runs.glob("*/status.json")}


def saved(folder: Path, run: str) -> list[Path]:
    return [*folder.glob(f"{run}-*/checkpoints/step-*")]


def job_of(folder: Path, run: str) -> str:
    """Return Slurm's number of the job of a run."""
    jobs = read_json(folder / ".sweep" / "slurm.json")
    return next(job for name, job in jobs.items() if name.startswith(run))


def worker(job: str) -> psutil.Process:
    """Return the process that runs a job of an array, submitit's."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has just ended
            is_worker = "submitit.core._submit" in process.cmdline() and process.name() != "srun"
            environ = process.environ() if is_worker else {}
            if f"{environ.get('SLURM_ARRAY_JOB_ID')}_{environ.get('SLURM_ARRAY_TASK_ID')}" == job:
                return process
    raise AssertionError(f"no process runs {job}")


@pytest.mark.long
def test_a_sweep_on_slurm_gives_the_same_losses_also_if_runs_are_requeued(slurm, text_file, tmp_path):
    sweep = (*SWEEP, "norm=layernorm,batchnorm", "placement=pre,post", "seed=0,1", "train.steps=600")
    succeed("train.py", *sweep, "runs_dir=local", cwd=tmp_path)
    folder = tmp_path / "cluster"
    cluster = Program("train.py", *sweep, *CLUSTER, "runs_dir=cluster", cwd=tmp_path)
    until(lambda: saved(folder, "layernorm-pre-s0"))
    worker(job_of(folder, "layernorm-pre-s0")).send_signal(signal.SIGUSR2)  # time limit
    until(lambda: saved(folder, "layernorm-pre-s1"))
    pre_empted = worker(job_of(folder, "layernorm-pre-s1"))
    for process in (pre_empted, *pre_empted.children()):  # Slurm signals one or both
        process.send_signal(signal.SIGTERM)
    output, errors = cluster.communicate(timeout=300)
    assert (cluster.returncode, error_lines(errors)) == (0, [])
    assert "8/8" in output
    assert "failed" not in output
    logs = [file.read_text() for file in folder.glob(".sweep/*.log")]
    assert len(logs) == 8
    assert sum("resumes from step" in log for log in logs) == 2
    assert losses(folder) == losses(tmp_path / "local")


@pytest.mark.slow
def test_failed_and_killed_jobs_are_named_and_the_others_finish(slurm, text_file, tmp_path):
    write_norm(tmp_path, "raises", "raise KeyError('boo')")
    jobs = (*SWEEP, "--config-dir", str(tmp_path), "norm=layernorm,raises,none", "train.steps=600")
    process = Program("train.py", *jobs, *CLUSTER, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    until(lambda: saved(tmp_path / "runs", "layernorm"))
    [run] = worker(job_of(tmp_path / "runs", "layernorm")).children()
    run.kill()
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert output.count("  failed (status 1): ") == 2
    assert "KeyError: 'boo'" in output
    [error] = error_lines(errors)
    assert "2 of 3 failed" in error
    assert [read_status(folder)["state"] for folder in tmp_path.glob("runs/none-*")] == ["finished"]


@pytest.mark.slow
def test_jobs_outlive_the_command_and_the_same_command_waits_for_them(slurm, text_file, tmp_path):
    jobs = (*SWEEP, *CLUSTER, "seed=0,1,2", "train.steps=1000000")
    first = Program("train.py", *jobs, cwd=tmp_path)
    until(lambda: all(saved(tmp_path / "runs", f"layernorm-pre-s{seed}") for seed in (0, 1)))
    before = queue()
    assert sorted(before.values()) == ["PENDING", "RUNNING", "RUNNING"]
    first.send_signal(signal.SIGINT)
    assert first.wait() == 128 + signal.SIGINT
    again = Program("train.py", *jobs, cwd=tmp_path)
    again.until(lambda: "3 runs to do: 3 in Slurm's queue, 0 new" in again.printed())
    assert queue() == before
    output_of("scancel", next(iter(before)).split("_")[0])
    again.communicate()
    assert again.returncode == 1
    assert not queue()
    statuses = [read_status(file.parent) for file in tmp_path.glob("runs/*/status.json")]
    assert [status["state"] for status in statuses] == ["interrupted"] * 2
    assert all(status["saved"] == status["step"] > 0 for status in statuses)


def test_an_option_that_slurm_lacks_is_one_line(monkeypatch, tmp_path):
    for name in ("sbatch", "squeue"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ConfigError, match=r"^launcher: slurm: Unknown argument 'partion'[^\n]*$"):
        submit([Job("a", ())], tmp_path, tmp_path, None, {"partion": "gpu"})


@pytest.mark.slow
def test_what_slurm_cannot_do_is_one_error_line(command, text_file, tmp_path):
    sweep = (*SWEEP, *CLUSTER, "seed=0,1")
    nowhere = command("train.py", *sweep, PATH=str(tmp_path))
    check_refused(nowhere, "error: launcher: slurm: sbatch is not found; start this on a machine")
    check_refused(
        command("train.py", *sweep, "precision=auto"), "error: precision: auto may become another precision"
    )
    check_refused(command("train.py", *sweep, "fresh=true"), "error: fresh: a requeued run would start over")
    (tmp_path / "sitecustomize.py").write_text("import sys\n\nsys.modules['submitit'] = None\n")
    without = from_scratch("train.py", *sweep, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    check_refused(without, "error: submitit: cannot be imported", "pip install -r requirements-slurm.txt")
