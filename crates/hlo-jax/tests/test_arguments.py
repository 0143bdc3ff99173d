"""Arguments of steps: wrong ones are refused with what was expected and found, in the words of Python."""

from __future__ import annotations

import inspect
import math

import hlo_opt.jax as ho
import jax
import numpy as np
import pytest
from hlo_opt import Module, _native
from hlo_opt.arguments import UNITS, checked_bytes, checked_choice
from hlo_opt.jax.words import python_words, sentence, size
from test_state import make, whole

GIB = 1 << 30


@pytest.mark.parametrize(
    ("given", "n_bytes"),
    [
        (None, None),
        (1, 1),
        (60e9, 60 * 10**9),
        (0.9 * 80e9, 72 * 10**9),
        (1.5, 1),
        (np.int64(7), 7),
        (np.float32(2.0**30), GIB),
        ("60GB", 60 * 10**9),
        ("60GiB", 60 * GIB),
        (" 1.5 GiB ", GIB * 3 // 2),
        ("1_000 kB", 10**6),
        ("0.5TB", 5 * 10**11),
        ("1,500 MB", 1500 * 10**6),
        ("1e3MiB", 1000 << 20),
    ],
)
def test_sizes_are_numbers_or_have_a_unit(given, n_bytes):
    assert checked_bytes("memory_limit", given) == n_bytes


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (True, TypeError, "found True of type bool"),
        (np.bool_(True), TypeError, "of type bool"),
        ([60e9], TypeError, "of type list"),
        (1j, TypeError, "of type complex"),
        (0, ValueError, "at least 1 byte, found 0"),
        (-5, ValueError, "found -5"),
        (math.nan, ValueError, "found nan"),
        (math.inf, ValueError, "found inf"),
        (1 << 63, ValueError, "found 9223372036854775808"),
        ("60", ValueError, "expected a unit behind the number, found '60'; write '60GB' or '60GiB'"),
        ("60e9", ValueError, "expected a unit behind the number"),
        ("60G", ValueError, "did you mean '60GB' or '60GiB'"),
        ("60gib", ValueError, "found 'gib' in '60gib'; did you mean '60GiB'"),
        ("60 parsecs", ValueError, "expected one of the units B, kB, KB, MB"),
        ("-60GB", ValueError, "found '-60GB'"),
        ("0GB", ValueError, "found '0GB'"),
        ("1e30TB", ValueError, "found '1e30TB'"),
        ("much", ValueError, "found 'much'"),
        ("", ValueError, "found ''"),
        ("nanGB", ValueError, "found 'nanGB'"),
        ("1,5GB", ValueError, "found '1,5GB'"),
        ("1,,500GB", ValueError, "found '1,,500GB'"),
        ("1_GB", ValueError, "found '1_GB'"),
    ],
)
def test_what_is_no_size_is_refused(given, error, message):
    with pytest.raises(error) as raised:
        checked_bytes("memory_limit", given)
    assert message in str(raised.value) and str(raised.value).startswith("memory_limit: expected ")


def test_units_are_what_they_are_called():
    assert UNITS["GB"] == 1e9 and UNITS["GiB"] == 2**30 and UNITS["kB"] == UNITS["KB"] == 1e3
    assert {name.replace("i", "") for name in UNITS if "i" in name} <= set(UNITS)


