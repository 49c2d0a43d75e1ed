"""``graynode serve`` over TLS, with a certificate that the ``openssl`` program made for itself."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from graynode.service import serve
from graynode.service.config import ConfigError, parse
from graynode.service.config_tables import Serve
from graynode.service.tokens import Tokens

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl program")
NAME = "graynode.example.org"


def made(folder: Path, name: str, *more: str) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2",
               "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME},IP:127.0.0.1", "-keyout", str(key),
               "-out", str(certificate), *(more or ("-nodes",))]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return made(tmp_path_factory.mktemp("tls"), "own")


@pytest.fixture
def site(tmp_path: Path, pair: tuple[Path, Path]) -> Iterator[tuple[str, str]]:
    """Address and token of a server that speaks TLS."""
    tokens = tmp_path / "tokens.json"
    config = parse(
        {"cluster": "test", "lake": {"path": str(tmp_path / "lake")}, "bus": {"spool_dir": str(tmp_path / "bus")},
         "serve": {"listen": "127.0.0.1:0", "hosts": [NAME], "tokens_file": str(tokens), "cert_file": str(pair[0]),
                   "key_file": str(pair[1])}}, "test",
    )  # fmt: skip
    token = Tokens(tokens).create("tls", "read", None, datetime.now(UTC))
    stop, there, ports = threading.Event(), threading.Event(), list[int]()

    def ready(port: int) -> None:
        ports.append(port)
        there.set()

    thread = threading.Thread(target=serve.run, args=(config, stop), kwargs={"ready": ready})
    thread.start()
    try:
        assert there.wait(60)
        yield f"https://127.0.0.1:{ports[0]}", token
    finally:
        stop.set()
        thread.join(30)


def test_a_browser_signs_in_over_tls(site: tuple[str, str], pair: tuple[Path, Path]) -> None:
    """Verified against the certificate; cookies go over TLS only; the site's name is pinned to TLS, loopback not."""
    address, token = site
    with httpx.Client(base_url=address, verify=ssl.create_default_context(cafile=str(pair[0])), timeout=30) as client:
        signed = client.post("/session", json={"token": token}, headers={"Host": NAME})
        assert signed.status_code == 200, signed.text
        cookies = signed.headers.get_list("set-cookie")
        assert len(cookies) == 2
        assert all("Secure" in cookie for cookie in cookies)
        assert signed.headers["strict-transport-security"] == "max-age=31536000"
        assert "strict-transport-security" not in client.get("/healthz").headers
    with httpx.Client(base_url=address, timeout=30) as client, pytest.raises(httpx.ConnectError, match="CERTIFICATE"):
        client.get("/healthz")


def _wrong(folder: Path, pair: tuple[Path, Path], what: str) -> tuple[Path, Path]:
    certificate, key = pair
    broken = folder / "broken.pem"
    if what == "key of another":
        return certificate, made(folder, "other")[1]
    if what == "swapped":
        return key, certificate
    if what == "with a password":
        return made(folder, "locked", "-passout", "pass:secret")
    if what == "empty":
        broken.touch()
        return broken, key
    broken.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    return broken, key


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("key of another", r"serve.key_file = \S*other.key: is not the key of serve.cert_file = \S*own.pem"),
        ("swapped", r"serve.cert_file = \S*own.key: holds no certificate in PEM"),
        ("empty", "holds no certificate in PEM"),
        ("with a password", "cannot be used: "),
        ("cut off", "cannot be used: "),
    ],
)
def test_a_wrong_pair_is_said_before_anything_starts(
    what: str, said: str, tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    """Which key, which file, what is wrong with it; and nobody is asked for a password."""
    certificate, key = _wrong(tmp_path, pair, what)
    terms: dict[str, Any] = {"listen": "0.0.0.0:9405", "cert_file": certificate, "key_file": key}
    with pytest.raises(ConfigError, match=said):
        serve.check(Serve(**terms))


def test_a_right_pair_may_listen_everywhere(pair: tuple[Path, Path]) -> None:
    """Beyond loopback too."""
    serve.check(Serve(listen="0.0.0.0:9405", cert_file=pair[0], key_file=pair[1]))
