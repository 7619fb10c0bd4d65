"""Toys of the training tests are importable by name, here and in subprocesses."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
