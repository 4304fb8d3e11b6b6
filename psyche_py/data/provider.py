"""Where samples come from. A sample is ``seq_len + 1`` token ids; its number alone says which text it is."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

TokenArray = npt.NDArray[np.int64]


class DataProvider(Protocol):
    """Random access to samples; every replica sees the same sample under the same number."""

    @property
    def seq_len(self) -> int:
        """Tokens that are predicted per sample."""

    @property
    def num_samples(self) -> int:
        """Different samples there are; larger numbers wrap around."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""

    def get_batch(self, start: int, end: int) -> TokenArray:
        """Samples ``start .. end`` (both included) as int64 ``[B, seq_len + 1]``."""
