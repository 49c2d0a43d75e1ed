"""Files that are no capture of nvidia-smi, damaged, hostile or newer: each counted, said, and of no harm to others."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smi_files import FIXTURES, HEAD, NOW, REPORTS, XML, csv_row, import_smi, make, unpacked, write

from graynode.pipeline.codec import to_batch
from graynode.pipeline.lake import Lake
from graynode.pipeline.schema import TABLES
from graynode.service.config import Config, ConfigError
from graynode.service.config_tables import LakeSection
from graynode.service.importing import run
from graynode.service.imports.smi_csv import names_of
from graynode.service.imports.smi_ledger import Ledger
from graynode.service.imports.smi_record import Moment, Where, rows, spend_shared
from graynode.service.imports.smi_sift import sift
from graynode.service.imports.smi_split import Splitter
from graynode.service.imports.smi_text import TextReader

_WHERE = Where("c", "n", "", "f", "nvidia-smi")


def _rcs(tmp_path: Path, files: list[Path]) -> Iterator[int]:
    for path in files:
        yield run(Config(lake=LakeSection(path=str(tmp_path / "lake"))), "nvidia-smi", [path], now=NOW)


@pytest.mark.parametrize(
    ("name", "said"),
    [("mi100_rocm571.json", "rocm-smi"), ("rx6700xt_rocm612.json", "--format csv --map"),
     ("vega-20-WKS-GL-XE.json", "AMD")],
)  # fmt: skip
def test_rocm_smi_is_refused_with_what_to_do(tmp_path: Path, name: str, said: str) -> None:
    """AMD's JSON is named as such, with the way that is open to it."""
    with pytest.raises(ConfigError, match=said):
        list(_rcs(tmp_path, [FIXTURES / "telegraf_smi" / name]))


def test_what_is_no_capture_is_said(tmp_path: Path) -> None:
    """An exporter's page, Parquet, an empty file, an absent one, a folder: each with what it is or what to do."""
    page = FIXTURES / "nvidia_smi" / "h100-load.metrics.gz"
    cases = {page: "--format prometheus", tmp_path / "no": "cannot be read", tmp_path: "cannot be read"}
    for path, said in {**cases, write(tmp_path, b"PAR1xx"): "--format parquet"}.items():
        with pytest.raises(ConfigError, match=said):
            list(_rcs(tmp_path, [path]))
    for data in (b"", b"\n \n"):
        with pytest.raises(ConfigError, match="is empty"):
            list(_rcs(tmp_path, [write(tmp_path, data)]))
    assert not (tmp_path / "lake").exists()


