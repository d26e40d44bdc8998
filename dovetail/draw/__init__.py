"""Draws where programs run: pictures and pages for people, every fact for machines (JSON)."""

from .document import document
from .dot import dot
from .mermaid import mermaid
from .outline import Edge, Outline, Part, outline
from .page import page
from .svg import svg

__all__ = ["Edge", "Outline", "Part", "document", "dot", "mermaid", "outline", "page", "svg"]
