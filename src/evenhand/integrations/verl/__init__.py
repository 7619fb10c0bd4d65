"""verl: groups that know what they share, inside its V1 trainer.

`loop.EvenhandLoop` is an agent loop with a desk before each rollout's tools; a YAML file names it
and says what is shared. `plugin` gives evenhand's advantages their names at `import verl`. Nothing
here but `loop` and `plugin` imports verl.
"""

from evenhand.integrations.functions import declare
from evenhand.integrations.verl.contract import TRIED, check
from evenhand.integrations.verl.dataset import rows, with_groups
from evenhand.integrations.verl.here import desk
from evenhand.integrations.verl.seats import seat_of
from evenhand.integrations.verl.settings import Settings

__all__ = ["TRIED", "Settings", "check", "declare", "desk", "rows", "seat_of", "with_groups"]
