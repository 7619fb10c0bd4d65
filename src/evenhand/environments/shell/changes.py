"""Generated tasks that change the folder."""

from __future__ import annotations

from evenhand.environments.shell.folder import Entry, file
from evenhand.environments.shell.material import (
    ENDINGS,
    PLACES,
    REGIONS,
    SERVICES,
    WORDS,
    Rng,
    between,
    files,
    one,
    some,
    text,
)
from evenhand.environments.shell.scenes import Scene, changed


def edit_config(rng: Rng) -> Scene:
    keys = some(rng, ("port", "workers", "timeout", "retries", "cache_mb", "max_users"), 5)
    values = {key: between(rng, 10, 9999) for key in keys}
    key, value = one(rng, keys), between(rng, 10_000, 20_000)
    path = f"conf/{one(rng, SERVICES)}.ini"

    def ini(held: dict[str, int]) -> Entry:
        lines = [f"{k}={held[k]}\nold_{k}={values[k] + 1}\n" for k in keys]
        return file("[main]\n" + "".join(lines))

    tree = {path: ini(values), "conf/readme.txt": file(text(rng))}
    return changed(
        tree,
        f"In {path} set {key} to {value}; change nothing else.",
        f"sed -i 's/^{key}=.*/{key}={value}/' {path}",
        {**tree, path: ini({**values, key: value})},
    )


def scripts_run(rng: Rng) -> Scene:
    tree = {
        path: Entry("f", entry.data, one(rng, (0o644, 0o600, 0o755)))
        for path, entry in files(rng, "tools", between(rng, 8, 16), ("sh", "txt", "py")).items()
    }
    return changed(
        tree,
        "Give every .sh file under tools the permissions 755; leave all others alone.",
        "find tools -type f -name '*.sh' -exec chmod 755 {} +",
        {p: Entry("f", e.data, 0o755 if p.endswith(".sh") else e.mode) for p, e in tree.items()},
    )


def close_open_files(rng: Rng) -> Scene:
    tree = {
        path: Entry("f", entry.data, one(rng, (0o644, 0o666, 0o622, 0o640)))
        for path, entry in files(rng, "shared", between(rng, 8, 16)).items()
    }
    return changed(
        tree,
        "Give every file under shared that others may write the permissions 640; leave the rest"
        " alone.",
        "find shared -type f -perm -o=w -exec chmod 640 {} +",
        {p: Entry("f", e.data, 0o640 if e.mode & 2 else e.mode) for p, e in tree.items()},
    )


def rename_ending(rng: Rng) -> Scene:
    top = one(rng, PLACES)
    old, new = some(rng, ENDINGS, 2)
    tree = files(rng, top, between(rng, 8, 18), [e for e in ENDINGS if e != new])
    return changed(
        tree,
        f"Rename every .{old} file under {top}, at any depth, so that it ends in .{new} instead.",
        f"find {top} -type f -name '*.{old}' -exec sh -c 'mv \"$1\" \"${{1%.{old}}}.{new}\"' _ {{}}"
        " \\;",
        {p.removesuffix(old) + new if p.endswith(f".{old}") else p: e for p, e in tree.items()},
    )


def dedupe_lines(rng: Rng) -> Scene:
    lines = [one(rng, WORDS) for _ in range(between(rng, 20, 50))]
    tree = {"lists/names.txt": file("\n".join(lines) + "\n"), "lists/other.txt": file(text(rng))}
    kept = file("\n".join(dict.fromkeys(lines)) + "\n")
    return changed(
        tree,
        "Remove repeated lines from lists/names.txt: keep the first of each, in the same order.",
        "awk '!seen[$0]++' lists/names.txt > /tmp/kept && cp /tmp/kept lists/names.txt",
        {**tree, "lists/names.txt": kept},
    )


def merge_lists(rng: Rng) -> Scene:
    lists = {f"lists/{name}.txt": some(rng, WORDS, between(rng, 4, 12)) for name in REGIONS}
    tree = {path: file("\n".join(lines) + "\n") for path, lines in lists.items()}
    every = sorted({line for lines in lists.values() for line in lines})
    return changed(
        tree,
        "Write all lines of the .txt files in lists to all.txt, sorted, each line once.",
        "sort -u lists/*.txt > all.txt",
        {**tree, "all.txt": file("\n".join(every) + "\n")},
    )


