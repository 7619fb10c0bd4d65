"""Twenty-two families of generated tasks; each works its end out in Python, not by its gold."""

from __future__ import annotations

from collections.abc import Callable

from evenhand.draws import keyed_stream
from evenhand.environments.shell import changes, questions
from evenhand.environments.shell.material import Rng
from evenhand.environments.shell.scenes import Scene

FAMILIES: dict[str, Callable[[Rng], Scene]] = {
    each.__name__: each
    for each in (
        questions.count_files,
        questions.largest_file,
        questions.total_bytes,
        questions.count_level,
        questions.noisiest_service,
        questions.distinct_users,
        questions.csv_sum,
        questions.csv_best,
        questions.commonest_word,
        questions.broken_links,
        changes.edit_config,
        changes.scripts_run,
        changes.close_open_files,
        changes.rename_ending,
        changes.dedupe_lines,
        changes.merge_lists,
        changes.replace_word,
        changes.delete_ending,
        changes.gather_files,
        changes.point_link,
        changes.copy_lines,
        changes.split_table,
    )
}


def scene(family: str, seed: int) -> Scene:
    """A task of a family, in which something is to be done; equal on every machine."""
    stream = keyed_stream(0, "shell tasks", family, seed)
    while (made := FAMILIES[family](stream)).idle:
        pass
    return made
