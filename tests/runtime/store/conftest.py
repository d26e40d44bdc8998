from __future__ import annotations

import pytest
import torch
from torch import nn

from .small_net import small_net


@pytest.fixture
def real() -> nn.Sequential:
    torch.manual_seed(0)
    return small_net()