def replace_word(rng: Rng) -> Scene:
    top = one(rng, PLACES)
    old, new = one(rng, WORDS), f"{one(rng, WORDS)}{between(rng, 1, 99)}"
    tree = files(rng, top, between(rng, 6, 14))
    return changed(
        tree,
        f"Replace the word {old} by {new} everywhere in the files under {top}.",
        f"grep -rlZ {old} {top} | xargs -0 -r sed -i 's/{old}/{new}/g'",
        {p: file(e.data.decode().replace(old, new)) for p, e in tree.items()},
    )


def delete_ending(rng: Rng) -> Scene:
    top, ending = one(rng, PLACES), one(rng, ENDINGS)
    tree = files(rng, top, between(rng, 10, 20))
    return changed(
        tree,
        f"Delete every .{ending} file under {top}; keep the folders, even if they become empty.",
        f"find {top} -type f -name '*.{ending}' -delete",
        {p: e for p, e in tree.items() if not p.endswith(f".{ending}")},
    )


def gather_files(rng: Rng) -> Scene:
    top, ending = one(rng, PLACES), one(rng, ENDINGS)
    while True:
        tree = files(rng, top, between(rng, 8, 16))
        names = [p.rpartition("/")[2] for p in tree if p.endswith(f".{ending}")]
        if names and len(set(names)) == len(names):
            break
    moved = {
        f"collected/{p.rpartition('/')[2]}" if p.endswith(f".{ending}") else p: e
        for p, e in tree.items()
    }
    return changed(
        tree,
        f"Move every .{ending} file under {top} into a new folder collected.",
        f"mkdir collected && find {top} -type f -name '*.{ending}' -exec mv -t collected {{}} +",
        moved,
    )


def point_link(rng: Rng) -> Scene:
    versions = [f"v{n}" for n in some(rng, range(1, 40), between(rng, 4, 9))]
    tree = {f"releases/{v}/app.txt": file(text(rng)) for v in versions}
    newest = max(versions, key=lambda v: int(v[1:]))
    old = one(rng, [v for v in versions if v != newest])
    start = {**tree, "current": Entry("l", f"releases/{old}".encode(), 0o777)}
    return changed(
        start,
        "The link current must point to releases/VERSION with the highest version number (v9 is"
        " below v10). Mend it.",
        "ln -sfn releases/$(ls releases | sort -V | tail -n 1) current",
        {**start, "current": Entry("l", f"releases/{newest}".encode(), 0o777)},
    )


def copy_lines(rng: Rng) -> Scene:
    lines = [" ".join(some(rng, WORDS, 4)) for _ in range(between(rng, 30, 60))]
    first = between(rng, 3, 15)
    last = first + between(rng, 3, 12)
    tree = {"notes/log.txt": file("\n".join(lines) + "\n")}
    return changed(
        tree,
        f"Write lines {first} to {last} of notes/log.txt, both included, to part.txt.",
        f"sed -n '{first},{last}p' notes/log.txt > part.txt",
        {**tree, "part.txt": file("\n".join(lines[first - 1 : last]) + "\n")},
    )


def split_table(rng: Rng) -> Scene:
    rows = [(f"{one(rng, WORDS)}{n}", one(rng, REGIONS)) for n in range(between(rng, 12, 30))]
    tree = {"people.csv": file("".join(f"{a},{b}\n" for a, b in rows))}
    made = {
        f"teams/{team}.txt": file("".join(f"{a}\n" for a, b in rows if b == team))
        for team in {b for _, b in rows}
    }
    return changed(
        tree,
        "people.csv holds lines name,team. Write the names of each team to teams/TEAM.txt, one a"
        " line, in the same order.",
        'mkdir teams && awk -F, \'{print $1 > ("teams/" $2 ".txt")}\' people.csv',
        {**tree, **made},
    )
