"""Real XLA (jaxlib on CPU devices) as the judge of HLO text.

Call `set_device_count` before anything imports jax; then text -> HloModule -> StableHLO -> the full CPU pipeline."""
import os

import numpy as np

NO_PARTITIONER = "spmd-partitioning,sharding-propagation,shardy-xla"


def set_device_count(n_devices, collective_timeout_s=60):
    """Give this process `n_devices` CPU devices. Divergent collectives abort after the timeout instead of hanging."""
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "")
        + f" --xla_force_host_platform_device_count={n_devices}"
        + f" --xla_cpu_collective_call_terminate_timeout_seconds={collective_timeout_s}"
    )
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["JAX_ENABLE_X64"] = "1"  # else jax hands 64-bit inputs over as 32-bit ones


def parse(text):
    """XLA's HloModule of the text; raises on what XLA refuses. Odd input can kill the process: probe in a child."""
    from jaxlib import _hlo

    return _hlo.hlo_module_from_text(text)


def whole_text(module, metadata=True):
    """to_string() with large constants and backend configs, and with metadata unless told otherwise."""
    from jaxlib import _hlo

    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    options.print_metadata = metadata
    options.print_backend_config = True
    return module.to_string(options)


def entry_leaves(module):
    """Shapes of the flat ENTRY parameters, array leaves only."""
    from jaxlib import _hlo

    shape = _hlo.XlaComputation(module.as_serialized_hlo_module_proto()).program_shape()
    return [leaf for s in shape.parameter_shapes() for leaf in _flatten(s)]


def result_leaves(module):
    """Shapes of the flat outputs."""
    from jaxlib import _hlo

    return _flatten(_hlo.XlaComputation(module.as_serialized_hlo_module_proto()).program_shape().result_shape())


def _flatten(shape):
    if not shape.is_tuple():
        return [shape]
    return [leaf for s in shape.tuple_shapes() for leaf in _flatten(s)]


def compile_module(module, n_replicas, n_partitions, partition=False, shardy=False, edit=None):
    """Compile for n_replicas x n_partitions devices.

    An already partitioned module still needs the partitioner switched on (the CPU client insists) with its passes
    disabled by name; `partition=True` leaves them enabled, for modules with global shapes. `edit`: a function from the
    StableHLO program's bytes to others."""
    import jax
    from jaxlib import _jax

    options = _jax.CompileOptions()
    options.num_replicas, options.num_partitions = n_replicas, n_partitions
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = n_replicas, n_partitions
    build.use_spmd_partitioning = partition or n_partitions > 1
    build.use_shardy_partitioner = shardy
    if n_partitions > 1 and not partition:
        options.env_option_overrides = [("xla_disable_hlo_passes", NO_PARTITIONER)]
    ids = np.arange(n_replicas * n_partitions, dtype=np.int32).reshape(n_replicas, n_partitions)
    assignment = _jax.DeviceAssignment.create(ids)
    options.device_assignment = assignment
    build.device_assignment = assignment
    stablehlo = _jax.mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
    stablehlo = edit(stablehlo) if edit else stablehlo
    devices = jax.devices()[: n_replicas * n_partitions]
    return devices[0].client.compile_and_load(stablehlo, devices, options)


def draw_inputs(shapes, n_devices, seed=0, groups=None, draw=None, perturb=0.0):
    """[parameter][device] arrays.

    groups[i]: one group id per device for parameter i; devices of one group get the same values (missing: all differ).
    draw[i]: 'nS' normal of scale S, 'pS' |normal|*S + S/1000 (second moments must be positive), 'intK' integers below
    K, or a number; default n1 for floats and int8 for integers.
    perturb: multiply every float by 1 +/- perturb."""
    groups, draw = groups or {}, draw or []
    drawn = []
    for i, shape in enumerate(shapes):
        dtype = np.dtype(shape.numpy_dtype())
        dims = tuple(shape.dimensions())
        how = draw[i] if i < len(draw) else "n1"
        one = []
        for device in range(n_devices):
            group = groups.get(i, range(1, n_devices + 1))[device]
            rng = np.random.Generator(np.random.Philox(key=[seed, i * 1000003 + group]))
            array = _draw_one(rng, dtype, dims, how)
            if perturb and dtype.kind in "fV":
                array = (array.astype(np.float64) * (1 + perturb * rng.choice([-1, 1], dims))).astype(dtype)
            one.append(array.reshape(dims))
        drawn.append(one)
    return drawn


def _draw_one(rng, dtype, dims, how):
    if dtype == np.bool_:
        array = rng.integers(0, 2, dims)
    elif np.issubdtype(dtype, np.integer):
        if how[0] in "inp":
            array = rng.integers(0, int(how[3:]) if how.startswith("int") else 8, dims)
        else:
            array = np.full(dims, int(how))
    elif how[0] in "np":
        scale = float(how[1:])
        array = np.asarray(rng.standard_normal(dims))
        if np.issubdtype(dtype, np.complexfloating):
            array = array + 1j * rng.standard_normal(dims)
        array = np.abs(array) * scale + 1e-3 * scale if how[0] == "p" else array * scale
    else:
        array = np.full(dims, 1.0 if how.startswith("int") else float(how))
    return np.asarray(array).astype(dtype)


def execute(executable, inputs, n_devices):
    """Run on [parameter][device] arrays; gives [output][device] arrays."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = jax.devices()[:n_devices]
    sharding = NamedSharding(Mesh(np.array(devices), ("all",)), PartitionSpec())
    arguments = [
        jax.make_array_from_single_device_arrays(
            per_device[0].shape, sharding, [jax.device_put(a, d) for a, d in zip(per_device, devices)]
        )
        for per_device in inputs
    ]
    outputs = executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
    return [[np.asarray(a) for a in per_device] for per_device in outputs]


def storable(array):
    """npz cannot hold bf16 and f8: those are stored as f32, which holds them exactly."""
    name = array.dtype.name
    return array.astype(np.float32) if array.dtype.kind == "V" or name.startswith(("bfloat", "float8")) else array


def save_npz(path, prefix, per_value):
    """Store [value][device] arrays under the keys {prefix}{i}_d{device}."""
    np.savez(path, **{f"{prefix}{i}_d{d}": storable(a) for i, row in enumerate(per_value) for d, a in enumerate(row)})


def load_npz_inputs(path, shapes, n_devices):
    """[parameter][device] arrays of the keys in{i}_d{device}, in the parameters' own element types."""
    with np.load(path) as z:
        return [
            [z[f"in{i}_d{d}"].astype(np.dtype(s.numpy_dtype())).reshape(tuple(s.dimensions())) for d in range(n_devices)]
            for i, s in enumerate(shapes)
        ]


def load_npz_outputs(path, n_outputs, n_devices):
    """[output][device] arrays of the keys out{i}_d{device}; a missing or surplus key is an error."""
    with np.load(path) as z:
        want = {f"out{i}_d{d}" for i in range(n_outputs) for d in range(n_devices)}
        have = {k for k in z.files if k.startswith("out")}
        if want != have:
            raise ValueError(f"outputs differ in number: expected {len(want)} arrays, found {len(have)} ({path})")
        return [[z[f"out{i}_d{d}"] for d in range(n_devices)] for i in range(n_outputs)]
