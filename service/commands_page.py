"""Writes ``docs/commands.md`` from the command line: ``python -m graynode.service.commands_page [--check] FILE``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from graynode.service.cli import app

_HEAD: Final = """\
# Commands

Written from the command line itself (`make docs`); `graynode COMMAND --help` shows the same. `-c`, `--config` names the
configuration file, default `/etc/graynode/graynode.toml`. Exit codes: 0 well, 1 something is not, 2 wrong use or
configuration, with one line that says what.
"""


def page() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)  # noqa: S101 (an app of several commands is a group; narrows the type)
    return _HEAD + "".join(_below(root, "graynode"))


def _below(group: TyperGroup, prefix: str) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        whole = f"{prefix} {name}"
        if not isinstance(command, TyperGroup) or command.invoke_without_command:
            yield _section(whole, command)
        if isinstance(command, TyperGroup):
            yield from _below(command, whole)


def _section(name: str, command: Any) -> str:  # noqa: ANN401 (typer's own class of commands is private)
    context = command.make_context(name, [], resilient_parsing=True)
    arguments = [p for p in command.params if isinstance(p, TyperArgument)]
    options = [p for p in command.params if isinstance(p, TyperOption) and "--config" not in p.opts and not p.hidden]
    shown = " ".join([name, *(_argument(p) for p in arguments)])
    lines = [f"\n## {name}\n\n{' '.join((command.help or '').split())}\n\n`{shown}`\n"]
    rows = [f"| `{_argument(p)}` | | {_words(p)} |" for p in arguments]
    rows += [f"| {_names(p)} | {_type(p, context)} | {_words(p)} |" for p in options]
    if rows:
        lines.append("\n| | takes | |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n")
    return "".join(lines)


def _argument(parameter: TyperArgument) -> str:
    name = (parameter.name or "").upper()
    return name if parameter.required else f"[{name}]"


def _names(option: TyperOption) -> str:
    return ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def _type(option: TyperOption, context: Any) -> str:  # noqa: ANN401 (typer's own)
    return "" if option.is_flag else str(option.display_type(context)).strip("<>").replace("|", ", ")


def _words(parameter: Any) -> str:  # noqa: ANN401 (an argument's or an option's)
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
    default = parameter.default
    shown = default not in (None, False, "", ()) and not callable(default)
    return text + (f" Default `{getattr(default, 'value', default)}`." if shown else "")


def main(words: list[str]) -> int:
    """Write the page, or with ``--check`` say whether the file is what would be written."""
    check, path = "--check" in words, Path(words[-1])
    if check:
        same = path.read_text(encoding="utf-8") == page()
        if not same:
            print(f"{path} is not what the command line says; make docs", file=sys.stderr)
        return 0 if same else 1
    path.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
