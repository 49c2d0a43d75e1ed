"""Which job has which GPU: several sources, MIG instances, and rows that know already."""

from datetime import UTC, datetime, timedelta

from graynode.collectors.context import GpuKey, JobContext, Placement

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
A, B = GpuKey("GPU-a"), GpuKey("GPU-b")


def test_rows_get_the_job_of_their_gpu() -> None:
    """A GPU without a job stays without one; a row that knows its job keeps it."""
    context = JobContext()
    context.place("slurm", {A: Placement("7", rank=3)})
    rows = {"gpu": [{"gpu_uuid": "GPU-a"}, {"gpu_uuid": "GPU-b"}, {"gpu_uuid": "GPU-a", "job_id": "own"}], "host": [{}]}
    context.stamp(rows)
    assert rows["gpu"][0] == {"gpu_uuid": "GPU-a", "job_id": "7", "job_role": None, "job_rank": 3}
    assert rows["gpu"][1] == {"gpu_uuid": "GPU-b"}
    assert rows["gpu"][2]["job_id"] == "own"


def test_a_job_that_is_not_told_again_is_over() -> None:
    """Each answer is whole."""
    context = JobContext()
    context.place("slurm", {A: Placement("7"), B: Placement("7")})
    context.place("slurm", {B: Placement("8")})
    assert context.of(A) is None
    assert context.of(B) == Placement("8")


def test_sources_that_agree_add_to_each_other() -> None:
    """Role and rank come from whoever knows them; another job's do not."""
    context = JobContext()
    context.place("slurm", {A: Placement("7")})
    context.place("steps", {A: Placement("7", "stage-2", 5), B: Placement("9", None, 1)})
    assert context.of(A) == Placement("7", "stage-2", 5)
    context.place("slurm", {A: Placement("8")})
    assert context.of(A) == Placement("8")
    assert context.of(B) == Placement("9", None, 1)


def test_a_mig_instance_has_its_own_job_or_its_gpus() -> None:
    """A whole GPU's placement holds for its instances, never the reverse."""
    context = JobContext()
    context.place("kubernetes", {GpuKey("GPU-a", "1"): Placement("ns/one"), B: Placement("ns/whole")})
    assert context.of(GpuKey("GPU-a", "1")) == Placement("ns/one")
    assert context.of(GpuKey("GPU-a", "2")) is None
    assert context.of(A) is None
    assert context.of(GpuKey("GPU-b", "3")) == Placement("ns/whole")


def test_processes_are_told_whole() -> None:
    """What the driver said last counts."""
    context = JobContext()
    context.set_pids({A: [12, 13]})
    context.set_pids({B: [14]})
    assert context.pids == {B: [14]}


def test_a_scheduler_is_believed_before_the_job_itself() -> None:
    """Whoever spoke first; what a job says of itself counts where no scheduler says anything."""
    context = JobContext()
    context.place("steps", {A: Placement("9", "stage-1", 3), B: Placement("9", None, 4)})
    context.place("slurm", {A: Placement("7")})
    assert context.of(A) == Placement("7")
    assert context.of(B) == Placement("9", None, 4)


def test_other_names_of_jobs() -> None:
    """A name that a source knows is the job's id; any other stays as it is."""
    context = JobContext()
    context.set_aliases("slurm", {"123_4": "126"})
    assert [context.job_named(name) for name in ("123_4", "126", "x")] == ["126", "126", "x"]
    context.set_aliases("slurm", {})
    assert context.job_named("123_4") == "123_4"


def test_first_steps_are_bounded() -> None:
    """The earliest of a job counts; the latest thousand jobs are kept."""
    context = JobContext()
    for number in range(1100):
        context.note_first_step(str(number), NOW)
    context.note_first_step("1099", NOW + timedelta(hours=1))
    assert (context.first_step("1099"), context.first_step("0")) == (NOW, None)


def test_rows_tell_which_gpu_has_which_index() -> None:
    """Sources that know GPUs by index ask here; MIG instances have none of their own."""
    context = JobContext()
    context.stamp({"gpu": [{"gpu_uuid": "GPU-a", "gpu_index": 0}, {"gpu_uuid": "GPU-b", "gpu_index": 1}]})
    context.stamp({"gpu": [{"gpu_uuid": "GPU-c", "gpu_index": 1, "mig_instance": "1"}]})
    assert context.gpus == {0: "GPU-a", 1: "GPU-b"}
