"""Compiles a diffusion model once, so that it runs on whatever devices you have."""

from pathlib import Path

# In a checkout the three folders stand beside this one and not inside it.
if not (Path(__file__).parent / "compiler").is_dir():
    __path__.append(str(Path(__file__).parent.parent))
