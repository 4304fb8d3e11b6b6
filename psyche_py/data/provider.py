"""Where samples come from. A sample is ``seq_len + 1`` token ids; its number alone says which text it is."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class DataProvider(Protocol):
    """Random access to samples; every replica sees the same sample under the same number."""

    @property
    def num_samples(self) -> int:
        """Different samples there are; larger numbers wrap around."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""

    def get_batch(self, start: int, end: int) -> np.ndarray:
        """Samples ``start .. end`` (both included) as int64 ``[B, seq_len + 1]``."""
