"""The loopback receiver believes signatures only."""

import base64
import json
from datetime import UTC, datetime

import httpx
from standardwebhooks.webhooks import Webhook

from graynode.service.receiver import Receiver

SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()


def post(url: str, body: bytes, secret: str) -> int:
    now = datetime.now(UTC)
    signature = Webhook(secret).sign("id", now, body.decode("utf-8", "replace"))
    headers = {"webhook-id": "id", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}
    return httpx.post(url, content=body, headers=headers).status_code


def test_signed_payload_is_kept_and_others_refused() -> None:
    """A right signature gives 204 and the incident; a wrong one, or a body that is no payload, 401 and nothing."""
    receiver = Receiver(SECRET)
    receiver.start()
    try:
        other = "whsec_" + base64.b64encode(b"x" * 24).decode()
        body = json.dumps({"type": "incident.opened", "data": {"incident_id": "i"}}).encode()
        assert post(receiver.url, body, SECRET) == 204
        assert post(receiver.url, body, other) == 401
        assert post(receiver.url, b"[]", SECRET) == 401
        assert post(receiver.url, b"\xff", SECRET) == 401
        assert receiver.incidents.get_nowait() == {"incident_id": "i"}
        assert receiver.incidents.empty()
        assert receiver.refused == 3
    finally:
        receiver.close()
