//! The launch plan: what every device does in one run of a module, over buffers at fixed places.
//!
//! One plan serves all devices: they differ only in the contents of their parameters and of the buffer at
//! [`Place::DeviceIds`], and in which group of a communicator they belong to. Shapes are static, so grids, sizes and
//! offsets are numbers.

mod accesses;
mod collective;
mod json;
mod live;
mod memory;
pub mod model;
pub mod plot;
pub(crate) mod ranges;
mod text;
mod trace;
pub mod verify;

pub use accesses::Accesses;
pub use collective::{CollectiveCall, CollectiveKind, Reduction};
pub use memory::PlanMemory;
pub use text::shape_text;

use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};
use hlo_analysis::time::Lane;
use hlo_ir::{ArrayShape, DType, Literal};
use hlo_mesh::{KernelCost, Machine};

/// A kernel of a plan; equal sources are one kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelId(u32);
entity_impl!(KernelId, "kernel");

/// A value's bytes: part of a parameter, an output, a constant or the arena.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(u32);
entity_impl!(BufferId, "b");

/// A value of the program: what one or several buffers are views of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanValueId(u32);
entity_impl!(PlanValueId, "v");

/// A partition of devices into groups that communicate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommunicatorId(u32);
entity_impl!(CommunicatorId, "comm");

/// A constant of the module; equal ones are stored once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConstantId(u32);
entity_impl!(ConstantId, "const");

/// What a device does, from its parameters to its outputs.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The module's name.
    pub name: String,
    /// Replicas; a device's flat id is replica × `n_partitions` + partition.
    pub n_replicas: u32,
    /// Partitions.
    pub n_partitions: u32,
    /// Kernels with their source.
    pub kernels: PrimaryMap<KernelId, Kernel>,
    /// Contents of constants.
    pub constants: PrimaryMap<ConstantId, Literal>,
    /// Where values lie.
    pub buffers: PrimaryMap<BufferId, PlanBuffer>,
    /// Groups of flat device ids; a communicator's groups are disjoint.
    pub communicators: PrimaryMap<CommunicatorId, Vec<Vec<u32>>>,
    /// Size of the arena on each device.
    pub arena_bytes: u64,
    /// The ENTRY parameters' leaves, in order.
    pub parameters: Vec<BufferId>,
    /// The ENTRY result's leaves, in order. One at [`Place::Parameter`] is a donated parameter updated in place.
    pub outputs: Vec<BufferId>,
    /// Leaves of the result and of the parameters whose next values they are: what the header aliases, and other donors by shape. An
    /// output need not lie where its parameter lies.
    pub aliases: Vec<(usize, usize)>,
    /// What is done, in order of issue.
    pub steps: Vec<Step>,
    /// What is known of each parameter's leaf.
    pub parameter_facts: Vec<ParameterFacts>,
    /// What is known of each kernel.
    pub kernel_facts: SecondaryMap<KernelId, KernelFacts>,
    /// The machine that times are modelled for; the default one where none is described.
    pub machine: Option<Machine>,
    /// Predicted seconds of the module's critical path ([`hlo_analysis::time::predict`]), where the machine has as many devices.
    pub critical_path_s: Option<f64>,
    /// Modelled time of the steps in the order of the module's text, in seconds, if they were put into another.
    pub written_order_s: Option<f64>,
    /// A faster order of the steps that was not taken because it needs too much memory.
    pub faster_order: Option<FasterOrder>,
    /// Modelled time of the module's own collectives, none combined, in seconds: the least of orders that take little memory, and of all.
    pub apart_s: Option<[f64; 2]>,
}

/// What another order of a plan's steps would take.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FasterOrder {
    /// Modelled seconds.
    pub time_s: f64,
    /// Bytes of a device's memory beyond what the plan takes.
    pub more_bytes: u64,
}

/// Where a value's bytes lie on each device.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanBuffer {
    /// The HLO value that lies here.
    pub name: String,
    /// Its dtype, dims and layout.
    pub shape: ArrayShape,
    /// What it is a part of.
    pub place: Place,
    /// Distance from the beginning of the place; a multiple of 16 unless the value is a part of another value.
    pub offset_bytes: u64,
    /// The value that it is a view of. Reading a buffer means reading this value: other values may lie in the same bytes at
    /// other times.
    pub value: PlanValueId,
    /// Distance from the beginning of the value.
    pub value_offset_bytes: u64,
}

/// What is known of an ENTRY parameter's leaf.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ParameterFacts {
    /// Whether it may be overwritten.
    pub is_donated: bool,
    /// A number for each device; devices of equal numbers hold the same. Empty where nothing is known: it is asked only where the
    /// plan has loops or branches.
    pub classes: Vec<u32>,
}

/// What is known of a kernel beside its source.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct KernelFacts {
    /// Pairs (number among the arguments read, number among those written) that may share one buffer.
    pub updatable: Vec<(usize, usize)>,
    /// For each argument written, the numbers of those read that it depends on.
    pub depends: Vec<Vec<usize>>,
    /// What a launch reads, writes and computes.
    pub cost: KernelCost,
}

