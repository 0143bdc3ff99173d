//! Each piece of work by itself.

use crate::plan::ranges::range;
use crate::plan::{
    Access, Accesses, BufferId, CollectiveCall, Gemm, Kernel, KernelId, Matrix, Place, Plan, Step, Stream, Work,
    has_library_types,
};
use hlo_ir::DType;

/// What the hardware takes of one block.
const MOST_THREADS: u32 = 1024;
const MOST_SHARED_BYTES: u32 = 227 << 10;

pub(super) fn check(plan: &Plan, steps: &[Step], errors: &mut Vec<String>) {
    for step in steps {
        let mut check = Check { plan, step, errors };
        check.step();
        match &step.work {
            Work::While { condition, body, .. } => {
                [condition, body].into_iter().for_each(|list| self::check(plan, list, errors))
            }
            Work::Conditional { branches, .. } => branches.iter().for_each(|list| self::check(plan, list, errors)),
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
    }
}

struct Check<'p> {
    plan: &'p Plan,
    step: &'p Step,
    errors: &'p mut Vec<String>,
}

impl Check<'_> {
    fn wrong(&mut self, reason: impl std::fmt::Display) {
        self.errors.push(format!("{}: {reason}", self.step.name));
    }

    fn step(&mut self) {
        let is_collective = matches!(self.step.work, Work::Collective(_));
        let wanted = if is_collective { Stream::Communication } else { Stream::Compute };
        if (self.step.stream == Stream::Communication) != is_collective {
            self.wrong(format!("expected the {} stream, found {}", wanted.name(), self.step.stream.name()));
        }
        let accesses = self.step.work.accesses(self.plan);
        self.places_written(&accesses);
        match &self.step.work {
            Work::Launch { kernel, arguments } => self.launch(*kernel, arguments, &accesses),
            Work::Gemm(gemm) => {
                self.gemm(gemm);
                self.apart(&accesses, |_, _| false);
            }
            Work::Collective(call) => {
                self.collective(call);
                let is_in_place = call.kind.is_elementwise();
                self.apart(&accesses, |read, written| is_in_place && read == written);
            }
            Work::Copy { from, to } => {
                let bytes = |b: BufferId| self.plan.buffers[b].shape.memory_bytes();
                if bytes(*from) != bytes(*to) {
                    self.wrong(format!("expected a copy to {} B, found {}", bytes(*from), bytes(*to)));
                }
                self.apart(&accesses, |_, _| false);
            }
            Work::Fill { .. } => {}
            Work::While { predicate, .. } => self.decision(*predicate, &[DType::Pred]),
            Work::Conditional { selector, .. } => self.decision(*selector, &[DType::Pred, DType::S32]),
        }
    }

    fn decision(&mut self, buffer: BufferId, dtypes: &[DType]) {
        let shape = &self.plan.buffers[buffer].shape;
        if shape.n_elems() != 1 || !dtypes.contains(&shape.dtype) {
            let wanted = dtypes.iter().map(|d| format!("{d}[]")).collect::<Vec<_>>().join(" or ");
            self.wrong(format!("expected a decision by a {wanted}, found {buffer} ({})", self.plan.buffers[buffer]));
        }
    }

    fn places_written(&mut self, accesses: &Accesses) {
        for &id in &accesses.writes {
            let buffer = &self.plan.buffers[id];
            let is_writable = match buffer.place {
                Place::Constant(_) | Place::DeviceIds => false,
                Place::Parameter(leaf) => self.plan.parameter_facts.get(leaf as usize).is_some_and(|f| f.is_donated),
                Place::Output(_) | Place::Arena => true,
            };
            if !is_writable {
                self.wrong(format!("writes to {id} ({buffer}), which is only read"));
            }
        }
    }

    /// What is written overlaps with nothing else that the step touches, but for pairs (read, written) that may be one buffer.
    fn apart(&mut self, accesses: &Accesses, may_share: impl Fn(usize, usize) -> bool) {
        let at = |&b: &BufferId| range(self.plan, b);
        let meet = |a: (Place, u64, u64), b: (Place, u64, u64)| a.0 == b.0 && a.1 < b.2 && b.1 < a.2;
        let mut found = Vec::new();
        for (k, written) in accesses.writes.iter().enumerate() {
            let others = accesses.writes[k + 1..].iter();
            found.extend(others.filter(|other| meet(at(written), at(other))).map(|&other| (*written, other)));
            for (i, read) in accesses.reads.iter().enumerate() {
                let is_allowed = at(read) == at(written) && may_share(i, k);
                if meet(at(read), at(written)) && !is_allowed {
                    found.push((*written, *read));
                }
            }
        }
        for (written, other) in found {
            self.wrong(format!("writes to {written} ({}), which overlaps with {other}", self.plan.buffers[written]));
        }
    }

    fn launch(&mut self, id: KernelId, arguments: &[BufferId], accesses: &Accesses) {
        let kernel = &self.plan.kernels[id];
        if arguments.len() != kernel.arguments.len() {
            let (wanted, found) = (kernel.arguments.len(), arguments.len());
            return self.wrong(format!("{id} takes {wanted} arguments, found {found}"));
        }
        if let Some(stated) = stated_accesses(kernel) {
            if stated.len() != arguments.len() {
                return self.wrong(format!("{id}'s source has {} parameters, found {}", stated.len(), arguments.len()));
            }
            let differs = |(said, is_written): (&Access, &bool)| (*said != Access::Read) != *is_written;
            if let Some(k) = kernel.arguments.iter().zip(&stated).position(differs) {
                let words = if stated[k] { ("written", "read") } else { ("read", "written") };
                self.wrong(format!("argument {k} of {id} is {} by its source, found it {}", words.0, words.1));
            }
        }
        if kernel.grid == 0
            || kernel.block == 0
            || kernel.block > MOST_THREADS
            || kernel.shared_bytes > MOST_SHARED_BYTES
        {
            let (grid, block, shared) = (kernel.grid, kernel.block, kernel.shared_bytes);
            self.wrong(format!(
                "{id} cannot be launched with {grid} blocks of {block} threads and {shared} B of shared memory"
            ));
        }
        if kernel.arguments.contains(&Access::Update) {
            return;
        }
        let updatable = &self.plan.kernel_facts[id].updatable;
        self.apart(accesses, |read, written| updatable.contains(&(read, written)));
    }

    fn gemm(&mut self, gemm: &Gemm) {
        let sides = [
            ("lhs", gemm.lhs, gemm.m, gemm.k),
            ("rhs", gemm.rhs, gemm.k, gemm.n),
            ("output", gemm.output, gemm.m, gemm.n),
        ];
        if [gemm.outer_batch, gemm.batch, gemm.m, gemm.n, gemm.k].contains(&0) {
            self.wrong("expected a product of matrices with elements, found an empty one");
            return;
        }
        for (side, matrix, rows, cols) in sides {
            let room = self.plan.buffers[matrix.buffer].shape.n_elems();
            let last = last_element([gemm.outer_batch, gemm.batch, rows, cols], &matrix);
            if last.is_none_or(|last| last >= room) {
                let last = last.map_or("one beyond 64 bits".into(), |last| last.to_string());
                self.wrong(format!("{side} has {room} elements, but its strides lead to element {last}"));
            }
            if matrix.row_stride_elems != 1 && matrix.col_stride_elems != 1 {
                self.wrong(format!("{side}: expected a row or column stride of 1, found {matrix}"));
            }
        }
        if gemm.uses_tf32 && self.plan.buffers[gemm.lhs.buffer].shape.dtype != DType::F32 {
            self.wrong(format!(
                "expected TF32 of f32 alone, found it of {}",
                self.plan.buffers[gemm.lhs.buffer].shape.dtype
            ));
        }
        let output = &gemm.output;
        if !writes_each_once(gemm) {
            self.wrong(format!("output: expected strides that lead to each element once, found {output}"));
        }
        let dtype = |m: &Matrix| self.plan.buffers[m.buffer].shape.dtype;
        if !has_library_types(dtype(&gemm.lhs), dtype(&gemm.rhs), dtype(output)) {
            let (lhs, rhs, out) = (dtype(&gemm.lhs), dtype(&gemm.rhs), dtype(output));
            self.wrong(format!("the product library has no {lhs} * {rhs} -> {out}"));
        }
    }

    fn collective(&mut self, call: &CollectiveCall) {
        let groups = &self.plan.communicators[call.communicator];
        let n = groups.first().map_or(0, Vec::len) as u64;
        let kind = call.kind.name();
        if !call.kind.is_elementwise() && groups.iter().any(|group| group.len() as u64 != n) {
            self.wrong(format!("{kind} expects groups of one size, found {groups:?}"));
        }
        if call.calls.is_empty() {
            self.wrong(format!("expected a call of {kind}, found none"));
        }
        for &(input, output) in &call.calls {
            let shape = |b: BufferId| &self.plan.buffers[b].shape;
            let (given, taken) = (shape(input).memory_bytes(), shape(output).memory_bytes());
            if call.kind.output_bytes(given, n) != Some(taken) {
                self.wrong(format!("{kind} over {n} devices of {given} B gives no {taken} B"));
            }
            let (from, to) = (shape(input).dtype, shape(output).dtype);
            if from != to {
                self.wrong(format!("{kind} of {from} gives no {to}"));
            }
        }
        if let Some(pairs) = call.kind.pairs() {
            self.pairs(pairs);
        }
    }

    fn pairs(&mut self, pairs: &[(u32, u32)]) {
        let n_devices = self.plan.n_replicas.saturating_mul(self.plan.n_partitions);
        let is_outside = |&&(a, b): &&(u32, u32)| a >= n_devices || b >= n_devices;
        if let Some(pair) = pairs.iter().find(is_outside) {
            self.wrong(format!("permute expects devices below {n_devices}, found {pair:?}"));
        }
        // A source may send to several: a broadcast is so lowered.
        let mut targets: Vec<u32> = pairs.iter().map(|pair| pair.1).collect();
        targets.sort();
        if let Some(twice) = targets.windows(2).find(|pair| pair[0] == pair[1]) {
            self.wrong(format!("permute expects each target once, found {} twice", twice[0]));
        }
    }
}