def test_one_bad_file_of_several_costs_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are imported, the bad one is said on stderr, and the exit code tells."""
    config = Config(lake=LakeSection(path=str(tmp_path / "lake")))
    assert run(config, "nvidia-smi", [XML[0], tmp_path / "no", XML[1]], now=NOW) == 2
    assert str(tmp_path / "no") in capsys.readouterr().err
    assert Lake(str(tmp_path / "lake")).read("gpu")["gpu_uuid"].n_unique() == 2


def test_without_permission(tmp_path: Path) -> None:
    """A file that may not be read is said with its path, as a user other than root meets it."""
    path, me = write(tmp_path, HEAD + csv_row(1, "70 W")), os.geteuid()
    path.chmod(0)
    if me == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match=rf"{path}: cannot be read: Permission denied"):
            list(_rcs(tmp_path, [path]))
    finally:
        os.seteuid(me)


@pytest.mark.parametrize("path", [XML[0], REPORTS[3]], ids=lambda path: path.name[:30])
@pytest.mark.parametrize("share", [0.02, 0.55, 0.9, 0.999])
def test_cut_in_the_middle(tmp_path: Path, path: Path, share: float) -> None:
    """Whatever is left of a capture is read; what is not whole is counted, and nothing that is stored is half."""
    whole = unpacked(path) if path.suffix == ".gz" else path.read_text()
    text = whole[: int(len(whole) * share)]
    done, lake = import_smi(write(tmp_path, text))
    full, other = import_smi(path)
    assert done.ledger.read <= full.ledger.read
    if path.suffix == ".xml":
        assert not lake.exists("gpu")  # its one GPU is not whole
        assert done.ledger.notes or "not whole" in " ".join(done.ledger.refused)
    elif lake.exists("gpu"):
        numbers = [f.name for f in TABLES["gpu"].fields if f.type != "string" and f.kind != "key"]
        theirs = other.read("gpu").rows_by_key(["ts", "mig_instance"], named=True, unique=True)
        for row in lake.read("gpu").iter_rows(named=True):
            assert not [n for n in numbers if row[n] not in (None, theirs[row["ts"], row["mig_instance"]][n])]


BOMB = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log [ <!ENTITY a "aaaaaaaaaaaaaaaaaaaa"> <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;"> <!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;"> ]>
<nvidia_smi_log><gpu id="0"><uuid>GPU-1</uuid><product_name>&d;</product_name></gpu></nvidia_smi_log>
"""
FETCH = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log [ <!ENTITY a SYSTEM "file:///etc/passwd"> ]>
<nvidia_smi_log><gpu id="0"><uuid>GPU-1</uuid><product_name>&a;</product_name></gpu></nvidia_smi_log>
"""
HEAD_XML = '<?xml version="1.0" ?>\n<nvidia_smi_log>\n<gpu id="0">\n<uuid>GPU-1</uuid>\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [(BOMB, "declares an entity"), (FETCH, "declares an entity"),
     (HEAD_XML + "<a>" * 100_000, "deeper than"), (HEAD_XML + "<b>" + "x" * 200_000, "a value longer"),
     (HEAD_XML + "<c " + "x" * (6 << 20), "without a tag"), (HEAD_XML + "<d>\x01</d>", "not XML"),
     (HEAD_XML + "<e>&nope;</e>", "not XML|uses an entity"), (HEAD_XML + "</gpu></oops>", "not XML"),
     ("<?xml version='1.0'?>\n<rss><a/></rss>\n", "its root is"), (HEAD_XML * 2, "not XML|cut")],
    ids=["bomb", "fetch", "deep", "long value", "long tag", "control", "entity", "crossed", "other root", "again"],
)  # fmt: skip
def test_hostile_xml(tmp_path: Path, text: str, said: str) -> None:
    """Entities, depth, endless values and tags, and broken XML: counted with the reason, nothing expanded or stored,
    and the documents after it are read."""
    good = (FIXTURES / "telegraf_smi" / "rtx-3060-v12.xml").read_text()
    done, lake = import_smi(write(tmp_path, text + "\n</nvidia_smi_log>\n" + good))
    account = " ".join([*done.ledger.notes, *done.ledger.refused])
    assert re.search(said, account)
    gpu = lake.read("gpu")
    assert "GPU-1" not in gpu["gpu_uuid"].to_list() or said == "not XML"
    assert gpu.filter(pl.col("gpu_model").str.contains("3060|Graphics|RTX")).height == 1


def test_a_line_of_a_hundred_megabytes(tmp_path: Path) -> None:
    """It is refused once, without being held; what stands before and after it is read."""
    path = tmp_path / "long.csv"
    with path.open("w") as file:
        file.write(HEAD + csv_row(1, "70 W"))
        for _ in range(100):
            file.write("x" * 1_000_000)
        file.write("\n" + csv_row(2, "71 W"))
    done, lake = import_smi(path)
    assert lake.read("gpu").sort("ts")["power_w"].to_list() == [70.0, 71.0]
    assert done.ledger.refused["a line longer than 1 million characters"] == 1


def test_endless_captures(tmp_path: Path) -> None:
    """A table that names no GPU and a log without an end are not held whole."""
    rows = "timestamp, temperature.gpu\n" + "".join(f"2026/07/14 09:00:00.{i:06d}, 40\n" for i in range(2000))
    done, _ = import_smi(write(tmp_path, rows))
    assert done.ledger.captures["csv, --query-gpu"] == 8
    assert done.ledger.refused.total() == 4000
    reader = TextReader(ledger := Ledger(), most=3)
    reader.line("GPU 00000000:09:00.0")
    for _ in range(10):
        reader.line("    Fan Speed : 3 %")
    assert (reader.capture.devices[0].count(), ledger.refused.total()) == (3, 7)


_LINES = [line for path in (XML[0], XML[2]) for line in path.read_text().splitlines()[:400]]
_LINES += [line for line in unpacked(REPORTS[3]).splitlines()[1480:1900] if len(line) < 3000]
_LINES += [
    HEAD.strip(),
    csv_row(1, "70 W").strip(),
    csv_row(2, "[N/A]", gpu=1).strip(),
    "</nvidia_smi_log>",
    "\x00\x1b\ufffd",
]


@given(
    st.lists(
        st.one_of(
            st.integers(0, len(_LINES) - 1).map(lambda i: _LINES[i : i + 40]),
            st.sampled_from(_LINES).map(lambda line: [line]),
            st.text(max_size=80).map(lambda text: [text]),
        ),
        max_size=30,
    )
)
@settings(max_examples=60)
def test_any_mixture_of_lines_has_an_account(pieces: list[list[str]]) -> None:
    """Pieces of captures and noise in any order: no error, no row outside the contract, and every GPU whole."""
    text = "\n".join(line for piece in pieces for line in piece)
    ledger, rows_made = Ledger(), 0
    for capture in Splitter(ledger).captures(io.StringIO(text, newline="")):
        shared = sift(capture.form, capture.shared, ledger)
        for device in capture.devices:
            told, _ = rows(capture.form, device, shared, lambda unpacked: Moment(NOW, "observed"), _WHERE, ledger)
            rows_made += len(told.gpu)
            for table in ("gpu", "inventory", "quality"):
                to_batch(TABLES[table], getattr(told, table))
        spend_shared(shared, any_row=True, ledger=ledger)
    assert min([0, *ledger.stored.values(), *ledger.refused.values()]) == 0
    assert ledger.read == ledger.stored.total() + ledger.refused.total()
    assert ledger.read or not rows_made


def test_a_newer_nvidia_smi(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Elements, lines and columns that nobody knows yet are counted and named; all else is stored as before."""
    xml = (FIXTURES / "telegraf_smi" / "tesla-t4.xml").read_text().replace("v11.dtd", "v19.dtd")
    xml = xml.replace("<pci>", "<quantum_state><spin>up</spin><flavour>odd</flavour></quantum_state>\n<pci>")
    run(Config(lake=LakeSection(path=str(tmp_path / "lake"))), "nvidia-smi", write(tmp_path, xml), now=NOW)
    said = capsys.readouterr().out
    assert "schema v19" in said
    assert "2 refused: a name that this version does not know" in " ".join(said.split())
    assert "new names: quantum_state/spin, quantum_state/flavour" in said
    assert "60 in rows of gpu" in " ".join(said.split())
    text = unpacked(REPORTS[3]).replace(
        "    Fan Speed ", "    Mood                                               : good\n    Fan Speed "
    )
    done, _ = import_smi(make(tmp_path / "q", text))
    assert dict(done.ledger.new_names) == {"mood": 2}
    done, lake = import_smi(write(tmp_path, HEAD.replace("temperature.gpu", "temperament.gpu") + csv_row(1, "1 W")))
    assert dict(done.ledger.new_names) == {"temperament.gpu": 1}
    assert lake.read("gpu")["power_w"].to_list() == [1.0]


