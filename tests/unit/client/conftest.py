"""Makes tests/support importable here: importlib mode puts no test directory on sys.path."""

import sys
from pathlib import Path

_SUPPORT = str(Path(__file__).resolve().parents[2] / "support")
if _SUPPORT not in sys.path:
    sys.path.insert(0, _SUPPORT)
