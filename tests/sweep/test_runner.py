"""A sweep is one command: it prints its plan, runs what is missing, and reports every job's end."""

import errno
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from cli.compose import alternatives, choices
from data.errors import ConfigError
from hydra_plugins import normgpt
from sweep import job_record
from sweep import launch as os_compat
from sweep.job import Job, keep_errors
from sweep.part import Part
from tests.conftest import CONF, NORMS, PLACEMENTS, TINY, daily
from tests.helpers.contract import check_one_line, check_refused, error_lines
from tests.helpers.own_norm import write_norm
from tests.helpers.programs import PATIENCE, Program, from_scratch, saved
from tests.helpers.waiting import until
from training.run_folder import read_status

PARALLEL = "hydra/launcher=joblib"


@pytest.fixture
def sweep(text_file):
    """Return the arguments of a sweep whose runs take a second each."""
    return ("-m", *TINY, "data=text", f"data.path={text_file}")


def statuses(folder: Path) -> dict[str, dict]:
    return {run.parent.name: read_status(run.parent) for run in folder.glob("runs/*/status.json")}


def losses(folder: Path) -> dict[str, float]:
    return {name: status["final"] for name, status in statuses(folder).items()}


@pytest.mark.long
def test_the_same_runs_with_the_same_numbers_whatever_the_launcher(succeed, sweep, tmp_path):
    jobs = (*sweep, "norm=layernorm,batchnorm,none")
    first = succeed("train.py", *jobs, "runs_dir=runs")
    one_by_one = losses(tmp_path)
    assert len(one_by_one) == 3
    (tmp_path / "runs").rename(tmp_path / "before")
    second = succeed("train.py", *jobs, PARALLEL, "hydra.launcher.n_jobs=2")
    assert losses(tmp_path) == one_by_one
    for done in (first, second):
        lines = [line.split() for line in done.stdout.splitlines() if re.match(r"\d/3 ", line)]
        assert [line[0] for line in lines] == ["1/3", "2/3", "3/3"]
        assert {line[1]: float(line[2]) for line in lines} == pytest.approx(one_by_one, abs=1e-4)


@pytest.mark.slow
def test_a_dry_run_names_what_would_run_and_writes_only_the_tokens(command, succeed, sweep, tmp_path):
    done = succeed("train.py", *sweep[1:], "norm=none,dyt", "train.steps=2", "runs_dir=runs", "--dry-run")
    assert re.match(
        r"checking 2 jobs\n(preparing .*\n)?2 runs: 2 to do, 1 at once\n(several small .*\n)?"
        r"  none-pre-s0-\w+  norm=none\n  dyt-pre",
        done.stdout,
    )
    assert {file.name for file in tmp_path.iterdir()} == {
        "text.txt",
        "data",
    }  # data: the tokens name the runs
    one = command("train.py", *sweep[1:], "train.batch_size=3", "train.grad_accum=2", "--dry-run")
    assert (one.returncode, "cannot run: train.batch_size: " in one.stdout) == (1, True)
    broken = tmp_path / "mine" / "norm" / "broken.yaml"
    broken.parent.mkdir(parents=True)
    broken.write_text("_target_: model.norms.RMSNorm\neps: ${model.nope}\n")
    mixed = command("train.py", *sweep, "--config-dir=mine", "norm=none,broken", "--dry-run")
    assert (mixed.returncode, "2 runs: 1 cannot run, 1 to do" in mixed.stdout) == (1, True)
    assert "norm=broken  cannot run: norm.eps: " in mixed.stdout


@pytest.mark.slow
def test_every_arm_takes_all_of_the_values_and_jobs_of_the_same_run_are_one(succeed, sweep, tmp_path):
    arms = 'hydra.sweeper.arms=[["norm=none","train.steps=2"],["norm=dyt"]]'
    done = succeed("train.py", *sweep, arms, "seed=0,1", "train.log_every=1,2")
    checked = "checking 8 jobs\npreparing text with the tokenizer char\n"
    assert done.stdout.startswith(f"{checked}8 jobs describe 4 different runs\n4 runs: 4 to do")
    steps = {
        file.parent.name.rpartition("-")[0]: re.search(r"steps: (\d+)", file.read_text())[1]
        for file in tmp_path.glob("runs/*/config.yaml")
    }
    assert steps == {"none-pre-s0": "2", "none-pre-s1": "2", "dyt-pre-s0": "6", "dyt-pre-s1": "6"}


