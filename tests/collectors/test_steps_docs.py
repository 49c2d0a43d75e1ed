"""The callbacks of docs/steps.md, run as they stand against small stand-ins of the frameworks' documented calls."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import node_files
import pytest

from graynode.collectors import steps
from graynode.collectors.step_socket import Settings, StepSocket
from graynode.collectors.steps import Reporter

PAGE = Path(__file__).resolve().parents[2] / "docs/steps.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


class Gpu:
    """Time that passes on the GPU only when the test says so."""

    now = 0.0
    done = 0.0


class Event:
    """torch.cuda.Event: recorded now, passed when the GPU has come so far; milliseconds between two."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        self.at = Gpu.now

    def query(self) -> bool:
        return Gpu.done >= self.at

    def elapsed_time(self, end: Event) -> float:
        assert end.query()
        return (end.at - self.at) * 1000


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs the page's blocks with stand-ins; gives their names and a way to see what reached the agent."""
    torch, lightning, transformers = (types.ModuleType(name) for name in ("torch", "lightning", "transformers"))
    torch.cuda = types.SimpleNamespace(Event=Event)  # type: ignore[attr-defined]
    callbacks = types.ModuleType("lightning.pytorch.callbacks")
    callbacks.Callback = transformers.TrainerCallback = type("Callback", (), {})  # type: ignore[attr-defined]
    for module in (torch, lightning, types.ModuleType("lightning.pytorch"), callbacks, transformers):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    path = tmp_path / "steps.sock"
    agent = StepSocket(node_files.node(tmp_path), settings=Settings(path))
    reporter = Reporter(str(path), env={"SLURM_JOB_ID": "7", "RANK": "0"})
    monkeypatch.setattr(steps, "_default", reporter)
    Gpu.now = Gpu.done = 0.0

    def run(*numbers: int) -> tuple[dict[str, Any], Any]:
        names: dict[str, Any] = {}
        for number in numbers:
            exec(compile(BLOCKS[number], f"{PAGE}:{number}", "exec"), names)  # noqa: S102 (our own page)
        return names, lambda: agent.collect(node_files.round_at(1)).get("step", [])

    yield run
    reporter.close()
    agent.close()


def test_the_page_has_the_blocks_that_are_run() -> None:
    """A new block needs a test here."""
    assert [re.search(r"class (\w+)", block) is not None for block in BLOCKS] == [False, True, True, True]


def test_the_one_call(reported: Any) -> None:
    """The first example, as it stands."""
    _, told = reported(0)
    (row,) = told()
    assert (row["step"], row["seconds"], row["busy_s"], row["wait_s"]) == (120, 1.31, 0.82, 0.44)


def _forward() -> None:
    Gpu.now += 0.25


def test_pytorch_tells_a_step_when_its_events_have_passed(reported: Any) -> None:
    """No call waits for the GPU; what is not ready is told later, in order."""
    names, told = reported(1)
    times = names["StepTimes"]("stage-0")
    for step in range(3):
        times.begin()
        times.busy_begin()
        _forward()
        times.busy_end()
        Gpu.now += 0.5
        Gpu.done = Gpu.now - 0.75 if step < 2 else Gpu.now
        times.end(step)
    assert [(r["step"], r["busy_s"], r["role"]) for r in told()] == [(n, 0.25, "stage-0") for n in range(3)]
    times.begin()
    times.end(3)
    assert [(r["step"], r["busy_s"]) for r in told()] == [(3, None)]


def test_a_gpu_that_hangs_keeps_no_steps_back_for_ever(reported: Any) -> None:
    """After a hundred steps they are told without GPU time."""
    names, told = reported(1)
    times = names["StepTimes"]()
    Gpu.done = -1.0
    for step in range(120):
        times.begin()
        times.busy_begin()
        _forward()
        times.busy_end()
        times.end(step)
    assert [r["step"] for r in told()] == list(range(21))


def test_lightning(reported: Any) -> None:
    """The hooks of one batch in the order in which Lightning calls them."""
    names, told = reported(1, 2)
    callback, trainer = names["ReportSteps"](), types.SimpleNamespace(global_step=41)
    callback.on_train_batch_start(trainer, None, None, 0)
    _forward()
    callback.on_before_backward(trainer, None, None)
    Gpu.now = Gpu.done = 5.0
    callback.on_train_batch_end(trainer, None, None, None, 0)
    assert [(r["step"], r["busy_s"]) for r in told()] == [(41, 0.25)]


def test_hugging_face(reported: Any) -> None:
    """The events of one step in the order in which the Trainer calls them; an old Trainer lacks one."""
    names, told = reported(1, 3)
    callback, state = names["ReportSteps"](), types.SimpleNamespace(global_step=7)
    callback.on_step_begin(None, state, None, model=None)
    callback.on_pre_optimizer_step(None, state, None)
    _forward()
    callback.on_optimizer_step(None, state, None)
    Gpu.done = Gpu.now
    callback.on_step_end(None, state, None)
    assert [(r["step"], r["busy_s"]) for r in told()] == [(7, 0.25)]
    for lacking in ("on_pre_optimizer_step", "on_optimizer_step"):
        callback.on_step_begin(None, state, None)
        for event in {"on_pre_optimizer_step", "on_optimizer_step"} - {lacking}:
            getattr(callback, event)(None, state, None)
        callback.on_step_end(None, state, None)
        assert [(r["step"], r["busy_s"]) for r in told()] == [(7, None)]
