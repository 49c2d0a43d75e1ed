"""What `make dev` installs has to install on the oldest machine that the README promises."""

from __future__ import annotations

from importlib import metadata

from packaging.specifiers import SpecifierSet

DEBIAN_12 = "3.11.2"
"""Its Python: newer than the 3.11.0 that pyproject.toml asks for, and what the README's commands find there."""


def test_every_package_takes_the_python_of_debian_12() -> None:
    """A package that wants a newer patch release of Python ends `make run` there before it has begun."""
    wants = {d.metadata["Name"]: d.metadata["Requires-Python"] for d in metadata.distributions()}
    assert len(wants) > 50
    assert {n: w for n, w in wants.items() if w and not SpecifierSet(w).contains(DEBIAN_12)} == {}