def test_the_plan_is_printed_and_only_what_is_missing_runs(command, sweep, tmp_path):
    first = command("train.py", *sweep, "seed=0,1")
    assert re.match(
        r"checking 2 jobs\n(preparing .*\n)?2 runs: 2 to do, 1 at once\n(several small .*\n)?",
        first.stdout,
    )
    before = {run: (run / "metrics.jsonl").stat().st_mtime_ns for run in tmp_path.glob("runs/layer*")}
    second = command("train.py", *sweep, "seed=0,1,2")
    assert "\n3 runs: 2 done before, 1 to do" in second.stdout
    assert "3/3  layernorm-pre-s2-" in second.stdout
    assert {run: (run / "metrics.jsonl").stat().st_mtime_ns for run in before} == before
    third = command("train.py", *sweep, "seed=0,1,2")
    assert third.stdout.startswith("checking 3 jobs\n3 runs: 3 done before, 0 to do")
    assert third.returncode == 0
    assert third.stdout.count("finished") == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("norm=layernorm,nope", "error: norm: there is no 'nope'; did you mean none? All: "),
        ("experiment=depth,batch_size", "error: experiment: a preset that sweeps cannot be swept over"),
    ],
)
def test_an_impossible_sweep_is_refused_as_a_whole(command, sweep, tmp_path, values, message):
    check_refused(command("train.py", *sweep, values), message)
    assert not [*tmp_path.glob("runs/*")]


@pytest.mark.long
def test_bad_jobs_are_named_and_the_others_finish(command, succeed, tmp_path, text_file, record_property):
    """Four of the 12 jobs are bad: an invalid value, divergence, too little memory, damaged data."""
    experiments = tmp_path / "mine" / "experiment"
    experiments.mkdir(parents=True)
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text()[:5000])
    good = (
        "model: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 8}\nprecision: fp32\n"
        f"train: {{steps: 3, batch_size: 4, eval_windows: 8, threads: 1}}\ndata: {{path: {text_file}}}\n"
    )
    jobs = {f"good{seed}": f"{good}seed: {seed}\n" for seed in range(8)} | {
        "refused": good.replace("batch_size: 4", "batch_size: 0"),
        "diverges": good.replace("threads: 1", "threads: 1, grad_clip: 0") + "optim: {learning_rate: 1e30}\n",
        "too_large": good.replace("n_embd: 16", "n_embd: 4000000"),
        "damaged": good.replace(str(text_file), str(other)),
    }
    for name, text in jobs.items():
        (experiments / f"job_{name}.yaml").write_text(f"# @package _global_\n{text}")
    shared = ("--config-dir", str(tmp_path / "mine"), "data=text")
    succeed("train.py", *shared, "experiment=job_damaged", "runs_dir=elsewhere")
    [tokens] = tmp_path.glob("data/cache/text-*/train.bin")
    tokens.write_bytes(b"xx" + tokens.read_bytes()[2:])

    done = command("train.py", "-m", *shared, "experiment=glob(job_*)", PARALLEL, "hydra.launcher.n_jobs=2")
    assert done.returncode == 1
    assert done.stdout.startswith(
        "checking 12 jobs\npreparing text with the tokenizer char\n12 runs: 2 cannot run, 10 to do, 2 at once"
    )
    table = done.stdout[done.stdout.index("val/full_loss") :]
    assert table.count("finished") == 8
    assert table.count("diverged") == 1
    assert "is not finite" in " ".join(table.split())
    assert table.count("failed") == 3
    errors = error_lines(done.stderr)
    assert len(errors) == 3
    assert any(
        "train.batch_size: invalid value 0; it should be greater than or equal to 1" in line
        for line in errors
    )
    assert any("train.bin: fails its checksum" in line for line in errors)
    assert any("GB at least, but cpu has" in line for line in errors)
    record_property("R9 of 12 jobs with 4 bad ones, finished", table.count("finished"))
    began = time.monotonic()
    again = command("train.py", "-m", *shared, "experiment=glob(job_*)")
    record_property("R9 the same again, 9 done before, seconds", round(time.monotonic() - began, 1))
    assert again.returncode == 1
    assert again.stdout.startswith("checking 12 jobs\n12 runs: 9 done before, 2 cannot run, 1 to do")
    final = "val/full_loss"
    assert sorted(again.stdout[again.stdout.index(final) :].split()) == sorted(table.split())


