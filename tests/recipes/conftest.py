"""The runner of the training tests is importable by name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "training"))
