"""The tests here are collected only where there is an accelerator; `pytest tests/gpu -m gpu` runs them."""

from __future__ import annotations

from dovetail.compiler.devices.rig import Rig

collect_ignore_glob = [] if any(not one.is_host for one in Rig.detect(())) else ["test_*.py"]
