"""The toy environment of the training tests, slowed down so that it can be killed in the middle."""

import os
import time
from pathlib import Path

from training_toys import ColourEnvironment, Colours


class SlowEnvironment(ColourEnvironment):
    def reset(self, task):
        super().reset(task)
        time.sleep(0.004)


class Slow(Colours):
    """Also notes how many threads its process may use."""

    environment = SlowEnvironment

    def __init__(self):
        told = [os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")]
        with Path(os.environ["STUDY_TOYS_NOTE"]).open("a") as note:
            note.write(" ".join(told) + "\n")
