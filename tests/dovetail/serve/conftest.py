"""The tests of the server are collected where its extra is installed, and what the tests ask it with."""

from __future__ import annotations

import importlib.util

NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client", "httpx2", "openai")

collect_ignore_glob = [] if all(map(importlib.util.find_spec, NEEDED)) else ["test_*.py"]
