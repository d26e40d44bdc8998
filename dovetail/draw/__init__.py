"""Draws where programs run: a graph of segments for people (Mermaid, DOT), every fact for machines (JSON)."""

from .document import document
from .dot import dot
from .mermaid import mermaid
from .outline import Edge, Outline, Part, outline

__all__ = ["Edge", "Outline", "Part", "document", "dot", "mermaid", "outline"]
