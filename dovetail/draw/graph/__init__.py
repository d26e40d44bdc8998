"""Graphs of what runs where: Mermaid, DOT, SVG and GraphML."""
