"""Every call of JAX that is not public stands here.

Each function says what it needs; :data:`TESTED` lists the versions for which the tests ran, and :func:`missing` names
what another version lacks.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import io
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np

#: Versions of jax for which the package's tests ran.
TESTED = ("0.10.2", "0.12.0.1")


def missing() -> list[str]:
    """What this version of JAX lacks of that which the package needs: names, none where all is there."""
    wanted: dict[str, Callable[[], Any]] = {
        "jaxlib._hlo.HloSharding.from_proto": lambda: _hlo().HloSharding.from_proto,
        "jaxlib._hlo.HloModule.spmd_parameters_shardings": lambda: _hlo().HloModule.spmd_parameters_shardings,
        "jaxlib._hlo.HloModule.spmd_output_sharding": lambda: _hlo().HloModule.spmd_output_sharding,
        "jaxlib._jax.mlir.hlo_to_stablehlo": lambda: _mlir().hlo_to_stablehlo,
        "jax._src.interpreters.mlir.merge_mlir_modules": lambda: _interpreter().merge_mlir_modules,
        "jax._src.interpreters.mlir.LoweringParameters": lambda: _interpreter().LoweringParameters,
        "jax._src.custom_partitioning.custom_partitioning_p": _custom_partitioning,
        "jax._src.config.trace_context": lambda: _config().trace_context,
        "jax._src.config.enable_compilation_cache": lambda: _config().enable_compilation_cache,
        "jax._src.distributed.global_state": _distributed,
        "jax.extend.xla.register_hlo_module_transformation": _transformations,
        "jax._src.compiler.backend_compile_and_load": _compiler,
        "jax._src.array.ArrayImpl": array_type,
        "jax.memory.Space": host_space,
        "jax._src.interpreters.pxla.shard_arg_handlers": _array_tables,
    }
    lacking = []
    for name, find in wanted.items():
        try:
            find()
        except (ImportError, AttributeError):
            lacking.append(name)
    return lacking


def _hlo() -> Any:
    from jaxlib import _hlo

    return _hlo


def _mlir() -> Any:
    from jaxlib import _jax

    return _jax.mlir


def _interpreter() -> Any:
    from jax._src.interpreters import mlir

    return mlir


def _custom_partitioning() -> Any:
    from jax._src.custom_partitioning import custom_partitioning_p

    return custom_partitioning_p


def _config() -> Any:
    from jax._src import config

    return config


def _distributed() -> Any:
    from jax._src import distributed

    return distributed.global_state


def _transformations() -> Any:
    from jax.extend.xla import PipelineStage, register_hlo_module_transformation

    return register_hlo_module_transformation, PipelineStage


def _compiler() -> Any:
    from jax._src import compiler

    return compiler.backend_compile_and_load


def array_type() -> type:
    """The class of ordinary arrays; no device is initialized."""
    from jax._src.array import ArrayImpl

    return ArrayImpl


def _array_tables() -> Any:
    """Where JAX looks up, by the class of a value, its abstract value, what a call passes on, and how it gets to devices."""
    from jax._src import core, dtypes
    from jax._src.interpreters import pxla

    return core.pytype_aval_mappings, dtypes.register_canonicalize_value_handler, pxla


def register_array(kind: type, aval: Callable[[Any], Any], whole: Callable[[Any], Any]) -> None:
    """Makes values of a class arguments that JAX takes, as the ordinary array that ``whole`` makes of one."""
    avals, register, pxla = _array_tables()

    def shard(values: Sequence[Any], shardings: Any, layouts: Any, copy_semantics: Any) -> Any:
        return pxla.shard_args(shardings, layouts, copy_semantics, [whole(value) for value in values])

    avals[kind] = aval
    register(kind, None)
    pxla.shard_arg_handlers[kind] = shard


def static_arguments(step: Any) -> tuple[frozenset[int], frozenset[str]]:
    """The numbers and names of the arguments that a jitted function takes as static."""
    info = step._jit_info
    return frozenset(info.static_argnums), frozenset(info.static_argnames)


def compiler_options(step: Any) -> dict[str, Any] | None:
    """What a jitted function asks of XLA, ``None`` for nothing."""
    return dict(step._jit_info.compiler_options_kvs) or None


def kept_arguments(lowered: Any) -> list[int]:
    """The flat arguments that the program takes: jit drops those that it does not use."""
    return sorted(lowered._lowering.compile_args["kept_var_idx"])


def argument_shardings(lowered: Any) -> list[Any]:
    """The shardings of the arguments that are kept, as JAX resolved them."""
    return list(lowered._lowering.compile_args["in_shardings"])


def devices_of(lowered: Any) -> list[Any]:
    """The devices of a program in the order of their numbers in the partitioned module."""
    return list(lowered._lowering._device_list)


def host_callbacks(lowered: Any) -> list[Callable[..., Any]]:
    """The functions of Python that a lowered program calls, by their numbers in it."""
    return list(lowered._lowering.compile_args["host_callbacks"])


def ordered_effects(effects: Any) -> list[Any]:
    """Those of some effects that happen in the order of the program."""
    from jax._src import effects as effects_lib

    return list(effects_lib.ordered_effects.filter_in(effects))


def global_module(lowered: Any) -> bytes:
    """The HloModuleProto of a program from before XLA's partitioner, with the words of the front end on how it is cut."""
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