SLOW = ("train.steps=400", "train.checkpoint_every=10", "train.log_every=10")


def started(tmp_path: Path, *arguments: str) -> Program:
    """Start a parallel sweep and return it once a run has saved a checkpoint."""
    process = Program("train.py", *arguments, PARALLEL, "hydra.launcher.n_jobs=2", cwd=tmp_path)
    process.until(lambda: saved(tmp_path))
    return process


def workers(folder: Path) -> set[tuple[int, float]]:
    records = [job_record.read(job) for job in folder.glob("runs/.sweep/*/*")]
    return {tuple(record["process"]) for record in records if record.get("state") == "running"}


@pytest.mark.long
def test_a_killed_sweep_resumes_to_the_same_losses(command, succeed, sweep, tmp_path):
    jobs = (*sweep, *SLOW, "seed=0,1,2")
    process = started(tmp_path, *jobs)
    orphans = workers(tmp_path)
    assert orphans
    process.kill()
    process.communicate()
    succeed("train.py", *jobs, PARALLEL, "hydra.launcher.n_jobs=2")
    interrupted = losses(tmp_path)
    assert not any(os_compat.is_running(*orphan) for orphan in orphans)  # no worker outlives its sweep
    (tmp_path / "runs").rename(tmp_path / "before")
    assert command("train.py", *jobs, PARALLEL, "hydra.launcher.n_jobs=2").returncode == 0
    assert interrupted == losses(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_all_runs_and_no_worker_outlives_the_sweep(sweep, tmp_path, number):
    sizes = "model.n_embd=16,512"  # the larger one takes longer to save
    process = started(tmp_path, *sweep, *SLOW, "train.steps=100000", "seed=0,1", sizes)
    process.until(lambda: len(statuses(tmp_path)) == 2)
    processes = workers(tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert [status["state"] for status in statuses(tmp_path).values()] == ["interrupted"] * 2
    assert all((status["saved"] or 0) == status["step"] for status in statuses(tmp_path).values())
    assert {job_record.read(job)["state"] for job in tmp_path.glob("runs/.sweep/*/*")} == {"ended", "waiting"}
    until(lambda: not any(os_compat.is_running(*process) for process in processes))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_is_ended_does_not_end_the_others(command, sweep, tmp_path, number):
    jobs = (*sweep, *SLOW, "seed=0,1,2")
    process = started(tmp_path, *jobs)
    os.kill(workers(tmp_path).pop()[0], number)
    output, errors = process.communicate(timeout=PATIENCE)
    saves = number == signal.SIGTERM  # and ends; a job whose process is killed is tried again by itself
    assert process.returncode == saves
    assert output.count(" finished ") == 3 - saves
    assert errors.count("ended by SIGTERM; the same command resumes it") == saves
    assert command("train.py", *jobs, PARALLEL).stdout.count(" finished ") == 3


@pytest.mark.long
def test_a_job_that_kills_every_process_has_failed(command, sweep, tmp_path):
    write_norm(tmp_path, "kills", "import os; os.kill(os.getpid(), 9)")
    jobs = ("--config-dir", str(tmp_path), *sweep, "norm=layernorm,none,kills", "hydra.launcher.n_jobs=2")
    done = command("train.py", *jobs, PARALLEL, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.count(" finished ") == 2
    assert "its process was killed" in done.stderr
    assert len(error_lines(done.stderr)) == 1


@pytest.mark.long
def test_the_same_sweep_is_refused_while_another_process_does_it(command, sweep, tmp_path):
    jobs = (*sweep, *SLOW, "train.steps=100000", "seed=0,1")
    process = started(tmp_path, *jobs)
    try:
        second = command("train.py", *jobs, PARALLEL)
        assert second.returncode == 1
        assert f"process {process.pid} is already running this sweep; wait for it or stop it" in second.stderr
    finally:
        process.terminate()
        process.communicate()


def test_a_norm_that_raises_is_its_jobs_failure_alone(command, sweep, tmp_path):
    write_norm(tmp_path, "raises", "raise KeyError('boo')")
    jobs = ("--config-dir", str(tmp_path), *sweep, "norm=raises,layernorm")
    done = command("train.py", *jobs, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.count(" finished ") == 1
    assert "boo" in done.stderr


@pytest.mark.slow
def test_the_recorded_arguments_describe_the_run(command, succeed, sweep, tmp_path):
    (tmp_path / "my text.txt").write_text((tmp_path / "text.txt").read_text())
    succeed("train.py", *sweep[:-1], f"data.path={tmp_path}/my text.txt", "seed=4", "runs_dir=my runs")
    [folder] = (tmp_path / "my runs").glob("layernorm-*")
    recorded = json.loads((folder / "environment.json").read_text())["overrides"]
    repeated = command("train.py", *recorded)
    assert repeated.stdout.startswith(f"my runs/{folder.name}: finished"), repeated.stderr


def test_the_command_line_overrides_a_presets_values():
    parsed = OverridesParser.create().parse_overrides(["a=1,2", "b=3", "a=5,6,7"])
    assert alternatives(parsed) == {"a": ["a=5", "a=6", "a=7"], "b": ["b=3"]}
    parsed = OverridesParser.create().parse_overrides(["a=1,2", "++a=7,8"])
    assert alternatives(parsed) == {"a": ["++a=7", "++a=8"]}
    with pytest.raises(ConfigError, match="a: an interval has no list of values"):
        alternatives(OverridesParser.create().parse_overrides(["a=interval(0,1)"]))


PRESETS = {  # how many runs
    "norm_ablation": len(["layernorm", "torch_layernorm", "batchnorm", "none"]) * 2 * 3,
    "fair_ablation": 4 * 2 * 2,
    "atlas": (len(NORMS) + 2 * (len(PLACEMENTS) - 1) + 10) * 2,
    "atlas_map": (len(NORMS) - 3) * len(PLACEMENTS),
    "atlas_best": 6 * 2,
    "lr_sensitivity": len(NORMS) * 7 * 2,
    "depth": len(PLACEMENTS) * 4 * 3,
    "batch_size": 2 * 4 * 3,
    "pre_norm_ablation": 2 * 3,
    "layer_norm_ablation": 2 * 4 * 3,
    "cs336_layer_norm": 3 * 3,
    "cs336_pre_norm": 2 * 3,
    "cs336_no_pos_emb": 2 * 3,
    "cs336_swiglu": 2 * 3,
}


@pytest.mark.parametrize("preset", daily(PRESETS, others="long"))
def test_every_run_of_a_preset_composes(preset):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        hydra = compose("config", [f"experiment={preset}"], return_hydra_config=True).hydra
    assert hydra.mode.name == "MULTIRUN"
    assert "Joblib" in hydra.launcher._target_
    seeds = len(str(hydra.sweeper.params.seed).split(","))
    params = [f"{key}={value}" for key, value in hydra.sweeper.params.items() if key != "seed"]
    configs = [
        config
        for arm in hydra.sweeper.arms or [[]]
        for config in choices([f"experiment={preset}", *params, *arm, "seed=0"]).values()
    ]
    assert len(configs) * seeds == len({str(config) for config in configs}) * seeds == PRESETS[preset]
    assert {config.train.threads for config in configs} == {1}


@pytest.mark.slow
def test_a_jobs_output_is_in_its_log_and_its_end_in_its_record(tmp_path, capsys):
    job_record.write(tmp_path, {"launcher": job_record.this_process(), "state": "waiting"})
    with job_record.record_job(tmp_path) as outcome:
        print("seen in the log")
        assert job_record.read(tmp_path)["state"] == "running"
        outcome["value"] = float("inf")
    assert capsys.readouterr().out == ""
    assert (tmp_path / "log.txt").read_text() == "seen in the log\n"
    assert json.loads((tmp_path / "job.json").read_text())["value"] == "Infinity"
    assert job_record.read(tmp_path)["state"] == "ended"


@pytest.mark.slow
def test_each_run_carries_the_plan_that_was_written_before_it(command, sweep, tmp_path):
    def plans() -> dict[str, dict]:
        files = tmp_path.glob("runs/*/environment.json")
        return {file.parent.name[:-9]: json.loads(file.read_text())["plan"] for file in files}

    command("train.py", *sweep[1:], "norm=none", "seed=0")
    command("train.py", *sweep, "norm=none,layernorm", "seed=0,1")
    before = plans()
    assert before["none-pre-s0"] is None  # the run began before the sweep
    first, second = before["none-pre-s1"], before["layernorm-pre-s0"]
    assert (first["seeds"], first["ended_before"]) == ([0, 1], [0])
    assert (second["seeds"], second["ended_before"]) == ([0, 1], [])
    assert {first["arm"], second["arm"]} == {*first["arms"]} == {*second["arms"]}
    assert first["baseline"] == {"norm": "layernorm", "placement": "pre"}
    command("train.py", *sweep, "norm=none,layernorm", "seed=0,1,2")
    after = plans()
    assert after["none-pre-s2"]["ended_before"] == [0, 1]
    assert {name: after[name] for name in before} == before


@pytest.mark.slow
def test_a_job_that_cannot_run_is_in_no_plan_and_stops_no_other(command, sweep, tmp_path):
    done = command("train.py", *sweep, "model.block_size=8,100000")
    assert done.returncode == 1
    assert done.stdout.count(" finished ") == 1
    [file] = tmp_path.glob("runs/*/environment.json")
    assert len(json.loads(file.read_text())["plan"]["arms"]) == 1


@pytest.mark.slow
def test_once_a_run_has_ended_what_kept_an_earlier_job_from_it_is_forgotten(succeed, sweep, tmp_path):
    succeed("train.py", *sweep)
    [record] = tmp_path.glob("runs/.sweep/*/*/job.json")
    record.write_text(
        json.dumps(json.loads(record.read_text()) | {"error": "process 7 is training this run"})
    )
    assert "finished" in succeed("train.py", *sweep).stdout


@pytest.mark.slow
def test_roles_that_cannot_be_recorded_fail_one_job(succeed, sweep, tmp_path):
    succeed("train.py", *sweep, "seed=0,1")
    first, second = sorted(tmp_path.glob("runs/layernorm-*"))
    (first / "environment.json").write_text("{")
    jobs = [Job((), run.name, tmp_path, run=run, done=True) for run in (first, second)]
    Part("trial", {}, ["seed"], [0], "2026-01-01").record(jobs)
    assert f"{first}: " in str(jobs[0].error)
    assert jobs[1].error is None
    assert json.loads((second / "environment.json").read_text())["roles"][0]["role"] == "trial"


@pytest.mark.slow
def test_fewer_processes_than_one_are_one(command, sweep):
    done = command("train.py", *sweep, "seed=0", PARALLEL, "hydra.launcher.n_jobs=-99", "--dry-run")
    assert ", 1 at once" in done.stdout, done.stderr


def test_far_more_processes_than_cores_are_refused(command, sweep):
    done = command("train.py", *sweep, "seed=0,1", PARALLEL, "hydra.launcher.n_jobs=1000")
    check_one_line(done, "hydra.launcher.n_jobs: 1000 are too many here; give at most ")


@pytest.mark.slow
@pytest.mark.parametrize(("device", "at_once"), [("auto", 3), ("cpu", os_compat.cores())])
def test_a_sweep_on_gpus_has_a_job_for_each_of_them(sweep, tmp_path, device, at_once):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, torch\n"
        "exists = os.path.exists\n"
        "os.path.exists = lambda path: path == '/dev/nvidiactl' or exists(path)\n"
        "torch.cuda.device_count = lambda: 3\n"
    )
    jobs = (*sweep, f"device={device}", "seed=0,1,2,3", PARALLEL, "--dry-run")
    done = from_scratch("train.py", *jobs, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert f"4 runs: 4 to do, {at_once} at once" in done.stdout, done.stderr


def test_a_setting_of_the_sweeper_may_be_null_and_another_kind_is_refused():
    assert normgpt.pairs("params", None) == []
    assert normgpt.pairs("final", OmegaConf.create({"seed": "0,1"})) == ["seed=0,1"]
    assert normgpt.lists("published", None) == []
    with pytest.raises(
        ConfigError, match=r"hydra.sweeper.published: results/atlas is no list; write \[results/atlas\]"
    ):
        normgpt.lists("published", "results/atlas")
    with pytest.raises(ConfigError, match="hydra.sweeper.final: .* gives no keys"):
        normgpt.pairs("final", OmegaConf.create(["a"]))


def test_an_error_that_a_job_could_not_record_is_kept(tmp_path):
    jobs = [Job(folder=tmp_path, label=name, overrides=[]) for name in "ab"]
    full = OSError(errno.ENOSPC, "No space left on device", "runs/x")
    ended = JobReturn(_return_value=1.0, status=JobStatus.COMPLETED)
    keep_errors(jobs, [JobReturn(_return_value=full, status=JobStatus.FAILED), ended])
    assert jobs[0].error.startswith("runs/x: No space left on device; ")
    assert jobs[1].error is None
