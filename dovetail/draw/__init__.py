"""Draws where programs run: pictures and pages for people, every fact for machines (JSON)."""

from .document import document
from .graph.dot import dot
from .graph.graphml import as_networkx, graphml
from .graph.mermaid import mermaid
from .graph.svg import svg
from .outline.outline import Edge, Outline, Part, outline
from .page.page import page

__all__ = ["Edge", "Outline", "Part", "as_networkx", "document", "dot", "graphml", "mermaid", "outline", "page", "svg"]
