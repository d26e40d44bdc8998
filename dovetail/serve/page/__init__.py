"""The page that a person opens: its HTML, style and script, and what it is told."""
