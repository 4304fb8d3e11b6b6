"""One torch thread, so that these tests leave the machine to others and repeat exactly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from psyche_py.distro import jit


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["kernels", "torch alone"])
def each_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything twice: through the compiled kernels, and as where numba is missing."""
    if request.param == "kernels":
        assert jit.load_kernels("fold_kernels") is not None
    else:
        monkeypatch.setattr(jit, "load_kernels", lambda name: None)
