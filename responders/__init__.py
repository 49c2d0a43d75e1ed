"""Who can be told. Adding one: its module, one line here, its test, and its making in ``service.respond_make``.

The list holds names, not classes, so that importing it imports no responder and none of their libraries.
"""

from __future__ import annotations

from typing import Final

RESPONDERS: Final[tuple[tuple[str, str], ...]] = (
    ("webhook", "graynode.responders.webhook:Webhook"),
    ("alertmanager", "graynode.responders.alertmanager:Alertmanager"),
    ("chat", "graynode.responders.chat:Chat"),
)
"""Name in the configuration and in table ``action``, and where its class is."""