def test_names_move_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a file calls things is stored and shown as text."""
    head = HEAD.replace("index", "name").replace("temperature.gpu", "a.\x1b.b")
    assert names_of(head) is None  # no name has such a character
    rows = "timestamp, name, uuid, temperature.gpu\n2026/07/14 09:00:01.5, A\x1b[2JB, GPU-1, 40\n"
    run(Config(lake=LakeSection(path=str(tmp_path / "lake"))), "nvidia-smi", write(tmp_path, rows), now=NOW)
    assert Lake(str(tmp_path / "lake")).read("gpu")["gpu_model"].to_list() == ["A�[2JB"]
    assert not [c for c in capsys.readouterr().out if not c.isprintable() and c != "\n"]


@pytest.mark.parametrize("text", ["2026/13/45 09:00:00.0", "1970/01/01 00:00:00.0", "2126/01/01 00:00:00.0", "soon"])
def test_a_time_that_cannot_be(tmp_path: Path, text: str) -> None:
    """The row is refused, counted, and costs no other."""
    bad = csv_row(1, "1 W").replace("2026/07/14 09:00:01.500", text)
    done, lake = import_smi(write(tmp_path, HEAD + bad + csv_row(2, "2 W", gpu=1)))
    assert done.ledger.refused["its capture's time cannot be read"] == 7
    assert lake.read("gpu")["power_w"].to_list() == [2.0]