def jitted():
    return jax.jit(lambda w: w)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mode": 1}, TypeError, 'zero: mode= is not taken; write shard="optimizer", "gradients"'),
        ({"shard": 4}, ValueError, "shard: expected 'optimizer', 'gradients', 'parameters' or 'auto', found 4"),
        ({"shard": "Auto"}, ValueError, "found 'Auto'; did you mean 'auto'"),
        ({"shard": "optimiser"}, ValueError, "found 'optimiser'; did you mean 'optimizer'"),
        ({"shard": True}, ValueError, "found True"),
        ({"state": "ema"}, TypeError, "state: expected a dict of regular expressions and flags"),
        ({"state": {"ema": 0}}, TypeError, "found 'ema': 0 of type int"),
        ({"state": {"(": False}}, ValueError, r"state: expected a regular expression, found '\('"),
        ({"quiet": 1}, TypeError, "quiet: expected True or False"),
        ({"stage": 3}, TypeError, "zero: unexpected keyword argument 'stage'"),
        ({"memory_limt": 3}, TypeError, "'memory_limt'; did you mean 'memory_limit'"),
        ({"offload": "yes"}, TypeError, "offload: expected True or False, found 'yes' of type str"),
        ({"strict": 1}, TypeError, "strict: expected True or False, found 1 of type int"),
        ({"deadline_s": "x"}, TypeError, "deadline_s: expected a positive number of seconds, found 'x' of type str"),
        ({"deadline_s": True}, TypeError, "deadline_s: expected a positive number of seconds"),
        ({"deadline_s": math.nan}, ValueError, "deadline_s: expected a positive number of seconds, found nan"),
        ({"machine": "h1000"}, ValueError, "machine: expected one of a100, .*found 'h1000'; did you mean 'h100'"),
        ({"machine": "H100"}, ValueError, "did you mean 'h100'"),
        ({"machine": "h100:0"}, ValueError, "a positive number of nodes behind 'h100:', found '0'"),
        ({"machine": "h100:x"}, ValueError, "a positive number of nodes behind 'h100:', found 'x'"),
        ({"machine": 100}, TypeError, "machine: expected the name of a machine .*found 100 of type int"),
        ({"machine": ""}, ValueError, "machine: expected the name of a machine .*found an empty string"),
    ],
)
def test_wrong_options_of_zero_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        ho.zero(jitted(), **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"effort": "x"}, TypeError, "effort: expected a positive number of billions"),
        ({"effort": math.inf}, ValueError, "effort: expected a positive number of billions"),
        ({"memory_limit": "60"}, ValueError, "memory_limit: expected a unit"),
        ({"devices": 8}, TypeError, "devices: expected a sequence of jax.Device, found 8"),
        ({"devices": [0, 1]}, TypeError, "devices: expected a sequence of jax.Device, found 0 in it"),
        ({"strict": "no"}, TypeError, "strict: expected True or False"),
        ({"mesh": None}, TypeError, "auto: unexpected keyword argument 'mesh'"),
    ],
)
def test_wrong_options_of_auto_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        ho.auto(jitted(), **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mesh": 8}, TypeError, "mesh: expected a jax.sharding.Mesh, found 8 of type int"),
        ({"rules": {"w": None}}, TypeError, "rules: expected a list of pairs"),
        ({"most_memory": "2"}, TypeError, "most_memory: expected how many times the memory"),
        ({"most_memory": 0.5}, ValueError, "most_memory: .*at least 1, found 0.5"),
        ({"most_bytes": 0}, ValueError, "most_bytes: .*a positive number, found 0"),
        ({"rule": []}, TypeError, "'rule'; did you mean 'rules'"),
        ({"strategies": 3}, TypeError, "strategies: expected the path of a file"),
        ({"strategies": "no/such.toml"}, FileNotFoundError, "strategies: expected a file, found none at"),
    ],
)
def test_wrong_options_of_partition_are_refused(options, error, message):
    if "strategies" in options or isinstance(options.get("rules"), dict):
        options = {**options, "mesh": jax.sharding.Mesh(np.array(jax.devices()), ("data",))}
    with pytest.raises(error, match=message):
        ho.partition(jitted(), **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"only": 3}, TypeError, "only: expected the name of a jitted function, or a list of names, found 3"),
        ({"only": [3]}, TypeError, "only: expected the name of a jitted function"),
        ({"pipeline": 3}, TypeError, "pipeline: expected a preset .*found 3 of type int"),
        ({"pipeline": "data-paralel"}, ValueError, "found 'data-paralel'; did you mean 'data-parallel'"),
        ({"schedule": "x"}, TypeError, "schedule: expected True or False"),
        ({"deadline_s": None}, TypeError, "deadline_s: expected a positive number of seconds, found None"),
        ({"deadline": 3}, TypeError, "did you mean 'deadline_s'"),
    ],
)
def test_wrong_options_of_enable_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        ho.enable(**options)


def test_signatures_stay_those_of_the_functions():
    assert list(inspect.signature(ho.zero).parameters)[:3] == ["step", "shard", "memory_limit"]
    assert "HLO_OPT" in ho.partition.__doc__ and ho.enable.__name__ == "enable"


def test_a_machine_that_the_devices_do_not_fill_is_said_in_pythons_words():
    mesh, step, init, batch = make(strict=True, machine="h100:3")
    with pytest.raises(ho.ZeroError) as error:
        step(*whole(mesh, init()), *batch(0))
    assert str(error.value) == (
        "machine='h100:3': expected a number of nodes that divides the 8 devices, found 3; 'h100' alone takes as few "
        "nodes as the devices fill"
    )


#: A message of the command line with all that must not be in one of Python's.
OF_TOOL = "error: --machine: machine: nodes: expected 4096 bytes\n\nFor more information, try 'hlo-opt --help'."


