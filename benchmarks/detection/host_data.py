"""Server machine data in SMD's format: per machine a training series, a test series and the test's labels.

Either the set's own folders (``train``, ``test``, ``test_label`` with ``machine-1-1.txt``: a row a minute, values apart
by commas), or one ``.npz`` a machine with arrays of these names. Both may lie in one folder.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from graynode.benchmarks.detection.intervals import FloatArray
from graynode.benchmarks.detection.result import DataError

_PARTS: Final = ("train", "test", "test_label")
_FOLDER: Final = "ServerMachineDataset"
_LEAST: Final = 100


@dataclass(frozen=True, slots=True)
class Machine:
    """``train`` and ``test`` are rows × metrics in order of time; ``labels`` has one for each row of ``test``."""

    name: str
    train: FloatArray
    test: FloatArray
    labels: npt.NDArray[np.bool_]
    files: tuple[Path, ...]


def read(folder: Path) -> list[Machine]:
    """All machines of a folder, by name. ``DataError`` says the file, what is wrong and what was expected."""
    machines = {file.stem: _npz(file) for file in sorted(folder.glob("*.npz"))}
    for root in (folder, folder / _FOLDER):
        for file in sorted((root / "train").glob("*.txt")):
            if file.stem not in machines:
                machines[file.stem] = _texts(root, file.name)
    if not machines:
        raise DataError(
            f"{folder}: no machine in it; track host reads SMD: folders train, test and test_label with machine-*.txt, "
            f"or a machine-*.npz each with arrays {', '.join(_PARTS)}"
        )
    return [machines[name] for name in sorted(machines)]


def _npz(file: Path) -> Machine:
    try:
        with np.load(file) as held:
            arrays = {part: held[part] for part in _PARTS}
    except KeyError as error:
        raise DataError(f"{file}: no array {error}; {', '.join(_PARTS)} are expected") from error
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: cannot be read as npz: {error}") from error
    return _machine(file.stem, arrays, (file,))


def _texts(root: Path, name: str) -> Machine:
    arrays, files = {}, []
    for part in _PARTS:
        file = root / part / name
        try:
            arrays[part] = np.loadtxt(file, delimiter=",", ndmin=1 if part == "test_label" else 2)
        except OSError as error:
            raise DataError(f"{file}: cannot be read; each machine needs {', '.join(_PARTS)}") from error
        except ValueError as error:
            raise DataError(f"{file}: not rows of numbers apart by commas: {error}") from error
        files.append(file)
    return _machine(Path(name).stem, arrays, tuple(files))


def _machine(name: str, arrays: dict[str, Any], files: tuple[Path, ...]) -> Machine:
    where = files[0] if len(files) == 1 else files[0].parent.parent / f"*/{name}.txt"
    train, test = (np.asarray(arrays[part]) for part in ("train", "test"))
    labels = np.asarray(arrays["test_label"]).ravel()
    if any(a.dtype.kind not in "fiub" for a in (train, test, labels)):
        raise DataError(f"{where}: arrays of numbers are expected")
    if train.ndim != 2 or test.ndim != 2 or train.shape[1] != test.shape[1] or not train.shape[1]:
        raise DataError(f"{where}: train {train.shape} and test {test.shape} are not rows of the same metrics")
    if len(labels) != len(test):
        raise DataError(f"{where}: {len(test)} rows of test and {len(labels)} labels")
    if not np.isin(labels, (0, 1)).all():
        raise DataError(f"{where}: labels other than 0 and 1")
    if min(len(train), len(test)) < _LEAST:
        raise DataError(f"{where}: {len(train)} and {len(test)} rows; {_LEAST} of each are the least")
    # As many in the part that is fitted without the last fifth
    early = int(np.isfinite(train[: len(train) // 2]).any(axis=1).sum())
    if early < _LEAST // 2:
        raise DataError(f"{where}: {early} rows of the first half of train have a number; {_LEAST // 2} are the least")
    return Machine(name, _finite(train), _finite(test), labels.astype(bool), files)


def _finite(rows: npt.NDArray[Any]) -> FloatArray:
    """An infinite value is none: a division by zero of whoever collected it, not a size."""
    values = rows.astype(np.float64)
    return np.asarray(np.where(np.isfinite(values), values, np.nan), dtype=np.float64)
