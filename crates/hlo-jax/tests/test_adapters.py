"""Scripts in the style of public training codes, with and without the line of ``ho.zero``: the same training, their own
evaluation, logging and checkpoints, and the optimizer's state in shards."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import hlo_opt.jax as ho
import jax
import numpy as np
import pytest
from adapters import run as scripts
from flax import nnx
from hlo_opt.jax.words import size
from jax.experimental.compilation_cache import compilation_cache
from test_processes import free_port
from training import check_alike, distance, limit, perturbed

#: Leaves below this may stay whole.
LEAF_BYTES = 16 * 1024
N_DEVICES, N_STEPS, SAVED = 8, 20, 12

#: What the log says of the program instead of the training.
OF_THE_PROGRAM = ("flops_lowered",)

NAMES = list(scripts.OPTIMIZER)

PAGE = (pathlib.Path(__file__).parent.parent / "docs" / "adopted.md").read_text(encoding="utf-8")


class Trained:
    """A run of a script: its log, its last state by paths, and its step."""

    def __init__(self, name: str, own: bool, folder: pathlib.Path, nudge: bool = False) -> None:
        module = scripts.load(name, own)
        if nudge:
            made = module.init_state
            module.init_state = lambda *args: nudged(made(*args))
        self.name, self.folder = name, folder
        state, self.step = module.train_and_evaluate(module.Config(str(folder), N_DEVICES))
        self.arrays = scripts.arrays(state)
        self.optimizer = scripts.arrays(scripts.OPTIMIZER[name](state))
        of_optimizer = {id(leaf) for leaf in self.optimizer.values()}
        self.rest = [leaf for leaf in self.arrays.values() if id(leaf) not in of_optimizer]
        self.rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]

    def column(self, name: str) -> np.ndarray:
        return np.array([row[name] for row in self.rows if name in row])

    @property
    def losses(self) -> np.ndarray:
        return self.column("train_loss" if "train_loss" in self.rows[0] else "loss")


def nudged(state):
    """A first state, changed as much as rounding would."""
    if type(state) is tuple and isinstance(state[0], nnx.Module):
        nnx.update(state, perturbed(nnx.state(state)))
        return state
    return perturbed(state)


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """What several runs of a script compile alike is compiled once."""
    changed = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in changed}
    configure(changed)
    yield
    configure(before)


def configure(values: dict) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A script from its first step on: ``plain``, ``nudged`` or ``own``."""

    @functools.cache
    def run(name: str, how: str) -> Trained:
        return Trained(name, how == "own", tmp_path_factory.mktemp(f"{name}_{how}"), how == "nudged")

    return run


def checkpoint_of(run: Trained, folder: pathlib.Path) -> pathlib.Path:
    """A folder with the checkpoint of a run, and no log."""
    target = folder / "resumed"
    shutil.copytree(run.folder, target, ignore=shutil.ignore_patterns("metrics.jsonl"))
    assert re.search(rf"\b0*{SAVED}\b|_{SAVED}\b", " ".join(str(path) for path in target.rglob("*")))
    return target


@pytest.mark.parametrize("name", NAMES)
def test_one_line_is_all_that_a_script_needs(name):
    imported, line = scripts.lines_of_hlo_opt(name)
    assert imported == "import hlo_opt.jax as ho"
    assert re.fullmatch(r" *(\S+) = ho\.zero\(\1\)", line)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_trains_evaluates_and_logs_as_it_did(name, trained):
    plain, near, own = (trained(name, how) for how in ("plain", "nudged", "own"))
    assert ho.report(own.step).declined is None
    check_alike(*((run.losses, run.arrays) for run in (plain, near, own)))
    assert [list(row) for row in own.rows] == [list(row) for row in plain.rows]
    columns = {column for row in plain.rows for column in row} - {*OF_THE_PROGRAM}
    assert any(column.startswith("eval") for column in columns)
    for column in columns:
        change = distance(near.column(column), plain.column(column))
        assert distance(own.column(column), plain.column(column)) <= limit(change), column


@pytest.mark.parametrize("name", NAMES)
def test_the_optimizers_state_alone_lies_in_shards(name, trained):
    own = trained(name, "own")
    large = {path: leaf for path, leaf in own.optimizer.items() if leaf.nbytes >= LEAF_BYTES}
    assert large
    for path, leaf in large.items():
        most = (1 / N_DEVICES + 0.02) * leaf.nbytes
        assert scripts.held_bytes(leaf) <= most, f"{path}: {leaf.nbytes} bytes\n{ho.report(own.step)}"
    assert own.rest and all(leaf.sharding.is_fully_replicated for leaf in own.rest)


def test_the_cost_of_a_lowered_step_is_that_of_one_device(trained):
    plain, own = (trained("nanodo_style", how).column(OF_THE_PROGRAM[0]) for how in ("plain", "own"))
    assert len(own) == 1 and 0.9 * N_DEVICES <= plain / own <= N_DEVICES


