"""Graphs of what runs where: Mermaid, DOT and SVG."""
