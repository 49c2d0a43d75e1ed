"""The status page as text: jinja2 templates, style sheets and scripts, and what fills them; no HTTP, no lake.

``render`` makes a page of a template and plain rows. Everything that comes from machines or people is escaped by the
template engine and stripped of control characters; nothing is marked safe except what this package itself has made.
"""

from graynode.dashboards.pages.environment import render
from graynode.dashboards.pages.statics import STATICS, Static

__all__ = ["STATICS", "Static", "render"]
