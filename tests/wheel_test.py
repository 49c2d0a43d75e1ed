"""Installs a built wheel where there are no sources, and uses it: ``python wheel_test.py WHEEL``.

The base install must run the agent alone; package data must open; the server part must simulate and answer SQL.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

AGENT_MUST_NOT_IMPORT = ("polars", "duckdb", "sklearn", "numpy", "deltalake")
DATA = {
    "graynode.detectors": ("xid_policy.json", "thresholds.json"),
    "graynode.collectors.simulated": ("demo_faults.toml", "acme_quantiles.json", "longhorn_offsets.csv"),
    "graynode.pipeline": ("py.typed",),
    "graynode.benchmarks.detection": tuple(
        f"limits/{track}.json" for track in ("attribution", "fleet", "host", "lemons", "slow")
    ),
}


def run(*words: str | Path, cwd: Path, **env: str) -> str:
    """Run a command with nothing of ours in its environment; its output, or the end of this test."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "GRAYNODE", "VIRTUAL"))}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**clean, **env}, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        sys.exit(f"wheel test: {words} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def check_base(python: Path, folder: Path) -> None:
    """The agent runs, once and dry, from the base install alone."""
    for package in AGENT_MUST_NOT_IMPORT:
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is not None)"
        run(python, "-c", code, cwd=folder)
    rows = run(
        python.with_name("graynode"), "agent", "--once", "--dry-run", cwd=folder,
        GRAYNODE_AGENT__STATE_DIR=str(folder / "state"), GRAYNODE_BUS__SPOOL_DIR=str(folder / "bus"),
    )  # fmt: skip
    tables = {json.loads(line)["table"] for line in rows.splitlines()}
    if "host" not in tables:
        sys.exit(f"wheel test: the agent gave no host row, only {sorted(tables)}")
    missing = run_failing(python.with_name("graynode"), "sql", "-c", "SELECT 1", cwd=folder)
    if "graynode[server]" not in missing or "Traceback" in missing:
        sys.exit(f"wheel test: a server command on a base install says only: {missing}")


def run_failing(*words: str | Path, cwd: Path) -> str:
    """Run a command that must fail; what it says."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=60)
    if done.returncode == 0:
        sys.exit(f"wheel test: {words} should have failed")
    return done.stderr


def check_data(python: Path, folder: Path) -> None:
    """Every file of package data is in the wheel and opens."""
    for package, names in DATA.items():
        for name in names:
            run(
                python,
                "-c",
                f"import importlib.resources as r; r.files('{package}').joinpath('{name}').read_bytes()",
                cwd=folder,
            )


def check_server(python: Path, folder: Path) -> None:
    """The server part simulates a small fleet and answers a question about it."""
    graynode = python.with_name("graynode")
    lake = folder / "lake"
    run(graynode, "simulate", "--nodes", "2", "--days", "0.1", "--out", lake, cwd=folder)
    answer = run(
        graynode,
        "sql",
        "--lake",
        lake,
        "--format",
        "json",
        "-c",
        "SELECT count(*) AS n FROM gpu_30s",
        cwd=folder,
    )
    if json.loads(answer)["n"] == 0:
        sys.exit("wheel test: the simulated lake has no windows")


def main() -> None:
    """Base install, package data, server part; in a folder that knows nothing of the sources."""
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="graynode-wheel-") as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel, cwd=folder)
        check_base(python, folder)
        check_data(python, folder)
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{wheel}[server]", cwd=folder)
        check_server(python, folder)
    sys.stdout.write(f"{wheel.name}: base install, package data and server part work without the sources\n")


if __name__ == "__main__":
    main()
