"""A job of a sweep says what its run is doing, also while another process trains it."""

import json
import math

import pytest
from hydra.core.utils import JobReturn, JobStatus

from data.errors import ConfigError
from sweep import job_record
from sweep.job import Job, check_for_cluster, keep_errors


@pytest.fixture
def job(tiny, tmp_path):
    """Return a function that gives a job of 10 steps whose run has this status."""

    def with_status(status, *overrides):
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        (run / "status.json").write_text(json.dumps(status))
        return Job((), "a job", tmp_path / "record", config=tiny(*overrides, "train.steps=10"), run=run)

    return with_status


def test_a_fresh_run_is_as_far_as_its_new_training(job):
    assert job({"state": "interrupted", "step": 5}).fraction_trained() == 0.5
    assert job({"state": "interrupted", "step": 5}, "fresh=true").fraction_trained() == 0.0
    assert job({"state": "finished", "step": 10}, "fresh=true").fraction_trained() == 0.0
    assert job({"state": "running", "step": 5}, "fresh=true").fraction_trained() == 0.5


@pytest.mark.parametrize(
    ("override", "message"),
    [("fresh=true", "^fresh: .* requeues"), ("precision=auto", "^precision: .*; give precision=bf16")],
)
def test_a_job_of_a_cluster_does_not_begin_anew_and_has_the_name_that_it_has_here(tiny, override, message):
    check_for_cluster(tiny("precision=fp32"))
    with pytest.raises(ConfigError, match=message):
        check_for_cluster(tiny("precision=fp32", override))


def test_the_end_of_a_run_counts_more_than_what_kept_the_job_from_it(job):
    finished = {"state": "finished", "step": 10, "final": 2.5}
    made = job(finished)
    job_record.write(made.folder, {"state": "ended", "error": "its Slurm job 7 has ended: COMPLETED"})
    assert made.outcome() == ("finished", 2.5, "")
    again = job(finished, "fresh=true")  # the run that has ended is the one to be replaced
    assert again.outcome() == ("failed", math.inf, "its Slurm job 7 has ended: COMPLETED")
    begun = job({"state": "interrupted", "step": 5})
    assert begun.outcome()[0] == "failed"


def test_a_job_that_could_not_begin_anew_has_not_the_result_of_the_old_run(job):
    end = JobReturn(status=JobStatus.FAILED, _return_value=OSError(28, "No space left on device"))
    finished = {"state": "finished", "step": 10, "final": 2.5}
    for overrides, state in ((), "finished"), (("fresh=true",), "failed"):
        made = job(finished, *overrides)
        keep_errors([made], [end])
        assert made.outcome()[0] == state
