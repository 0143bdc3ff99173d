"""Several processes: those that train together, and those that find what an earlier one has compiled."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

#: What changes each step, whatever it is predicted to be worth.
SHARDED = "shard-weight-update{profit=always},dce"


def start(*args: str, **environment: str) -> subprocess.Popen:
    script = pathlib.Path(__file__).parent / "run_steps.py"
    return subprocess.Popen(
        [sys.executable, str(script), *args], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen) -> dict:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def together(*options: list[str]) -> list[dict]:
    """What processes print that train together, each with its own options."""
    port = free_port()
    of_all = ["--processes", str(len(options)), "--port", str(port)]
    running = [start("--process", str(n), *own, *of_all) for n, own in enumerate(options)]
    return [finish(process) for process in running]


def test_two_processes_agree_with_one():
    one = finish(start())
    two = together(["--shard", "parameters"], ["--shard", "parameters"])
    assert one["said"] == []
    assert max(one["held"]) == 96 * 96 * 4 // 8
    for process in two:
        assert process["said"] == []
        assert process["held"] == one["held"]
        np.testing.assert_allclose(process["losses"], one["losses"], rtol=2e-5)


def test_where_processes_would_run_other_programs_all_run_the_original():
    plain = finish(start("--unwrapped"))
    for process in together(["--shard", "optimizer"], ["--shard", "parameters"]):
        (said,) = process["said"]
        assert "came to another program" in said
        assert process["held"] == plain["held"]
        np.testing.assert_allclose(process["losses"], plain["losses"], rtol=2e-5)


def test_two_processes_compile_the_same_through_the_hook():
    plain = finish(start("--unwrapped"))
    hooked = ["--pipeline", SHARDED]
    one = finish(start(*hooked))
    for process in (one, *together(hooked, hooked)):
        assert process["n_changed"] == 1
        assert process["held"] == plain["held"]
        np.testing.assert_allclose(process["losses"], plain["losses"], rtol=2e-5)


ENABLE = """
import sys
import jax
import hlo_opt.jax as ho
port, number, pipeline = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(number))
try:
    ho.enable(pipeline)
except ho.HookError as error:
    print(error)
"""


def enabled(*pipelines: str, **environment: str) -> list[str]:
    """What ``enable`` says in processes of one run, each with its own pipeline."""
    port = str(free_port())
    command = lambda number, pipeline: [sys.executable, "-c", ENABLE, port, str(number), pipeline]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    running = [
        subprocess.Popen(command(number, pipeline), env=environment, stdout=subprocess.PIPE, text=True)
        for number, pipeline in enumerate(pipelines)
    ]
    return [process.communicate(timeout=300)[0].strip() for process in running]


def test_processes_enable_the_same_or_nothing():
    said = enabled("data-parallel", "cse,dce")
    assert said[0].startswith("nothing is enabled: processes [1] enable something else")
    assert said[1].startswith("nothing is enabled: processes [0] enable something else")
    assert enabled("cse,dce", "cse,dce") == ["", ""]
    assert enabled("cse,dce", "cse,dce", HLO_OPT="off") == ["", ""]


@pytest.mark.parametrize(
    ("options", "others"), [([], ["--shard", "optimizer"]), (["--pipeline", SHARDED], ["--pipeline", SHARDED + ",cse"])]
)
def test_the_persistent_cache(tmp_path, options, others):
    """A second process finds the program of the first; another form of state or pipeline is another program."""
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    programs = lambda: {
        path.name for path in tmp_path.iterdir() if path.name.startswith("jit_step-") and "cache" in path.name
    }
    first = finish(start(*options, **environment))
    after_first = programs()
    second = finish(start(*options, **environment))
    assert programs() == after_first
    assert second["hits"] > first["hits"]
    assert second["losses"] == first["losses"]
    finish(start(*others, **environment))
    assert len(programs()) == len(after_first) + 1