#: Of each script its optimizer, as the page has it.
MADE_OF = {
    "lm1b_style": "AdamW",
    "nnx_style": "AdamW, clipped",
    "haiku_style": "momentum, clipped",
    "equinox_style": "Lion, clipped",
    "nanodo_style": "AdamW in `inject_hyperparams`",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_what_is_measured(name, trained):
    own = trained(name, "own").optimizer.values()
    held = {id(leaf): scripts.held_bytes(leaf) for leaf in own}
    left = [leaf.nbytes for leaf in own if held[id(leaf)] == leaf.nbytes]
    before, after = sum(leaf.nbytes for leaf in trained(name, "plain").optimizer.values()), sum(held.values())
    cells = [f"[`{name}`](../tests/adapters/{name}.py)", MADE_OF[name], str(len(scripts.lines_of_hlo_opt(name)))]
    cells += [size(before), size(after), f"{len(own) - len(left)} arrays", f"{len(left)} arrays, {size(sum(left))}"]
    assert "| " + " | ".join([*cells, size(max(left))]) + " |" in PAGE.splitlines()


def test_the_page_runs_a_script(capfd):
    code = PAGE.split("<!-- script -->\n```python\n", 1)[1].split("```", 1)[0]
    names: dict = {}
    exec(compile(code, "adopted.md", "exec"), names)
    assert "3 of 36 arguments are in shards" in capfd.readouterr().out
    shutil.rmtree(names["folder"])


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_written_without_it_restores_into_a_run_with_it(name, trained, tmp_path):
    plain, near = trained(name, "plain"), trained(name, "nudged")
    resumed = Trained(name, True, checkpoint_of(plain, tmp_path))
    assert ho.report(resumed.step).declined is None
    check_resumed(plain, near, plain, resumed)


@pytest.mark.more
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_written_with_it_restores_into_a_run_without_it(name, trained, tmp_path):
    plain, near, own = (trained(name, how) for how in ("plain", "nudged", "own"))
    check_resumed(plain, near, own, Trained(name, False, checkpoint_of(own, tmp_path)))


def check_resumed(plain: Trained, near: Trained, first: Trained, resumed: Trained) -> None:
    """The steps of ``first`` up to its checkpoint, and those from there on, are the training of ``plain``."""
    assert len(resumed.rows) == N_STEPS - SAVED
    losses = np.concatenate([first.losses[:SAVED], resumed.losses])
    check_alike((plain.losses, plain.arrays), (near.losses, near.arrays), (losses, resumed.arrays))


@pytest.mark.more
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_of_eight_devices_restores_on_four(name, trained, tmp_path):
    plain, near, own = (trained(name, how) for how in ("plain", "nudged", "own"))
    folder = checkpoint_of(own, tmp_path)
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    subprocess.run(
        [sys.executable, scripts.__file__, name, str(folder), "4"],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
        timeout=300,
    )
    losses, state, held = result_in(folder)
    losses = np.concatenate([own.losses[:SAVED], losses])
    check_alike((plain.losses, plain.arrays), (near.losses, near.arrays), (losses, state))
    for path, leaf in own.optimizer.items():
        if leaf.nbytes >= LEAF_BYTES:
            assert leaf.nbytes / 4 <= held[path] <= (1 / 4 + 0.02) * leaf.nbytes, path


def result_in(folder: pathlib.Path) -> tuple[np.ndarray, dict, dict]:
    """Reads from a folder the losses and last state of a run in another process, and the bytes of optimizer state on a device."""
    with np.load(folder / "result.npz") as found:
        held = {path.removeprefix("held "): int(found[path]) for path in found if path.startswith("held ")}
        state = {path: found[path] for path in found if not path.startswith("held ")}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    key = "train_loss" if "train_loss" in rows[0] else "loss"
    return np.array([row[key] for row in rows]), state, held


@pytest.mark.more
def test_two_processes_train_as_one(trained, tmp_path):
    name = "lm1b_style"
    plain, near, own = (trained(name, how) for how in ("plain", "nudged", "own"))
    folders = [tmp_path / str(process) for process in range(2)]
    port = str(free_port())
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    running = []
    for process, folder in enumerate(folders):
        folder.mkdir()
        command = [sys.executable, scripts.__file__, name, str(folder), "8", str(process), "2", port]
        running.append(subprocess.Popen(command, env=environment))
    assert [one.wait(timeout=300) for one in running] == [0, 0]
    for folder in folders:
        losses, state, held = result_in(folder)
        check_alike((plain.losses, plain.arrays), (near.losses, near.arrays), (losses, state))
        assert held == {path: scripts.held_bytes(leaf) for path, leaf in own.optimizer.items()}
