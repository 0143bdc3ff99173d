"""The pages say what the package does: options, units and figures are those of the code and of the tables."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import hlo_opt.jax as ho
import pytest
from hlo_opt import _native
from hlo_opt.arguments import UNITS
from hlo_opt.jax import switch
from hlo_opt.jax.zero import CHOICES
from training_scripts import SCRIPTS

PACKAGE = Path(__file__).parent.parent
README = (PACKAGE / "README.md").read_text(encoding="utf-8")
COMPARED = (PACKAGE / "docs/compared.md").read_text(encoding="utf-8")
PLUGIN = (PACKAGE.parent / "hlo-pjrt/README.md").read_text(encoding="utf-8")

#: The columns of the first table of `compared.md`.
GSPMD_STATE, GSPMD_WEIGHTS = "GSPMD, optimizer state", "GSPMD, weights too"


def rows(page: str, first: str) -> list[list[str]]:
    """The rows of the table whose first cell of the header is this."""
    table = page.split(f"| {first} |", 1)[1].split("\n\n", 1)[0].splitlines()
    header = [first, *(cell.strip() for cell in table[0].strip("| ").split("|"))]
    return [header, *([cell.strip() for cell in line.strip("| ").split(" | ")] for line in table[2:])]


def plain(text: str) -> str:
    """A text with its lines joined."""
    return " ".join(text.split())


def test_each_option_of_zero_has_a_row():
    listed = [row[0].strip("`") for row in rows(README, "option")[1:]]
    assert listed == [name for name in inspect.signature(ho.zero).parameters if name != "step"]
    cells = {row[0].strip("`"): row[1] for row in rows(README, "option")[1:]}
    assert re.findall(r"`([^`]+)`", cells["shard"]) == [repr(choice).replace("'", '"') for choice in CHOICES]
    machines = re.findall(r'`"(\w+)"`', cells["machine"])
    assert machines == [*_native.machine_names(), "auto"]


def test_units_are_those_of_the_code():
    assert "kB, MB, GB and TB are powers of 1,000, and KiB, MiB, GiB and TiB powers of 1,024" in plain(README)
    assert {*UNITS} == {"B", "KB", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"}


@pytest.mark.parametrize("page", [README, PLUGIN])
def test_words_of_the_switch_are_those_of_the_code(page):
    assert all(f"`{word}`" in page or f"={word}`" in page for word in ("off", "0", "false", "no"))
    for word in ("on", "1", "true", "yes"):
        assert f"`{word}`" in page and switch._is_on(word)


def test_makers_that_the_switch_turns_off_are_listed():
    assert "turns `zero`, `partition`, `auto`, `enable` and" in plain(README)


def figure(cell: str) -> tuple[float, float]:
    """MB and µs of a cell."""
    size, time = re.fullmatch(r"([\d.]+) MB, (?:≥ )?(\d+) µs", cell).groups()
    return float(size), float(time)


def compared() -> dict[str, dict[str, tuple[float, float]]]:
    header, *found = rows(COMPARED, "script")
    return {row[0]: dict(zip(header[1:], map(figure, row[1:]), strict=True)) for row in found}


def test_every_script_is_compared():
    assert list(compared()) == list(SCRIPTS)


def is_as_good(script: dict) -> bool:
    """Whether GSPMD with the optimizer's state in shards takes as much memory and time as zero."""
    (memory, time), (own, own_time) = script[GSPMD_STATE], script['zero, shard="optimizer"']
    return abs(memory - own) <= 0.1 and abs(time - own_time) <= 0.03 * own_time


def test_what_the_page_counts_is_in_its_table():
    scripts = compared()
    n_as_good = sum(map(is_as_good, scripts.values()))
    said = f"in {n_as_good} of the {len(scripts)} scripts: memory within 0.1 MB, the same bytes sent, time within 3 %"
    assert said in plain(COMPARED)
    less = {
        name: round(script['zero, shard="parameters"'][0] - script[GSPMD_WEIGHTS][0], 1)
        for name, script in scripts.items()
        if 0 < script['zero, shard="parameters"'][0] - script[GSPMD_WEIGHTS][0] <= 1.5
    }
    names = [f"`{name}`" for name in less]
    listed = f"{', '.join(names[:-1])} and {names[-1]} (by {min(less.values())} to {max(less.values())} MB)"
    assert f"takes a little less memory** in {listed}" in plain(COMPARED)
    fastest = [name for name, script in scripts.items() if min(script, key=lambda way: script[way][1]) == "as it is"]
    assert "**Leaving the step as it is** is predicted to be fastest for " in plain(COMPARED)
    said = plain(COMPARED).split("is predicted to be fastest for ")[1].split(",")[0]
    assert said == (" and ".join(f"`{name}`" for name in fastest) or "none of them")


def test_figures_in_sentences_are_in_the_tables():
    tables, sentences = [], []
    for line in COMPARED.splitlines():
        (tables if line.startswith("|") else sentences).append(line)
    known = set(re.findall(r"\d+(?:\.\d+)?", " ".join(tables)))
    text = re.sub(r"\(by [\d.]+ to [\d.]+ MB\)|within [\d.]+ (?:MB|%)", "", " ".join(sentences))
    lists = re.findall(r"((?:\d+(?:\.\d+)?(?:, not |, | and | or )?)+) (?:MB|µs)", text)
    named = {number for one in lists for number in re.findall(r"\d+(?:\.\d+)?", one)}
    assert named, "the page has figures"
    assert named <= known, f"in no table: {sorted(named - known)}"
