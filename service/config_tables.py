"""The tables of the configuration file (``graynode.service.config`` reads it): keys, types and defaults."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Positive = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0)]
Hours = Annotated[float, Meta(gt=0)]


class Section(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A table of the file; an unknown key is an error, because a misspelt guard guards nothing."""


class Agent(Section, frozen=True):
    """The node agent. ``state_dir`` outlives it; ``node_id`` overrides what the machine says of itself."""

    state_dir: Path = Path("/var/lib/graynode")
    node_id: str = ""
    node: str = ""
    collectors: tuple[str, ...] = (
        "nvml",
        "kernel_log",
        "infiniband",
        "ethtool",
        "services",
        "slurm",
        "kubernetes",
        "host",
    )
    batch_s: Seconds = 10.0
    deadline_s: Seconds = 10.0
    spool_max_bytes: Positive = 1 << 30
    metrics_listen: str = "127.0.0.1:9401"
    kmsg: Path = Path("/dev/kmsg")
    kernel_log_format: Literal["kmsg", "dmesg", "journal"] = "kmsg"
    nvlink_watch_s: Literal[1, 10] = 10


class Slurm(Section, frozen=True):
    """Slurm. On each node jobs are found by themselves; ``cluster`` is for one machine, such as the head node.

    ``bin``: folder of Slurm's programs if they are not in ``PATH``; ``conf``: its ``slurm.conf`` if it is not the usual
    one; ``completion_log``: ``JobCompLoc`` of jobcomp/filetxt; ``job_mapping_dir``: dcgm-exporter's folder of job ids
    by GPU; ``node_name``: what Slurm calls this machine where that is not its short host name; ``work``: kind of work
    by partition.
    """

    cluster: bool = False
    every_s: Seconds = 60.0
    deadline_s: Seconds = 30.0
    bin: Path | None = None
    conf: Path | None = None
    completion_log: Path | None = None
    job_mapping_dir: Path | None = None
    node_name: str = ""
    work: dict[str, str] = field(default_factory=dict)


class Steps(Section, frozen=True):
    """Step times from training loops (docs/steps.md). Naming a ``socket`` opens it; ``report`` looks for it at
    ``/run/graynode/steps.sock``. ``rate``: steps a second of one process; ``senders``: connections of one user."""

    socket: Path | None = None
    mode: Annotated[str, Meta(pattern="^0?[0-7]{3}$")] = "666"
    rate: Seconds = 50.0
    senders: Positive = 128


class JobLog(Section, frozen=True):
    """Telling lines of job outputs, redacted. Off until ``paths`` names outputs: globs with Slurm's %j, %A, %a, %t."""

    paths: tuple[str, ...] = ()


class Services(Section, frozen=True):
    """What the collector ``services`` watches. ``units`` add to the shipped list, ``ignore`` takes from it.

    ``full_ratio``: a local file system is full from this share of its bytes or inodes on.
    """

    units: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    full_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.97


class Kafka(Section, frozen=True):
    """The broker. Secrets are files, never values."""

    bootstrap: str = "127.0.0.1:9092"
    security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    user: str = ""
    password_file: Path | None = None
    connect_timeout_s: Seconds = 30.0
    partitions: Positive = 4
    replication: Positive = 1


class Bus(Section, frozen=True):
    """``spool`` needs no broker and serves one machine; ``kafka`` serves a fleet."""

    kind: Literal["spool", "kafka"] = "spool"
    spool_dir: Path = Path("/var/lib/graynode/bus")
    spool_max_bytes: Positive = 8 << 30
    kafka: Kafka = field(default_factory=Kafka)


class LakeSection(Section, frozen=True):
    """Where the tables are: a folder or ``s3://…``; ``storage_options`` go to the object store as they are."""

    path: str = "/var/lib/graynode/lake"
    storage_options: dict[str, str] = field(default_factory=dict)


