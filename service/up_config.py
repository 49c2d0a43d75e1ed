"""The folder of ``graynode up``: its configuration, secret and logs, made once and taken up again."""

from __future__ import annotations

import base64
import secrets
import socket
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from graynode.collectors.identity import NoIdentity, Roots, resolve
from graynode.service.config import Config, load
from graynode.service.tokens import Tokens

CLUSTER: Final = "demo"
_NAME: Final = "graynode-up"
"""Signs what is said through the pages that the printed link opens."""
_DRIVER: Final = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Demo:
    """What ``up`` runs with. ``history_wanted`` until the simulated past has been written whole."""

    data: Path
    config_file: Path
    config: Config
    secret: str
    receiver_port: int
    has_gpu: bool
    token: str = ""

    @property
    def nodes(self) -> int:
        """Simulated nodes."""
        return self.config.simulated.nodes

    @property
    def logs(self) -> Path:
        """Where the roles' logs go."""
        return self.data / "logs"

    @property
    def link(self) -> str:
        """Where a browser finds the pages; what stands behind ``#`` is not sent with the request."""
        return f"http://{self.config.serve.listen}/#token={self.token}"

    @property
    def history_done(self) -> Path:
        """There once the simulated past is whole."""
        return self.data / "history.done"

    @property
    def history_wanted(self) -> bool:
        """True where a simulated past has to be written first."""
        return not self.has_gpu and not self.history_done.exists()


def prepare(
    data: Path,
    *,
    nodes: int,
    seed: int,
    faults: Path | None,
    now: datetime | None = None,
    driver: Path = _DRIVER,
    roots: Roots | None = None,
) -> Demo:
    """Make the folder, or take it up; taken up, it keeps the fleet that it was made with.

    Where the kernel has ``driver``, NVIDIA's own file, this is a GPU node: it is collected, and nothing is simulated.
    A machine that nothing identifies (a container without machine-id) gets an id of this folder's own.
    """
    data = data.resolve()
    (data / "logs").mkdir(parents=True, exist_ok=True)
    has_gpu = driver.exists()
    file, secret_file = data / "graynode.toml", data / "webhook.secret"
    if not (data / "history.done").exists() or not file.exists():
        _remove_half_written(data / "lake")
        start = (now or datetime.now(UTC)).replace(microsecond=0)
        secret_file.touch(mode=0o600)
        secret_file.write_text("whsec_" + base64.b64encode(secrets.token_bytes(32)).decode() + "\n")
        text = _toml(data, has_gpu, nodes, seed, faults, start, _free_port())
        file.write_text(text.replace("[agent]\n", f"[agent]\n{_own_id(data, roots)}"))
    _add_serve(file, data)
    config = load(file, env={})
    port = int(config.respond.webhooks["screen"].url.rsplit(":", 1)[1].split("/")[0])
    return Demo(data, file, config, secret_file.read_text().strip(), port, has_gpu, _token(data, config))


def _toml(data: Path, has_gpu: bool, nodes: int, seed: int, faults: Path | None, start: datetime, port: int) -> str:
    sources = ["nvml"] if has_gpu else ["simulated"]
    listed = ", ".join(_quoted(name) for name in ("host", "kernel_log", "infiniband", *sources))
    chosen = f"faults = {_quoted(faults.resolve())}\n" if faults else ""
    return f"""\
# Written by graynode up; the roles it runs read it, and so do `graynode sql` and `graynode explain` with --config.
cluster = "{CLUSTER}"

[agent]
state_dir = {_quoted(data / "state")}
collectors = [{listed}]
metrics_listen = ""

[bus]
kind = "spool"
spool_dir = {_quoted(data / "bus")}

[lake]
path = {_quoted(data / "lake")}

[pipeline]
commit_s = 5
metrics_listen = ""

[detect]
# A real site starts in shadow. This one speaks with the shipped thresholds.
shadow = false
metrics_listen = ""

[respond]
metrics_listen = ""

[respond.webhooks.screen]
url = "http://127.0.0.1:{port}/incidents"
secret_file = {_quoted(data / "webhook.secret")}
least = "ticket"

[simulated]
nodes = {nodes}
seed = {seed}
start = "{start.isoformat()}"
{chosen}"""


def _add_serve(file: Path, data: Path) -> None:
    """The table ``[serve]``, also of a folder that an earlier version has made."""
    text = file.read_text()
    if "\n[serve]\n" not in text:
        tokens = _quoted(data / "serve-tokens.json")
        file.write_text(f'{text}\n[serve]\nlisten = "127.0.0.1:{_free_port()}"\ntokens_file = {tokens}\nsql = true\n')


def _token(data: Path, config: Config) -> str:
    """This folder's own token, so that the link of an earlier run still opens the pages."""
    kept, tokens, now = data / "serve.token", Tokens(config.serve.tokens_file), datetime.now(UTC)
    if kept.exists():
        token = kept.read_text().strip()
        if tokens.find(token, now):
            return token
    if tokens.named(_NAME, now):
        tokens.revoke(_NAME)
    made = tokens.create(_NAME, "act", None, now)
    kept.touch(mode=0o600)
    kept.write_text(made + "\n")
    return made


def _own_id(data: Path, roots: Roots | None) -> str:
    try:
        resolve(cluster=CLUSTER, state_dir=data, roots=roots)
    except NoIdentity:
        return f'node_id = "{uuid.uuid4()}"\n'
    return ""


def _quoted(value: Any) -> str:  # noqa: ANN401 (a path or a name)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _remove_half_written(lake: Path) -> None:
    """A past that was broken off cannot be gone on with: its first half would be there twice."""
    import shutil

    if lake.exists():
        shutil.rmtree(lake)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
