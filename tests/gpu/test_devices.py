"""What must hold on the accelerators of this machine: on the first, and on all together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from testbed.gpu import accelerators, groups
from testbed.gpu_checks import CHECKS
from testbed.gpu_mode_checks import MODE_CHECKS, NotAsked
from testbed.gpu_thread_checks import THREAD_CHECKS

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("cards", groups(accelerators()), ids=" and ".join)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_holds(check: Callable[[Sequence[str]], str], cards: Sequence[str]) -> None:
    print(check(cards))


@pytest.mark.parametrize("cards", groups(accelerators()), ids=" and ".join)
@pytest.mark.parametrize("check", [*MODE_CHECKS, *THREAD_CHECKS], ids=lambda check: check.__name__)
def test_it_holds_where_devices_compute_together(check: Callable[[Sequence[str]], str], cards: Sequence[str]) -> None:
    try:
        print(check(cards))
    except NotAsked as reason:
        pytest.skip(str(reason))