class Pipeline(Section, frozen=True):
    """From the bus to the lake."""

    group: str = "graynode-pipeline"
    commit_s: Seconds = 10.0
    idle_commit_s: Seconds = 300.0
    metrics_listen: str = "127.0.0.1:9402"
    maintain: bool = True


class Detect(Section, frozen=True):
    """Rounds and hard events. ``shadow`` keeps statistical findings from being told until thresholds are accepted or
    the site's own healthy node-days certify the budget (docs/thresholds.md); ``rules`` always speak.

    ``shadow_detectors`` are never told. The budget is false findings: ``budget_per_week`` of the whole fleet where it
    is not 0, else ``budget_per_node_day``.

    ``xid_severity`` is the site's own mind about single Xids, by number; ``digest`` tells nobody at once.
    ``places_file``: a CSV of racks and switches (``service/places_file.py``), where no collector knows them.
    ``collective_timeout_s``: how long an outage this site's collectives survive; 0: NCCL's, 7.5 s and since 2.23 30 s.
    ``pages_per_shift``: pages of their own in ``shift_h`` hours, further ones are grouped under the open page; 0 is no
    limit. ``due_…_h``: hours until the owner's next step.
    """

    detectors: tuple[str, ...] = (
        "rules",
        "ecc",
        "links",
        "pcie",
        "slow",
        "thermal",
        "blind",
        "forest",
        "hosts",
        "stragglers",
    )
    shadow: bool = True
    shadow_detectors: tuple[str, ...] = ()
    budget_per_node_day: Annotated[float, Meta(gt=0, le=0.1)] = 2e-4
    budget_per_week: Annotated[float, Meta(ge=0, le=10_000)] = 0.0
    resolve_after_s: Seconds = 3600.0
    xid_severity: dict[Annotated[str, Meta(pattern=r"^[0-9]{1,4}$")], Literal["page", "ticket", "digest"]] = field(
        default_factory=dict
    )
    metrics_listen: str = "127.0.0.1:9403"
    places_file: Path | None = None
    collective_timeout_s: Annotated[float, Meta(ge=0)] = 0.0
    pages_per_shift: Annotated[int, Meta(ge=0)] = 1
    shift_h: Hours = 12.0
    due_page_h: Hours = 1.0
    due_ticket_h: Hours = 24.0
    due_digest_h: Hours = 168.0


class Owned(Section, frozen=True):
    """GPUs of one model that are ours: price, life, other costs a year, and what the host draws beside the GPU."""

    purchase_per_gpu: float
    life_years: float
    other_per_gpu_year: float = 0.0
    host_w_per_gpu: float = 0.0


