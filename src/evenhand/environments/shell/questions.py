"""Generated tasks that ask about the folder."""

from __future__ import annotations

from collections import Counter

from evenhand.environments.shell.folder import Entry, file
from evenhand.environments.shell.material import (
    ENDINGS,
    LEVELS,
    PLACES,
    REGIONS,
    SERVICES,
    WORDS,
    Rng,
    between,
    files,
    log,
    log_text,
    one,
    sales,
    sales_text,
    some,
    text,
)
from evenhand.environments.shell.scenes import Scene, asked


def count_files(rng: Rng) -> Scene:
    top, ending = one(rng, PLACES), one(rng, ENDINGS)
    tree = files(rng, top, between(rng, 12, 28))
    return asked(
        tree,
        f"How many files under {top}, at any depth, end in .{ending}?",
        f"find {top} -type f -name '*.{ending}' | wc -l",
        sum(path.endswith(f".{ending}") for path in tree),
    )


def largest_file(rng: Rng) -> Scene:
    top = one(rng, PLACES)
    tree = files(rng, top, between(rng, 8, 20))
    return asked(
        tree,
        f"Which file under {top} is the largest? Answer with its path, beginning with {top}/.",
        f"find {top} -type f -printf '%s %p\\n' | sort -rn | head -n 1 | cut -d' ' -f2-",
        max(tree, key=lambda path: len(tree[path].data)),
    )


def total_bytes(rng: Rng) -> Scene:
    top, ending = one(rng, PLACES), one(rng, ENDINGS)
    tree = files(rng, top, between(rng, 10, 22))
    return asked(
        tree,
        f"How many bytes do the .{ending} files under {top} hold together?",
        f"find {top} -type f -name '*.{ending}' -printf '%s\\n'"
        " | awk '{s+=$1} END {print s+0}'",
        sum(len(entry.data) for path, entry in tree.items() if path.endswith(f".{ending}")),
    )


def count_level(rng: Rng) -> Scene:
    lines, level, service = log(rng), one(rng, LEVELS), one(rng, SERVICES)
    return asked(
        {"logs/app.log": file(log_text(lines)), "logs/old.log": file(log_text(log(rng)))},
        f"How many lines of level {level} did the service {service} write to logs/app.log?",
        f"grep -c ' {level} {service}:' logs/app.log",
        sum(line[:2] == (level, service) for line in lines),
    )


def noisiest_service(rng: Rng) -> Scene:
    while True:
        lines = log(rng)
        top = Counter(line[1] for line in lines if line[0] == "ERROR").most_common(2)
        if len(top) == 2 and top[0][1] > top[1][1]:
            break
    return asked(
        {"logs/app.log": file(log_text(lines))},
        "Which service wrote the most ERROR lines to logs/app.log? Answer with its name.",
        "awk '$2 == \"ERROR\" {print $3}' logs/app.log | sort | uniq -c | sort -rn | head -n 1"
        " | awk '{print $2}' | tr -d :",
        top[0][0],
    )


def distinct_users(rng: Rng) -> Scene:
    lines, service = log(rng), one(rng, SERVICES)
    return asked(
        {"logs/app.log": file(log_text(lines))},
        f"How many different users does the service {service} name in logs/app.log?",
        f"grep ' {service}: ' logs/app.log | awk '{{print $NF}}' | sort -u | wc -l",
        len({line[2] for line in lines if line[1] == service}),
    )


def csv_sum(rng: Rng) -> Scene:
    rows, region = sales(rng), one(rng, REGIONS)
    return asked(
        {"sales.csv": file(sales_text(rows))},
        f"What is the sum of the column amount in sales.csv for the region {region}?",
        f"awk -F, '$1 == \"{region}\" {{s += $3}} END {{print s+0}}' sales.csv",
        sum(row[2] for row in rows if row[0] == region),
    )


def csv_best(rng: Rng) -> Scene:
    rows = sales(rng)
    region = one(rng, sorted({row[0] for row in rows}))
    return asked(
        {"sales.csv": file(sales_text(rows))},
        f"Which product has the largest single amount in the region {region} of sales.csv?",
        f"grep '^{region},' sales.csv | sort -t, -k3,3nr | head -n 1 | cut -d, -f2",
        max((row for row in rows if row[0] == region), key=lambda row: row[2])[1],
    )


def commonest_word(rng: Rng) -> Scene:
    while True:
        words = text(rng, 20, 40)
        top = Counter(words.split()).most_common(2)
        if top[0][1] > top[1][1]:
            break
    return asked(
        {"notes/story.txt": file(words)},
        "Which word occurs most often in notes/story.txt?",
        "tr -s ' ' '\\n' < notes/story.txt | sort | uniq -c | sort -rn | head -n 1"
        " | awk '{print $2}'",
        top[0][0],
    )


def broken_links(rng: Rng) -> Scene:
    held = files(rng, "data", 8)
    links: dict[str, Entry] = {}
    broken = 0
    for name in some(rng, WORDS, between(rng, 5, 12)):
        whole = rng.random() < 0.5
        broken += not whole
        target = f"../{one(rng, sorted(held))}" if whole else f"../data/{name}.gone"
        links[f"links/{name}"] = Entry("l", target.encode(), 0o777)
    tree = {**held, **links}
    return asked(
        tree,
        "How many symbolic links in the folder links point to something that does not exist?",
        "find links -xtype l | wc -l",
        broken,
    )
