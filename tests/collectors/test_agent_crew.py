from __future__ import annotations

import threading
import time

from agent_fakes import until

from graynode.collectors.crew import Crew


class Task:
    """A job that remembers its runs and can be held."""

    def __init__(self, name: str, order: list[str] | None = None) -> None:
        self.name, self.order = name, order if order is not None else []
        self.threads: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def run(self) -> None:
        self.order.append(self.name)
        self.threads.append(threading.get_ident())
        self.gate.wait(20)


def _rounds(crew: Crew, jobs: list[Task], count: int) -> None:
    for _ in range(count):
        crew.submit(jobs)
        assert crew.wait(10) == []


def test_punctual_jobs_share_one_thread_in_order() -> None:
    """Jobs that come back in time run one after another, as given, in one thread that is not the loop's."""
    order: list[str] = []
    jobs, crew = [Task(n, order) for n in "abc"], Crew(time.monotonic)
    _rounds(crew, jobs, 3)
    assert order == list("abcabcabc")
    assert len({t for job in jobs for t in job.threads}) == 1
    assert threading.get_ident() not in jobs[0].threads
    crew.stop()


def test_late_job_keeps_its_thread_and_the_others_go_on() -> None:
    """A job that still runs when the next round comes hangs alone, from that moment; those behind it are run."""
    order: list[str] = []
    before, stuck, after = Task("before", order), Task("stuck", order), Task("after", order)
    stuck.gate.clear()
    crew = Crew(time.monotonic)
    crew.submit([before, stuck, after])
    assert crew.wait(0.05) == ["after", "stuck"]
    assert crew.wait(10, but_for=["after", "stuck"]) == ["after", "stuck"]
    for _ in range(3):
        crew.submit([before, after])
        assert crew.wait(0.05) == ["stuck"]
    assert order.count("after") == 3  # the first of them was still waiting and is not run twice
    assert order.count("before") == 4
    assert crew.apart == {"stuck"}
    assert not set(stuck.threads) & set(after.threads)
    stuck.gate.set()
    assert until(lambda: crew.wait(0.01) == [])
    crew.stop()


def test_job_once_late_has_a_thread_of_its_own() -> None:
    """Who hung once will hang again: from then on its rounds delay nobody."""
    quick, slow = Task("quick"), Task("slow")
    slow.gate.clear()
    crew = Crew(time.monotonic)
    crew.submit([slow, quick])
    assert until(lambda: slow.threads != [])
    crew.submit([quick])
    slow.gate.set()
    assert until(lambda: crew.wait(0.01) == [])
    _rounds(crew, [slow, quick], 3)
    assert len(slow.threads) == 4
    assert len(set(slow.threads[1:])) == 1
    assert not set(slow.threads[1:]) & set(quick.threads)
    crew.stop()


def test_two_late_jobs_hang_apart_from_each_other() -> None:
    """Each hung job holds one thread; a third keeps its pace."""
    one, two, well = Task("one"), Task("two"), Task("well")
    one.gate.clear()
    two.gate.clear()
    crew = Crew(time.monotonic)

    def paced() -> bool:
        crew.submit([job for job in (one, two, well) if not (job.threads and not job.gate.is_set())])
        crew.wait(0.02)
        return crew.apart == {"one", "two"} and len(well.threads) >= 7

    assert until(paced)
    for job in (one, two):
        job.gate.set()
    assert until(lambda: crew.wait(0.01) == [])
    crew.stop()


def test_running_job_that_is_given_again_runs_again() -> None:
    """The last flush is asked for while a send still runs: it comes after it, in the same thread."""
    job = Task("job")
    job.gate.clear()
    crew = Crew(time.monotonic)
    crew.submit([job])
    assert until(lambda: job.threads != [])
    crew.submit([job])
    crew.submit([job])
    job.gate.set()
    assert crew.wait(10) == []
    assert len(job.threads) == 2
    assert len(set(job.threads)) == 1
    crew.stop()


def test_stop_ends_idle_threads() -> None:
    """After ``stop`` no thread of the crew is left, but one that hangs."""
    before = set(threading.enumerate())  # what another test left may end meanwhile
    crew = Crew(time.monotonic)
    _rounds(crew, [Task("a")], 1)
    crew.stop()
    assert until(lambda: not set(threading.enumerate()) - before)