class Rented(Section, frozen=True):
    """GPUs of one model that are rented, from day ``since`` to before day ``until``; ``gpus``: for how many it is."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]
    per_gpu_hour: float
    commitment: Annotated[str, Meta(max_length=100)] = ""
    since: date | None = None
    until: date | None = None
    gpus: Annotated[int, Meta(ge=0)] = 0


class Cost(Section, frozen=True):
    """What GPU-hours cost (docs/cost.md). ``per_gpu_hour``: money by a part of the model's name (``H100 = 2.5``),
    ``"*"`` for others; ``owned`` by the same, and ``rented``, say it in more detail and go first.

    Without prices waiting is told in GPU-hours. ``restart_h``: hours of work lost when a job dies, an assumption: half
    a checkpoint interval and the restart. ``work``: kind of work by a pattern of partition, account or job
    (``"partition:serve*" = "inference"``), where the job does not say; ``teams``: team by account. ``budgets``: by
    account and calendar month, in money where there are prices, else in GPU-hours.
    """

    per_gpu_hour: dict[str, Annotated[float, Meta(ge=0)]] = field(default_factory=dict)
    currency: Annotated[str, Meta(max_length=10)] = ""
    restart_h: Annotated[float, Meta(ge=0)] = 0.5
    owned: dict[str, Owned] = field(default_factory=dict)
    rented: tuple[Rented, ...] = ()
    tariff_per_kwh: float = 0.0
    pue: float = 1.0
    work: dict[str, str] = field(default_factory=dict)
    teams: dict[str, str] = field(default_factory=dict)
    budgets: dict[str, float] = field(default_factory=dict)


class Report(Section, frozen=True):
    """Where ``graynode report --send`` sends (docs/report.md). ``urls_file``: addresses as apprise writes them, one a
    line, for they hold passwords; ``plain_http`` permits what is not encrypted beyond this machine.
    """

    urls_file: Path | None = None
    plain_http: bool = False
    timeout_s: Seconds = 30.0


class Serve(Section, frozen=True):
    """The HTTP API and the pages (docs/api.md). Beyond loopback it wants ``cert_file`` and ``key_file``, or
    ``plain_http`` where a proxy in front speaks TLS; ``hosts``: names that it answers to, beside those of loopback.

    ``deadline_s``: the longest that one question may take, ``report_deadline_s`` that of one that reckons over weeks
    (cost, capacity, reliability), of which one runs at a time. ``sql`` opens ``POST /api/v1/sql``, with its own limits.
    """

    listen: str = "127.0.0.1:9405"
    tokens_file: Path = Path("/var/lib/graynode/serve-tokens.json")
    cert_file: Path | None = None
    key_file: Path | None = None
    plain_http: bool = False
    hosts: tuple[str, ...] = ()
    refresh_s: Seconds = 15.0
    session_h: Hours = 12.0
    streams: Positive = 64
    deadline_s: Seconds = 10.0
    report_deadline_s: Seconds = 120.0
    memory: Annotated[str, Meta(pattern="^[0-9]+ ?[KMG]i?B$")] = "2GB"
    sql: bool = False
    sql_deadline_s: Seconds = 10.0
    sql_rows: Positive = 10_000
    sql_memory: Annotated[str, Meta(pattern="^[0-9]+ ?[KMG]i?B$")] = "512MB"


class Simulated(Section, frozen=True):
    """The simulated fleet that the collector ``simulated`` gives."""

    nodes: Positive = 64
    gpus_per_node: Annotated[int, Meta(gt=0, le=16)] = 8
    seed: int = 1
    faults: Path | None = None
    start: str = ""


class Dcgm(Section, frozen=True):
    """dcgm-exporters that the collector ``dcgm`` reads. ``targets`` are this machine's (``http://127.0.0.1:9400/metrics``).

    ``fleet`` (``host:port`` or URLs) and ``fleet_files`` (Prometheus ``file_sd`` in JSON, by glob) are other nodes'.
    """

    targets: tuple[str, ...] = ()
    fleet: tuple[str, ...] = ()
    fleet_files: tuple[str, ...] = ()
    interval_s: Annotated[float, Meta(ge=1, le=60)] = 10.0
    timeout_s: Seconds = 5.0
    ca_file: Path | None = None
    authorization_file: Path | None = None


class Replay(Section, frozen=True):
    """The recording that the collector ``replay`` gives again; ``pace`` 60 is an hour in a minute, 0 no wait."""

    path: Path | None = None
    pace: Annotated[float, Meta(ge=0)] = 1.0


class Fields(Section, frozen=True):
    """Fields that the agent does not read, or more seldom than the contract says (``collectors/switches.py``)."""

    off: tuple[str, ...] = ()
    every: dict[str, int] = field(default_factory=dict)


class Kubernetes(Section, frozen=True):
    """Kubernetes. On each node jobs are found by themselves; ``cluster`` is for one machine, which follows all nodes.

    ``api`` is empty inside a cluster, ``https://host:port`` outside, or ``off``; an empty ``node_name`` is
    ``$NODE_NAME`` or the host's name; the labels are a site's own for the user, the account and the kind of work.
    """

    cluster: bool = False
    node_name: str = ""
    socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    api: str = ""
    token_file: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
    ca_file: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
    keep_s: Seconds = 3600.0
    kueue: bool = True
    user_label: str = ""
    account_label: str = ""
    work_label: str = ""
