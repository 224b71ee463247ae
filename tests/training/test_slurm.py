"""Sweeps on Slurm: a real one, of this machine alone, that the tests start."""

import csv
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import LETTERS, TINY
from tests.programs import ROOT
from tests.ranks import free_port

PROGRAMS = ("slurmctld", "slurmd", "munged")
missing = [name for name in PROGRAMS if not shutil.which(name)]
pytestmark = [
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (slurm-wlm, munge)"),
    pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can start a Slurm"),
    pytest.mark.faults,
]
CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
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


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One node, in some seconds; its commands find it by the environment."""
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    host = subprocess.check_output(["hostname", "-s"], text=True).strip()
    memory = int(psutil.virtual_memory().total * 0.8 / 2**20)
    (folder / "slurm.conf").write_text(
        CONF.format(
            folder=folder,
            host=host,
            port=free_port(),
            node_port=free_port(),
            cores=os.cpu_count(),
            memory=memory,
        )
    )
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    if not any(process.name() == "munged" for process in psutil.process_iter()):
        os.makedirs("/run/munge", exist_ok=True)
        shutil.chown("/run/munge", "munge")
        subprocess.run(["runuser", "-u", "munge", "--", shutil.which("munged")], check=True)
    subprocess.run(["slurmctld"], check=True)
    subprocess.run(["slurmd"], check=True)
    wait_for(lambda: "idle" in said("sinfo", "-h", "-o", "%T"))
    yield
    for name in ("slurmd", "slurmctld"):
        pid = int((folder / f"{name}.pid").read_text())
        psutil.Process(pid).terminate()
        wait_for(lambda pid=pid: not psutil.pid_exists(pid))


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def wait_for(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_sweep_on_slurm_is_that_of_this_machine_also_where_a_run_is_taken_back(slurm, tmp_path):
    (tmp_path / "text.txt").write_text(LETTERS)
    sweep = ["-m", "norm=layernorm,batchnorm", "placement=pre,post", "seed=0,1", *TINY]
    sweep += ["data=text", "data.path=text.txt", "train.steps=1500", "train.checkpoint_every=50"]
    cluster = ["hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.array_parallelism=2"]
    program = [sys.executable, ROOT / "train.py"]
    here = subprocess.run([*program, *sweep, "runs_dir=here"], cwd=tmp_path, capture_output=True, text=True)
    assert here.returncode == 0, here.stderr
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    there = subprocess.Popen([*program, *sweep, *cluster, "runs_dir=there"], cwd=tmp_path, text=True, **pipes)
    with there:
        taken: list[str] = []

        def has_run_a_while() -> bool:
            running = (line.split() for line in said("squeue", "-h", "-t", "R", "-o", "%i %M").splitlines())
            taken[:] = [job for job, seconds in running if re.fullmatch(r"0:0[3-9]", seconds)]
            return bool(taken)

        wait_for(has_run_a_while)
        said("scancel", "--signal=USR2", taken[0])  # which complains that the job is on its way back
        wait_for(lambda: f"{taken[0]} PD" in said("squeue", "-h", "-o", "%i %t"))

        def begins_again() -> bool:  # Slurm would let it wait for two minutes
            time.sleep(5)  # it is asked not at once, as it is still on its way out, and not too often
            said("scontrol", "update", f"JobId={taken[0]}", "StartTime=now")
            return f"{taken[0]} PD" not in said("squeue", "-h", "-o", "%i %t")

        wait_for(begins_again, 150)
        output, errors = there.communicate(timeout=180)
    assert there.returncode == 0, errors
    assert "8/8" in output
    assert "failed" not in output
    logs = [file.read_text() for file in (tmp_path / "there/.sweep").rglob("log.txt")]
    assert len(logs) == 8
    assert sum("going on from step" in log for log in logs) == 1
    assert table(tmp_path / "there") == table(tmp_path / "here")


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
