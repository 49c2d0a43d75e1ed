"""The prompt of ``graynode sql``: several lines until a semicolon, history, completion, colours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer

from graynode.pipeline.queries import Queries

_WORDS: Final = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "USING",
    "UNION ALL", "WITH", "AS", "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS NULL", "IS NOT NULL", "COUNT", "SUM",
    "AVG", "MIN", "MAX", "MEDIAN", "QUANTILE_CONT", "INTERVAL", "NOW()", "DATE_TRUNC", "QUALIFY", "DESCRIBE",
    "SUMMARIZE", "EXPLAIN", "DESC", "DISTINCT", "CASE", "WHEN", "THEN", "ELSE", "END",
)  # fmt: skip
_DOTS: Final = (".tables", ".schema", ".help", ".quit")


class SqlCompleter(Completer):
    """Completes keywords, tables, and the columns of the tables that the statement names."""

    def __init__(self, tables: dict[str, tuple[str, ...]]) -> None:
        self._tables = tables

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Words that begin as the one under the cursor."""
        word = document.get_word_before_cursor(WORD=document.text.startswith("."))
        if not word:
            return
        for candidate in self._candidates(document.text):
            if candidate.lower().startswith(word.lower()):
                yield Completion(candidate, -len(word))

    def _candidates(self, text: str) -> list[str]:
        if text.startswith("."):
            return [*_DOTS, *self._tables]
        named = {word.strip("(),;").lower() for word in text.split()}
        columns = {c for table in named & self._tables.keys() for c in self._tables[table]}
        return [*sorted(columns), *self._tables, *_WORDS]


def make_reader(queries: Queries, history_file: Path) -> Callable[[], str]:
    """A function that reads one statement; ``EOFError`` at the end, ``KeyboardInterrupt`` for a new start."""
    session: PromptSession[str] = PromptSession(
        history=_history(history_file),
        completer=SqlCompleter(dict(queries.names())),
        complete_while_typing=False,
        lexer=PygmentsLexer(SqlLexer),
        multiline=Condition(lambda: not _complete(session.default_buffer.text)),
        prompt_continuation="     ...> ",
    )
    return lambda: session.prompt("graynode> ")


def _complete(text: str) -> bool:
    stripped = text.strip()
    return not stripped or stripped.startswith(".") or stripped.endswith(";")


def _history(path: Path) -> History:
    try:
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
