"""The weekly report as a document: parts, tables with the SQL that made them, pictures; as HTML, Markdown and JSON."""
