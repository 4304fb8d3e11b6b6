"""Makes tests/support importable here: importlib mode puts no test directory on sys.path."""

import sys
from pathlib import Path

_SUPPORT = str(Path(__file__).resolve().parents[1] / "support")
if _SUPPORT not in sys.path:
    sys.path.insert(0, _SUPPORT)

from borsh_coder import stand_in_for_anchorpy  # noqa: E402

stand_in_for_anchorpy()
