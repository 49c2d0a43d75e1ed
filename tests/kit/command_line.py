"""The real command line: which commands and options there are, and whether a line of words is one. Nothing is run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption

from graynode.service.cli import app


@cache
def root() -> TyperGroup:
    """The ``graynode`` command."""
    made = typer.main.get_command(app)
    assert isinstance(made, TyperGroup)
    return made


def commands() -> set[str]:
    """Every command as it is typed: ``agent``, ``agent release``, …"""
    return set(_below(root(), ""))


def _below(group: TyperGroup, prefix: str) -> Iterator[str]:
    for name, command in group.commands.items():
        yield f"{prefix}{name}"
        if isinstance(command, TyperGroup):
            yield from _below(command, f"{prefix}{name} ")


def problem(words: list[str]) -> str:
    """Why these words (without ``graynode``) are no command; empty where they are."""
    command: Any = root()
    rest = list(words)
    while isinstance(command, TyperGroup):
        wrong, rest = _own_options(command, rest)
        if wrong or not rest:
            return wrong
        if rest == ["--help"]:
            return ""
        found = command.commands.get(rest[0])
        if found is None:
            return f"no command {rest[0]!r}" if command is root() else f"no command {rest[0]!r} below {command.name}"
        command, rest = found, rest[1:]
    try:
        command.make_context(command.name, rest)
    except typer.Exit:
        return ""
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _own_options(group: TyperGroup, words: list[str]) -> tuple[str, list[str]]:
    """What is wrong with a group's own options, and the words behind them."""
    takes_value = {
        name: not p.is_flag for p in group.params if isinstance(p, TyperOption) for name in (*p.opts, *p.secondary_opts)
    }
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--help":
        name, _, value = rest.pop(0).partition("=")
        if name not in takes_value:
            return f"no option {name}", []
        if takes_value[name] and not value:
            del rest[:1]
    return "", rest


def words_of(line: str) -> list[str]:
    """A line of a shell up to a pipe, a redirection, a comment or the next command; without ``graynode``."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;<>"):
            break
        words.append(word)
    return words[1:]