def test_no_message_has_words_of_the_command_line(monkeypatch):
    assert python_words(OF_TOOL) == "machine: nodes: expected 4 KiB"
    assert python_words("error[memory]: <module>: pass `x`: more than 5000000 bytes") == "pass `x`: more than 4.768 MiB"
    monkeypatch.setattr(_native, "run", lambda *_: (2, b"", OF_TOOL))
    mesh, step, init, batch = make(strict=True)
    with pytest.raises(ho.ZeroError) as error:
        step(*whole(mesh, init()), *batch(0))
    assert str(error.value) == "machine: nodes: expected 4 KiB"


def test_errors_of_xla_are_one_line():
    traceback = "Traceback (most recent call last):\n  File x, line 3\n    y\nAssertionError: no"
    text = f"INTERNAL: CustomCall: {traceback}\n\nAt:\n  z"
    assert sentence(RuntimeError(text)) == "RuntimeError: INTERNAL: CustomCall: AssertionError: no"
    assert sentence(ValueError("a\n  b\n\nSuspected Python Code Location:\n  x.py:3")) == "ValueError: a b"
    assert sentence(KeyError()) == "KeyError"
    assert len(sentence(RuntimeError("x" * 10_000))) < 500


def test_sizes_are_said_with_units():
    assert [size(n) for n in (12, 2048, 1_595_788, 60 * GIB)] == ["12 B", "2 KiB", "1.522 MiB", "60 GiB"]


def test_choices_keep_their_types():
    assert checked_choice("mode", np.int64(2), ("auto", 1, 2)) == 2
    with pytest.raises(ValueError, match="expected 'auto', 1 or 2, found None"):
        checked_choice("mode", None, ("auto", 1, 2))


SUM = """HloModule m, num_partitions=2
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0)
 ROOT s = f32[4] all-reduce(p), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add }
"""


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.run("dcee"), ValueError, "passes: unknown pass: `dcee`, did you mean `dce`"),
        (lambda m: m.run(preset="gpuu"), ValueError, "^preset: expected one of .*did you mean `gpu`"),
        (lambda m: m.run("dce", machine="h100:3"), ValueError, "^machine: nodes: expected a divisor of the 2 devices"),
        (lambda m: m.run("dce", machine=3), TypeError, "machine: expected a string, found 3 of type int"),
        (lambda m: m.run(["dce"]), TypeError, "passes: expected a string"),
        (lambda m: m.run("dce", timeout_s=0), ValueError, "timeout_s: expected a positive number of seconds, found 0"),
        (lambda m: m.run("dce", timeout_s=True), TypeError, "timeout_s: expected a positive number of seconds"),
        (lambda m: m.run("dce", replicated="x"), TypeError, "did you mean 'replicated_params'"),
        (lambda m: m.run("dce", replicated_params="9"), ValueError, "^replicated_params: expected leaf numbers"),
        (lambda m: m.audit(deny="faultt"), ValueError, "^deny: .*did you mean `fault`"),
        (lambda m: m.audit(deny=3), TypeError, "deny: expected the name of a check or a list of names"),
        (lambda m: m.memory(top=-1), ValueError, "top: expected a number of buffers, from 0 on, found -1"),
        (lambda m: m.collectives(unknown_trip_count="x"), TypeError, "unknown_trip_count: expected how often"),
        (lambda m: m.evaluate(np.zeros(4, np.float32)), TypeError, r"found a value of type ndarray; write \[array\]"),
        (lambda m: m.evaluate([], max_steps=0), ValueError, "max_steps: expected a positive number of steps"),
        (lambda m: Module.parse(SUM, num_partitions=2.5), TypeError, "num_partitions: expected a positive number"),
        (lambda m: Module.parse(SUM, num_partitions=3), ValueError, "^num_partitions 3: the header of"),
        (lambda m: Module.parse(5), TypeError, "content: expected HLO text or the bytes of a proto"),
    ],
)
def test_wrong_arguments_of_modules_are_refused(call, error, message):
    with pytest.raises(error, match=message) as raised:
        call(Module.parse(SUM))
    assert "--" not in str(raised.value).replace("--list-checks", "") and "Usage" not in str(raised.value)


def test_a_summary_names_no_option_of_the_command_line():
    _, report = Module.parse(SUM).run(preset="data-parallel")
    assert "--" not in report.summary and "machine names another" in report.summary


def test_a_device_that_stands_twice_is_named():
    devices = [jax.devices()[0]] * 3
    with pytest.raises(ValueError, match=r"devices: expected each device once, found CpuDevice\(id=0\) 3 times"):
        ho.auto(jax.jit(lambda x: x), devices=devices)