/// The last element of a buffer that a batch of matrices reaches; `None` beyond 64 bits.
fn last_element([outer, batch, rows, cols]: [u64; 4], matrix: &Matrix) -> Option<u64> {
    let Matrix { buffer: _, batch_stride_elems, outer_stride_elems, row_stride_elems, col_stride_elems } = *matrix;
    let dims =
        [(outer, outer_stride_elems), (batch, batch_stride_elems), (rows, row_stride_elems), (cols, col_stride_elems)];
    dims.into_iter().try_fold(0u64, |last, (n, stride)| last.checked_add((n - 1).checked_mul(stride)?))
}

/// Whether a product's elements lie apart: taken by stride, each dim steps over all that the smaller ones reach.
fn writes_each_once(gemm: &Gemm) -> bool {
    let output = &gemm.output;
    let dims = [
        (output.outer_stride_elems, gemm.outer_batch),
        (output.batch_stride_elems, gemm.batch),
        (output.row_stride_elems, gemm.m),
        (output.col_stride_elems, gemm.n),
    ];
    let mut dims: Vec<(u64, u64)> = dims.into_iter().filter(|&(_, n)| n > 1).collect();
    dims.sort();
    let mut reach = 0u64;
    dims.into_iter().all(|(stride, n)| {
        let is_apart = stride > reach;
        reach = reach.saturating_add(stride.saturating_mul(n - 1));
        is_apart
    })
}

/// Whether each parameter of a kernel's source is written (a pointer to what is not `const`); `None` if the source is not
/// CUDA C++.
fn stated_accesses(kernel: &Kernel) -> Option<Vec<bool>> {
    let (head, _) = kernel.source.split_once(") {")?;
    let (_, parameters) = head.rsplit_once(&format!("{}(", kernel.name))?;
    if !head.contains("__global__") {
        return None;
    }
    Some(parameters.split(", ").map(|parameter| !parameter.trim_start().starts_with("const ")).collect())
}