#: The custom call that ``custom_partitioning`` leaves in a program.
CUSTOM_PARTITIONING = b"CustomSPMDPartitioning"

#: Custom calls that only XLA's partitioner can replace, and the functions of JAX that make them.
FOR_PARTITIONER = {
    CUSTOM_PARTITIONING: "an operation by jax.experimental.custom_partitioning",
    b"InspectSharding": "jax.debug.inspect_array_sharding",
}


def _as_function(context: Any, *operands: Any, call: Any, **_: Any) -> Any:
    """Lowers an operation by ``custom_partitioning`` as the function that it was made of, as JAX does on one device."""
    from jax._src import core

    return _interpreter().lower_fun(core.jaxpr_as_fun(call), multiple_results=True)(context, *operands)


def with_whole_operations(traced: Any) -> Any:
    """Lowers a traced function anew, with operations by ``custom_partitioning`` as the functions that they stand for."""
    rules = ((_custom_partitioning(), _as_function),)
    return traced.lower(_private_parameters=_interpreter().LoweringParameters(override_lowering_rules=rules))


def tracing_context() -> Any:
    """What of JAX's configuration has a say in what a function becomes; equal where the same program results."""
    return _config().trace_context()


def is_jitted(step: Any) -> bool:
    """Whether this is what ``jax.jit`` returned."""
    return hasattr(step, "lower") and hasattr(step, "_jit_info")


#: How long a process waits for the others' decisions: they compile the same program, at another pace.
_WAIT_MS = 600_000
_n_decisions: collections.Counter = collections.Counter()


def differing_processes(processes: Sequence[int], digest: str) -> list[int]:
    """Those of a step's processes that came to something else at the same call: waits for all of them.

    None where there is one process, or no service that they share.
    """
    client = _distributed().client
    if len(processes) < 2 or client is None:
        return []
    place = _next_place("-".join(map(str, processes)))
    client.key_value_set(f"{place}/{jax.process_index()}", digest)
    return [p for p in processes if client.blocking_key_value_get(f"{place}/{p}", _WAIT_MS) != digest]


def _next_place(of: str) -> str:
    """Where the next decision of some processes stands."""
    _n_decisions[of] += 1
    return f"hlo_opt/{of}/{_n_decisions[of]}"


def disagreeing_processes(what: str, digest: str, wait_s: float) -> list[int]:
    """Those of all processes that say something else of this, or nothing for so long. No device is initialized.

    None where there is one process, or no service that they share.
    """
    state = _distributed()
    if state.client is None or (state.num_processes or 1) < 2:
        return []
    place = _next_place(what)
    state.client.key_value_set(f"{place}/{state.process_id}", digest)
    end_s = time.monotonic() + wait_s
    disagreeing = []
    for process in range(state.num_processes):
        left_ms = max(1, round((end_s - time.monotonic()) * 1000))
        try:
            found = state.client.blocking_key_value_get(f"{place}/{process}", left_ms)
        except Exception:  # what XLA raises where nobody says anything
            found = None
        if found != digest:
            disagreeing.append(process)
    return disagreeing


def pjrt_plugins() -> dict[str, Any]:
    """The tables of functions of the plugins that are here, by platform. No device is initialized."""
    from jax._src import xla_bridge
    from jaxlib import _jax

    xla_bridge._discover_and_register_pjrt_plugins()
    found = {}
    for platform in ("cuda", "rocm", "tpu"):
        with contextlib.suppress(Exception):
            found[platform] = _jax.get_pjrt_plugin(platform)
    return found