/// A block of memory on each device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// The caller's parameter with this leaf index. Written to only if it is donated.
    Parameter(u32),
    /// The memory of the output with this leaf index.
    Output(u32),
    /// Memory that is reused within a run.
    Arena,
    /// Memory that is filled once and only read.
    Constant(ConstantId),
    /// Two u32: this device's replica and its partition. Only read.
    DeviceIds,
}

/// The streams of a device; steps on one stream run in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stream {
    /// Kernels, products, copies.
    Compute,
    /// Collectives.
    Communication,
}

impl Stream {
    /// The lane of its steps in predicted times.
    pub(crate) fn lane(self) -> Lane {
        match self {
            Stream::Compute => Lane::Compute,
            Stream::Communication => Lane::Communication,
        }
    }

    /// 0 or 1, for tables with a row for each stream.
    pub(crate) fn number(self) -> usize {
        match self {
            Stream::Compute => 0,
            Stream::Communication => 1,
        }
    }
}

/// One thing to do.
#[derive(Clone, Debug)]
pub struct Step {
    /// The HLO instruction that it comes from.
    pub name: String,
    /// The stream that it is issued on. Loops and branches are issued by the host: their inner steps have streams.
    pub stream: Stream,
    /// Indices (within this list of steps) of earlier steps on the other stream that must end before this one begins.
    pub waits_for: Vec<u32>,
    /// What to do.
    pub work: Work,
}

/// What a step does.
#[derive(Clone, Debug)]
pub enum Work {
    /// Launches a kernel; arguments in the kernel's order: operands' leaves, then results' leaves.
    Launch {
        /// Which.
        kernel: KernelId,
        /// Its pointers.
        arguments: Vec<BufferId>,
    },
    /// A matrix product.
    Gemm(Gemm),
    /// A collective, or several of one kind issued as a group.
    Collective(CollectiveCall),
    /// Copies all bytes of a buffer to one of the same size.
    Copy {
        /// Read.
        from: BufferId,
        /// Written.
        to: BufferId,
    },
    /// Sets every byte of a buffer.
    Fill {
        /// Written.
        to: BufferId,
        /// With this byte.
        byte: u8,
    },
    /// Runs `condition`, reads the predicate back on the host, and runs `body` while it holds.
    While {
        /// Computes the predicate.
        condition: Vec<Step>,
        /// A `pred[]`, the same on all devices.
        predicate: BufferId,
        /// One round of the loop.
        body: Vec<Step>,
        /// The state that each round computes anew.
        carried: Vec<BufferId>,
        /// How many rounds predicted times count.
        n_trips: u64,
    },
    /// Reads the selector back on the host and runs one branch.
    Conditional {
        /// A `pred[]` (true is branch 0) or an `s32[]` (out of range is the last branch), the same on all devices.
        selector: BufferId,
        /// What each branch does.
        branches: Vec<Vec<Step>>,
        /// How often each branch is taken in predicted times; together 1.
        shares: Vec<f64>,
    },
}

/// `output[a, b, m, n] = sum over k of lhs[a, b, m, k] × rhs[a, b, k, n]`, all three as strided views of buffers: `a` of the outer
/// batch, `b` of the batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gemm {
    /// Read.
    pub lhs: Matrix,
    /// Read.
    pub rhs: Matrix,
    /// Written.
    pub output: Matrix,
    /// Number of products, each a batch stride from the last.
    pub batch: u64,
    /// How many such batches there are, each an outer stride from the last; 1 where one stride leads through all products.
    pub outer_batch: u64,
    /// Rows of `lhs` and of the output.
    pub m: u64,
    /// Columns of `rhs` and of the output.
    pub n: u64,
    /// Columns of `lhs`, rows of `rhs`.
    pub k: u64,
    /// Whether f32 elements may be rounded to TF32 (10 bits of mantissa) before they are multiplied; sums are f32.
    pub uses_tf32: bool,
}

/// Whether the product library multiplies these types.
pub(crate) fn has_library_types(lhs: DType, rhs: DType, out: DType) -> bool {
    lhs == rhs
        && match lhs {
            DType::F32 | DType::F64 => out == lhs,
            DType::BF16 | DType::F16 => out == lhs || out == DType::F32,
            _ => false,
        }
}

/// A buffer as a batch of matrices. Of the two inner strides one is 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matrix {
    /// The elements.
    pub buffer: BufferId,
    /// Elements from one matrix of a batch to the next.
    pub batch_stride_elems: u64,
    /// Elements from one batch to the next.
    pub outer_stride_elems: u64,
    /// Elements from one row to the next (`m` of `lhs`, `k` of `rhs`, `m` of the output).
    pub row_stride_elems: u64,
    /// Elements from one column to the next.
    pub col_stride_elems: u64,
}

/// CUDA C++ and how to launch it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Kernel {
    /// The function's name in the source: `extern "C" __global__`.
    pub name: String,
    /// The function alone; the prelude that all kernels share comes before it.
    pub source: String,
    /// Blocks.
    pub grid: u32,
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory. Static shared memory is declared in the source.
    pub shared_bytes: u32,
    /// Whether threads of a block wait for one another (barriers, shuffles).
    pub is_cooperative: bool,
    /// How each argument is used, in order.
    pub arguments: Vec<Access>,
}

/// What a kernel does with an argument.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum Access {
    Read,
    Write,
    /// Read and then written by the same thread at the same element.
    Update,
}
