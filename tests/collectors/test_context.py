"""Which job has which GPU: several sources, MIG instances, and rows that know already."""

from graynode.collectors.context import GpuKey, JobContext, Placement

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