def set_cache_salt(text: str) -> None:
    """Puts a text into the keys of the persistent cache: what a hook does to a program is not in them otherwise."""
    from jax._src import cache_key

    cache_key.custom_hook = lambda: text


def cache_salt() -> str:
    """The text that was put into the keys of the persistent cache."""
    from jax._src import cache_key

    return cache_key.custom_hook()


_STOP = "hlo_opt: the module is known"
_PREFIX = "hlo_opt_probe_"
_lock = threading.Lock()
_n_names = 0
_hooked: set[str] = set()
#: Modules that a probe has come to the hook with, by its name: ``None`` until then. Those of other probes are not kept.
_wanted: dict[str, bytes | None] = {}
#: What the hook gives in the place of modules, by words that stand in them.
_given: dict[bytes, bytes] = {}


def _on_module(module: bytes) -> bytes | None:
    """The hook: ends the compilation of a probe, and gives a module in the place of another. The name stands at the
    beginning of the proto."""
    name = module[2 : 2 + module[1]].decode(errors="replace") if module[:1] == b"\x0a" else ""
    for mark, given in list(_given.items()):
        if mark in module:
            expected, found = _layouts(module), _layouts(given)
            if expected != found:
                raise RuntimeError(f"expected the layouts {expected}, found {found}")
            return given
    if not name.startswith(_PREFIX):
        return None
    if name in _wanted:
        _wanted[name] = module
    raise RuntimeError(_STOP)


def _layouts(module: bytes) -> str:
    """The layouts of what a module takes and returns, as XLA prints them."""
    header = _hlo().HloModule.from_serialized_hlo_module_proto(module).to_string().partition("\n")[0]
    _, _, layouts = header.partition("entry_computation_layout=")
    depth = 0
    for end, letter in enumerate(layouts):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth == 0:
            return layouts[: end + 1]
    return layouts


#: The kind of memory of the host that devices copy from by themselves.
HOST_MEMORY = "pinned_host"


def is_of_host(sharding: Any) -> bool:
    """Whether arrays with this sharding lie in the memory of the host."""
    return getattr(sharding, "memory_kind", None) == HOST_MEMORY


def has_host_memory(device: Any) -> bool:
    """Whether arrays of this device can lie in the memory of its host."""
    return any(memory.kind == HOST_MEMORY for memory in device.addressable_memories())


def host_space() -> Any:
    """The memory space of the host, as abstract values have it."""
    return jax.memory.Space.Host


def off_host(tree: Any, move: Callable[[Any], Any] | None = None) -> Any:
    """A tree with the arrays in the memory of the host, traced ones too, in that of the devices, or what ``move`` makes of them."""
    host = host_space()
    move = move or (lambda leaf: jax.device_put(leaf, jax.memory.Space.Device))

    def moved(leaf: Any) -> Any:
        is_there = getattr(getattr(leaf, "aval", None), "memory_space", None) == host
        return move(leaf) if is_there else leaf

    return jax.tree.map(moved, tree)


def on_host(module: bytes) -> tuple[frozenset[int], frozenset[int]]:
    """The numbers of the parameters and of the outputs of a module that lie in the memory of the host."""
    params, _, results = _layouts(module).removeprefix("{").partition("->")
    numbers = lambda shapes: frozenset(n for n, shape in enumerate(_split(shapes)) if "S(5)" in shape)
    return numbers(params), numbers(results.removesuffix("}"))


def _split(shapes: str) -> list[str]:
    """The parts of a list in parentheses, as ``(f32[2,3]{1,0:T(8,128)}, s32[])``; another text is one part."""
    if not shapes.startswith("("):
        return [shapes]
    parts, depth = [""], 0
    for letter in shapes[1:-1]:
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _register_hook(platforms: Sequence[str]) -> None:
    """Lets a probe end after XLA's partitioner. Late, because registering initializes the backends in jax 0.12.

    Where a platform takes no hook, its probes are compiled to the end.
    """
    register, stage = _transformations()
    for platform in platforms:
        if platform not in _hooked:
            _hooked.add(platform)
            with contextlib.suppress(Exception):
                register(_on_module, name="hlo-opt-probe", stage=stage.PRE_SCHEDULER, platforms=platform)


def _new_name(platforms: Sequence[str]) -> str:
    """A name by which the hook of these platforms knows a module."""
    global _n_names
    with _lock:
        _register_hook(platforms)
        _n_names += 1
        return f"{_PREFIX}{_n_names}"


