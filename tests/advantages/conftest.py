"""The enumeration of test_expectation.py is importable by name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