def _clone(module: Any, name: str | None = None, mark: str | None = None) -> Any:
    """A copy of a module: JAX may compile the module itself at the same time, in another thread. It has another name if
    one is given; and an attribute by which the hook knows it, as XLA keeps the name of a module that is replaced."""
    from jaxlib.mlir import ir

    code = io.BytesIO()
    module.operation.write_bytecode(code)
    made = ir.Module.parse(code.getvalue(), module.context)
    attributes, of_frontend = made.operation.attributes, "mhlo.frontend_attributes"
    with made.context:
        if name is not None:
            attributes["sym_name"] = ir.StringAttr.get(name)
        if mark is not None:
            others = attributes[of_frontend] if of_frontend in attributes else ir.DictAttr.get({})
            others = {entry.name: entry.attr for entry in ir.DictAttr(others)}
            attributes[of_frontend] = ir.DictAttr.get({**others, "hlo_opt": ir.StringAttr.get(mark)})
    return made


@contextlib.contextmanager
def _stopped() -> Iterator[None]:
    """A compilation that the hook may end."""
    try:
        yield
    except Exception as error:
        if _STOP not in str(error):
            raise


def _dump_options(folder: str) -> dict[str, Any]:
    """What has XLA write a module into a folder once it has partitioned it, whatever its flags say of other dumps."""
    return {
        "xla_dump_to": folder,
        "xla_dump_hlo_as_proto": True,
        "xla_dump_hlo_pass_re": "spmd-partitioning",
        "xla_dump_hlo_module_re": ".*",
        "xla_dump_max_hlo_modules": -1,
        "xla_dump_compress_protos": False,
    }


def compile_until_partitioned(lowered: Any, folder: str) -> None:
    """Compiles a program until XLA has partitioned it, and has XLA write the module into ``folder``.

    What follows the partitioner is not run; the program is in no cache afterwards, and none is asked.
    """
    probe, probe_lowering = copy.copy(lowered), copy.copy(lowered._lowering)
    name = _new_name(tuple(probe_lowering._platforms))
    probe_lowering._hlo = _clone(probe_lowering._hlo, name)
    probe._lowering = probe_lowering
    with _config().enable_compilation_cache(False), _stopped():
        probe.compile(compiler_options=_dump_options(folder))


#: XLA's passes that partition, which a program of one device must not go through again.
_PARTITIONERS = "spmd-partitioning,sharding-propagation,shardy-xla"


class Compile:
    """A program of several CPU devices that XLA is about to compile."""

    def __init__(self, compile_module: Callable[[Any, Any], Any], module: Any, options: Any) -> None:
        self._compile_module, self._module, self._options = compile_module, module, options

    @property
    def name(self) -> str:
        """The name of its module."""
        return self._module.operation.attributes["sym_name"].value

    @contextlib.contextmanager
    def _overridden(self, overrides: dict[str, Any]) -> Iterator[None]:
        before = list(self._options.env_option_overrides)
        self._options.env_option_overrides = [*before, *overrides.items()]
        try:
            yield
        finally:
            self._options.env_option_overrides = before

    def dump_partitioned(self, folder: str) -> None:
        """As :func:`compile_until_partitioned`."""
        probe = _clone(self._module, _new_name(("cpu",)))
        with self._overridden(_dump_options(folder)), _stopped():
            self._compile_module(probe, self._options)

    def finish(self, code: bytes) -> Any:
        """Compiles the program of one device, as StableHLO, in the place of what XLA's partitioner makes of this one.

        XLA's compiler for CPU devices has a hook only where fusions are made and layouts fixed. So the other program is
        compiled up to there; then this one is, and the hook gives that module in the place of its own.

        Raises:
            Exception: what XLA says of it.
        """
        from jaxlib.mlir import ir

        late = _new_name(("cpu",))
        context = self._module.context
        other = ir.Module.parse(code, context)
        with context:
            _drop_shardings(other)
            _copy_interface(self._module, other)
            other.operation.attributes["sym_name"] = ir.StringAttr.get(late)
        _wanted[late] = None
        try:
            with self._overridden({"xla_disable_hlo_passes": _PARTITIONERS}), _stopped():
                self._compile_module(other, self._options)
        finally:
            made = _wanted.pop(late)
        if made is None:
            raise RuntimeError("XLA's compiler did not come to the hook")
        mark = _new_name(("cpu",)) + ";"  # no mark is the beginning of another
        _given[mark.encode()] = made
        try:
            return self._compile_module(_clone(self._module, mark=mark), self._options)
        finally:
            del _given[mark.encode()]


def renamed_module(module: bytes, name: str) -> bytes:
    """An HloModuleProto of another name: its first field."""
    if module[:1] != b"\x0a":
        return module
    rest = module[1 + 1 + module[1] :] if module[1] < 128 else None
    text = name.encode()[:127]
    return module if rest is None else b"\x0a" + bytes([len(text)]) + text + rest


def _main_of(module: Any) -> Any:
    from jaxlib.mlir import ir

    (main,) = [op for op in module.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main"]
    return main


def _copy_interface(source: Any, target: Any) -> None:
    """Has one module's ``main`` donate the arguments that another one's donates, to the same results, and take and return
    what has layouts of its own in these."""
    from jaxlib.mlir import ir

    names = ("tf.aliasing_output", "jax.buffer_donor", "mhlo.layout_mode")
    of_source, of_target = _main_of(source).attributes, _main_of(target).attributes
    for of_all in ("arg_attrs", "res_attrs"):
        if of_all not in of_source:
            continue
        wanted = [{e.name: e.attr for e in entry if e.name in names} for entry in of_source[of_all]]
        others = [{} for _ in wanted]
        if of_all in of_target:
            others = [{e.name: e.attr for e in entry} for entry in of_target[of_all]]
        merged = [ir.DictAttr.get({**other, **more}) for other, more in zip(others, wanted, strict=True)]
        of_target[of_all] = ir.ArrayAttr.get(merged)


_compile_module: Callable[..., Any] | None = None


def intercept_cpu_compiles(change: Callable[[Compile], Any | None] | None) -> None:
    """Lets a function compile programs of several CPU devices: it returns the executable, or ``None`` where the program
    is to be compiled as it is. Without a function all are compiled as they are."""
    global _compile_module
    from jax._src import compiler

    if _compile_module is None:
        if change is None:
            return
        _compile_module = compiler.backend_compile_and_load
    original = _compile_module

    def compile_module(backend: Any, module: Any, devices: Any, options: Any, *rest: Any, **named: Any) -> Any:
        def compiled(module: Any, options: Any) -> Any:
            return original(backend, module, devices, options, *rest, **named)

        build = Compile(compiled, module, options)
        n_devices = options.num_replicas * options.num_partitions
        made = None
        if backend.platform == "cpu" and n_devices > 1 and not build.name.startswith(_PREFIX):
            made = change(build)
        return compiled(module, options) if made is None else made

    compiler.backend_compile_and_load = original if change is None else compile_module


class Tiles:
    """How an array lies on devices: into how many tiles each dim is cut, and which tile each device holds.

    ``tile_of_device`` has a row for each device and a column for each dim.
    """

    def __init__(self, n_tiles: Sequence[int], tile_of_device: np.ndarray) -> None:
        self.n_tiles = tuple(n_tiles)
        self.tile_of_device = tile_of_device

    @property
    def is_replicated(self) -> bool:
        return all(n == 1 for n in self.n_tiles)


def _tiles(sharding: Any, rank: int, n_devices: int) -> Tiles | None:
    if hasattr(sharding, "v3_to_v2_sharding"):
        sharding = sharding.v3_to_v2_sharding()
    if sharding.is_replicated() or rank == 0:
        return Tiles([1] * rank, np.zeros((n_devices, rank), int))
    if not sharding.is_tiled():
        return None
    dims = list(sharding.tile_assignment_dimensions())
    devices = np.asarray(list(sharding.tile_assignment_devices())).reshape(dims)
    tile_of_device = np.zeros((n_devices, rank), int)
    for place in np.ndindex(*dims):
        tile_of_device[devices[place]] = place[:rank]
    return Tiles(dims[:rank], tile_of_device)


def chosen_shardings(
    module: bytes, param_ranks: Sequence[int], output_ranks: Sequence[int], n_devices: int
) -> tuple[list[Tiles | None], list[Tiles | None]]:
    """How XLA's partitioner has cut the parameters and outputs of a module; ``None`` where it cannot be said by
    tiles."""
    hlo = _hlo()
    parsed = hlo.HloModule.from_serialized_hlo_module_proto(module)
    params = [hlo.HloSharding.from_proto(s) for s in parsed.spmd_parameters_shardings or []]
    if len(params) == 1 and len(param_ranks) != 1:
        params = list(params[0].tuple_elements())
    outputs = []
    if parsed.spmd_output_sharding is not None:
        whole = hlo.HloSharding.from_proto(parsed.spmd_output_sharding)
        elements = list(whole.tuple_elements())
        outputs = elements if elements else [whole]
    if len(params) != len(param_ranks) or len(outputs) != len(output_ranks):
        raise ValueError(
            f"expected shardings of {len(param_ranks)} parameters and {len(output_ranks)} outputs in the partitioned "
            f"module, found {len(params)} and {len(outputs)}"
        )
    return (
        [_tiles(s, rank, n_devices) for s, rank in zip(params, param_ranks)],
        [_tiles(s, rank, n_devices) for s, rank in zip(outputs, output_ranks)],
    )


def stablehlo_of(module: bytes) -> bytes:
    """An HloModuleProto as StableHLO bytecode.

    Raises:
        Exception: what StableHLO has no words for, as XLA says it.
    """
    code = _mlir().hlo_to_stablehlo(module)
    return code if isinstance(code, bytes) else code.encode()


def _drop_shardings(module: Any) -> None:
    """Removes what is said of shardings: one device's program has none.

    Where it meets any, XLA leaves Shardy for the old partitioner.
    """
    from jaxlib.mlir import ir

    name = "mhlo.sharding"

    def visit(operation: Any) -> Any:
        operation = operation.operation
        if name in operation.attributes:
            del operation.attributes[name]
        for of_all in ("arg_attrs", "res_attrs"):
            if of_all in operation.attributes:
                kept = [
                    ir.DictAttr.get({entry.name: entry.attr for entry in attributes if entry.name != name})
                    for attributes in operation.attributes[of_all]
                ]
                operation.attributes[of_all] = ir.ArrayAttr.get(kept)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def set_memory_kinds(lowered: Any, on_host: dict[str, Collection[int]]) -> None:
    """Says of a lowered program which arguments (``arg_attrs``) and results (``res_attrs``) lie in the memory of the host, by
    their numbers; all others lie on the device. JAX says it itself where the devices are there."""
    from jaxlib.mlir import ir

    module = lowered._lowering._hlo
    attributes = _main_of(module).attributes
    with module.context:
        for of_all, numbers in on_host.items():
            made = []
            for number, entry in enumerate(attributes[of_all]):
                kind = HOST_MEMORY if number in numbers else "device"
                others = {e.name: e.attr for e in entry}
                made.append(ir.DictAttr.get({**others, "mhlo.memory_kind": ir.StringAttr.get(kind)}))
            attributes[of_all] = ir.ArrayAttr.get(made)


def _drop_copies(module: Any) -> None:
    """Puts the operand in the place of each copy. XLA's compiler for GPUs cannot read a copy of MHLO, and makes its own
    where it needs them."""
    from jaxlib.mlir import ir

    copies = []

    def visit(operation: Any) -> Any:
        if operation.operation.name == "mhlo.copy":
            copies.append(operation.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()


def _renumber_callbacks(module: Any, first: int) -> None:
    """Adds ``first`` to the numbers by which a module calls functions of Python."""
    from jaxlib.mlir import ir

    def visit(operation: Any) -> Any:
        operation = operation.operation
        target = operation.attributes["call_target_name"] if "call_target_name" in operation.attributes else None
        if target is not None and re.fullmatch(r"xla_ffi\w*_python_\w+_callback", ir.StringAttr(target).value):
            config = {entry.name: entry.attr for entry in ir.DictAttr(operation.attributes["backend_config"])}
            number = ir.IntegerAttr(config["index"])
            config["index"] = ir.IntegerAttr.get(number.type, number.value + first)
            operation.attributes["backend_config"] = ir.DictAttr.get(config)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def inline_stablehlo(
    context: Any, code: bytes, operands: Sequence[Any], callbacks: Sequence[Callable[..., Any]] = ()
) -> Sequence[Any]:
    """Calls the function ``main`` of a StableHLO module in the module that is being lowered. ``callbacks`` are the functions
    of Python that it calls."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    module = ir.Module.parse(code)
    if callbacks:
        _renumber_callbacks(module, len(context.module_context.host_callbacks))
        for callback in callbacks:
            context.module_context.add_host_callback(callback)
    _drop_shardings(module)
    _drop_copies(module)
    main = _main_of(module)
    results = list(main.type.results)
    target = context.module_context
    name = _interpreter().merge_mlir_modules(target.module, "hlo_opt_step", module, dst_symtab=target.symbol_table)
    return func.CallOp(results, ir.FlatSymbolRefAttr.get(name), operands).results
