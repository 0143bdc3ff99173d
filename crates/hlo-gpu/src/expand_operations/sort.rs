//! `sort` and `topk` as comparisons, sums and gathers.
//!
//! **Ranks.** Where rows are short and elements have a total order, each element's rank is the number of elements that come before it:
//! `n²` comparisons in one reduction. The element of rank `r` stands where the sum of `[rank i = r] · i` says.
//!
//! **Networks.** Long rows, and orders in which a comparator may contradict itself (a NaN that is neither less nor greater), go through
//! Batcher's bitonic network (K. E. Batcher 1968, *Sorting networks and their applications*): `log² n / 2` steps, each of which compares
//! every element with one other. Whatever the comparator says, the result is a permutation.
//!
//! Both keep the order of equal elements: where neither comes first, the one that stood first does. So does the evaluator.

use super::writer::Writer;
use hashbrown::HashMap;
use hlo_ir::attrs::{Attrs, Comparison, CustomAttrs, GatherAttrs, SortAttrs, TopKAttrs};
use hlo_ir::op::FactorRule;
use hlo_ir::{CompId, ConstantValue, DType, Dims, InstId, Module, NumberClass, Opcode, Scalar};

/// Elements of a row up to which all pairs are compared.
const MOST_RANKED: i64 = 4096;
/// Elements of a row up to which a network is written: it has 300 steps then.
const MOST_SORTED: i64 = 1 << 24;

/// What comes before what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// A computation of `(a0, b0, a1, b1, …)` says whether the first elements do.
    By(CompId),
    /// The larger one of the only operand, or the smaller one, in the total order of its type.
    Total { largest: bool },
}

/// Writes what a `sort` gives; none if its comparator is not made of elementwise operations, or its rows are too long.
pub(super) fn expand_sort(w: &mut Writer<'_>, sort: InstId) -> Option<InstId> {
    let (operands, attrs) = {
        let sort = w.module.inst(sort);
        (sort.operands.to_vec(), SortAttrs::of(&sort.attrs)?.clone())
    };
    let dim = usize::try_from(*attrs.dimensions.first()?).ok()?;
    let order = Order::By(attrs.to_apply?);
    let n = *w.dims(*operands.first()?).get(dim)?;
    let (sorted, _) = Rows { dim, n_kept: n, order }.sorted(w, &operands)?;
    let shape = w.module.shape(sort).clone();
    match (shape.as_tuple(), sorted.as_slice()) {
        (Some(shapes), _) => {
            let laid: Vec<InstId> = sorted.iter().zip(shapes).map(|(&a, like)| w.laid_out_as(a, like)).collect();
            Some(w.tuple(&laid))
        }
        (None, &[only]) => Some(w.laid_out_as(only, &shape)),
        (None, _) => None,
    }
}

/// Writes what a `topk`, or a custom call that is one, gives: values and their positions.
pub(super) fn expand_topk(w: &mut Writer<'_>, topk: InstId) -> Option<InstId> {
    let &[operand] = w.module.inst(topk).operands.as_slice() else { return None };
    let dims = w.dims(operand);
    let dim = dims.len().checked_sub(1)?;
    let (mut operands, order) = (vec![operand], order_of_topk(w.module, topk)?);
    if matches!(order, Order::By(_)) {
        // Its comparator is given positions too.
        operands.push(w.iota(DType::S32, &dims, dim));
    }
    let shape = w.module.shape(topk).clone();
    let [of_values, of_positions] = shape.as_tuple()? else { return None };
    let n_kept = *of_values.as_array()?.dims.last()?;
    let (sorted, positions) = Rows { dim, n_kept, order }.sorted(w, &operands)?;
    let values = w.laid_out_as(*sorted.first()?, of_values);
    let positions = w.laid_out_as(positions, of_positions);
    Some(w.tuple(&[values, positions]))
}

fn order_of_topk(module: &Module, inst: InstId) -> Option<Order> {
    let attrs = &module.inst(inst).attrs;
    if let Some(TopKAttrs { largest, .. }) = TopKAttrs::of(attrs) {
        return Some(Order::Total { largest: *largest });
    }
    let custom = CustomAttrs::of(attrs).filter(|custom| custom.custom_call_target.0 == "TopK")?;
    let comparator = custom.called_computations.iter().copied().chain(custom.to_apply).next()?;
    let positions = module.shape(inst).as_tuple()?.get(1)?.as_array()?;
    (positions.dtype == DType::S32 && module.comp(comparator).params.len() == 4).then_some(Order::By(comparator))
}

/// Rows along a dim, and how many elements of each sorted row are wanted.
#[derive(Clone, Copy)]
struct Rows {
    dim: usize,
    n_kept: i64,
    order: Order,
}

impl Rows {
    /// The sorted operands, and where their elements stood.
    fn sorted(self, w: &mut Writer<'_>, operands: &[InstId]) -> Option<(Vec<InstId>, InstId)> {
        let dims = w.dims(*operands.first()?);
        let n = dims[self.dim];
        if dims.iter().product::<i64>() == 0 || self.n_kept == 0 || !self.is_written(w.module) {
            return None;
        }
        if n <= MOST_RANKED && self.is_total(w.module) {
            let positions = self.by_rank(w, operands);
            let sorted = operands.iter().map(|&operand| self.gather(w, operand, positions)).collect();
            return Some((sorted, positions));
        }
        (n <= MOST_SORTED).then(|| self.by_network(w, operands))
    }

    /// Whether the comparator can be written for whole arrays.
    fn is_written(self, module: &Module) -> bool {
        let Order::By(comp) = self.order else { return true };
        module.comp(comp).insts.iter().all(|&inst| {
            let instruction = module.inst(inst);
            let opcode = instruction.opcode;
            let is_constant =
                matches!(&instruction.attrs, Attrs::Constant(value) if matches!(**value, ConstantValue::Array(_)));
            let is_elementwise = opcode.row().factors == FactorRule::Elementwise && opcode.is_pure();
            let is_simple = opcode == Opcode::Parameter || is_constant || is_elementwise;
            is_simple && module.shape(inst).as_array().is_some_and(|array| array.dims.is_empty())
        })
    }

    /// Whether no two elements can each come before the other, and none stands outside of the order: a comparison of both sides is of
    /// integers, or in total order.
    fn is_total(self, module: &Module) -> bool {
        let Order::By(comp) = self.order else { return true };
        // Which sides' elements each value depends on.
        let mut sides: HashMap<InstId, [bool; 2]> = HashMap::new();
        let params = &module.comp(comp).params;
        module.comp(comp).insts.iter().all(|&inst| {
            let instruction = module.inst(inst);
            let mut own = [false; 2];
            if let Some(number) = params.iter().position(|&param| param == inst) {
                own[number % 2] = true;
            }
            for operand in &instruction.operands {
                let of_operand = sides.get(operand).copied().unwrap_or_default();
                own = [own[0] || of_operand[0], own[1] || of_operand[1]];
            }
            sides.insert(inst, own);
            let Attrs::Compare(compare) = &instruction.attrs else { return true };
            let dtype =
                instruction.operands.first().and_then(|&operand| module.shape(operand).as_array()).map(|a| a.dtype);
            let is_number = |class| matches!(class, NumberClass::Signed | NumberClass::Unsigned | NumberClass::Pred);
            own != [true; 2]
                || compare.order.as_str() == "TOTALORDER"
                || dtype.is_some_and(|dtype| is_number(dtype.class()))
        })
    }

    /// Whether the elements `a` come before the elements `b`, if neither stood first.
    fn before(self, w: &mut Writer<'_>, a: &[InstId], b: &[InstId]) -> InstId {
        let comp = match self.order {
            Order::By(comp) => comp,
            Order::Total { largest } => {
                let direction = if largest { Comparison::Gt } else { Comparison::Lt };
                return w.compare_totally(direction, a[0], b[0]);
            }
        };
        let dims = w.dims(a[0]);
        let params = w.module.comp(comp).params.clone();
        let pairs = a.iter().zip(b).flat_map(|(&a, &b)| [a, b]);
        let mut arrays: HashMap<InstId, InstId> = params.into_iter().zip(pairs).collect();
        for inst in w.module.comp(comp).insts.clone() {
            let instruction = w.module.inst(inst).clone();
            let dtype = w.dtype(inst);
            let operands: Vec<InstId> =
                instruction.operands.iter().filter_map(|operand| arrays.get(operand).copied()).collect();
            if instruction.opcode == Opcode::Parameter {
                continue;
            }
            let array = if instruction.opcode == Opcode::Constant {
                let scalar = w.add(Opcode::Constant, (dtype, &[]), &[], instruction.attrs);
                w.broadcast(scalar, &dims, &[])
            } else {
                w.add(instruction.opcode, (dtype, &dims), &operands, instruction.attrs)
            };
            arrays.insert(inst, array);
        }
        let root = w.module.comp(comp).root.expand();
        root.and_then(|root| arrays.get(&root).copied()).unwrap_or(a[0])
    }

    /// Where the elements of the sorted row stood.
    fn by_rank(self, w: &mut Writer<'_>, operands: &[InstId]) -> InstId {
        let mut dims = w.dims(operands[0]);
        let (n, last) = (dims[self.dim], dims.len());
        // All pairs: element `i` along the dim, element `j` along a new last one.
        let mut pairs = dims.clone();
        pairs.push(n);
        let along: Vec<usize> = (0..last).collect();
        let mut across = along.clone();
        across[self.dim] = last;
        let i: Vec<InstId> = operands.iter().map(|&operand| w.broadcast(operand, &pairs, &along)).collect();
        let j: Vec<InstId> = operands.iter().map(|&operand| w.broadcast(operand, &pairs, &across)).collect();
        let (at_i, at_j) = (w.iota(DType::S32, &pairs, self.dim), w.iota(DType::S32, &pairs, last));
        let i_first = self.before(w, &i, &j);
        let j_first = self.before(w, &j, &i);
        let not_i_first = w.each(Opcode::Not, &[i_first]);
        let stood_first = w.compare(Comparison::Lt, at_j, at_i);
        let is_before =
            w.add(Opcode::Select, (DType::Pred, &pairs), &[stood_first, not_i_first, j_first], Attrs::Plain);
        // A comparator may say that an element comes before itself.
        let is_other = w.compare(Comparison::Ne, at_j, at_i);
        let is_before = w.each(Opcode::And, &[is_before, is_other]);
        let counted = w.convert(is_before, DType::S32);
        let rank = w.sum(counted, &[last]);
        // The element of each wanted rank.
        dims[self.dim] = self.n_kept;
        let mut found = dims.clone();
        found.push(n);
        let (rank, wanted, at) = (
            w.broadcast(rank, &found, &across),
            w.iota(DType::S32, &found, self.dim),
            w.iota(DType::S32, &found, last),
        );
        let is_it = w.compare(Comparison::Eq, rank, wanted);
        let nothing = w.splat(DType::S32, &found, Scalar::Int(0));
        let own = w.add(Opcode::Select, (DType::S32, &found), &[is_it, at, nothing], Attrs::Plain);
        w.sum(own, &[last])
    }

    /// The elements of an operand at these positions of its rows.
    fn gather(self, w: &mut Writer<'_>, operand: InstId, positions: InstId) -> InstId {
        let dims = w.dims(positions);
        let others: Dims = (0..dims.len()).filter(|&dim| dim != self.dim).map(|dim| dim as i64).collect();
        let own: Dims = std::iter::once(self.dim as i64).collect();
        let attrs = GatherAttrs {
            collapsed_slice_dims: own.clone(),
            start_index_map: own,
            operand_batching_dims: others.clone(),
            start_indices_batching_dims: others,
            index_vector_dim: dims.len() as i64,
            slice_sizes: dims.iter().map(|_| 1).collect(),
            ..GatherAttrs::default()
        };
        w.add(Opcode::Gather, (w.dtype(operand), &dims), &[operand, positions], attrs)
    }

    /// The sorted operands, and where their elements stood.
    fn by_network(self, w: &mut Writer<'_>, operands: &[InstId]) -> (Vec<InstId>, InstId) {
        let dims = w.dims(operands[0]);
        let n = dims[self.dim];
        let size = n.unsigned_abs().next_power_of_two() as i64;
        let positions = w.iota(DType::S32, &dims, self.dim);
        let mut columns: Vec<InstId> = operands.iter().copied().chain([positions]).collect();
        if size > n {
            // What is added has positions behind all others.
            columns.iter_mut().for_each(|column| *column = w.pad(*column, self.dim, size));
            let padded = w.dims(columns[0]);
            if let Some(last) = columns.last_mut() {
                *last = w.iota(DType::S32, &padded, self.dim);
            }
        }
        let mut block = 2;
        while block <= size {
            columns = self.step(w, &columns, Step { distance: block / 2, is_mirrored: true, n });
            let mut distance = block / 4;
            while distance >= 1 {
                columns = self.step(w, &columns, Step { distance, is_mirrored: false, n });
                distance /= 2;
            }
            block *= 2;
        }
        let kept = (0, self.n_kept);
        columns.iter_mut().for_each(|column| *column = w.slice(*column, self.dim, kept));
        let positions = columns.pop().unwrap_or(positions);
        (columns, positions)
    }

    /// Compares each element with another one of its block, and puts the two in order.
    fn step(self, w: &mut Writer<'_>, columns: &[InstId], step: Step) -> Vec<InstId> {
        let dims = w.dims(columns[0]);
        let mut halves = dims.clone();
        halves[self.dim] = dims[self.dim] / (2 * step.distance);
        halves.insert(self.dim + 1, 2);
        halves.insert(self.dim + 2, step.distance);
        let (middle, inner) = (self.dim + 1, self.dim + 2);
        let turned = |w: &mut Writer<'_>, half: InstId| if step.is_mirrored { w.reverse(half, inner) } else { half };
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for &column in columns {
            let parts = w.reshape(column, &halves);
            left.push(w.slice(parts, middle, (0, 1)));
            let half = w.slice(parts, middle, (1, 2));
            right.push(turned(w, half));
        }
        let swaps = self.swaps(w, &left, &right, step.n);
        let mut ordered = Vec::new();
        for (&a, &b) in left.iter().zip(&right) {
            let first = w.each(Opcode::Select, &[swaps, b, a]);
            let second = w.each(Opcode::Select, &[swaps, a, b]);
            let second = turned(w, second);
            let both = w.concatenate([first, second], middle);
            ordered.push(w.reshape(both, &dims));
        }
        ordered
    }

    /// Whether the elements of `b` come before those of `a`; the last arrays are positions, those from `n` on stand for no element.
    fn swaps(self, w: &mut Writer<'_>, a: &[InstId], b: &[InstId], n: i64) -> InstId {
        let (Some((&at_a, a)), Some((&at_b, b))) = (a.split_last(), b.split_last()) else { return a[0] };
        let a_first = self.before(w, a, b);
        let b_first = self.before(w, b, a);
        let not_a_first = w.each(Opcode::Not, &[a_first]);
        let b_stood_first = w.compare(Comparison::Lt, at_b, at_a);
        let swaps = w.each(Opcode::Select, &[b_stood_first, not_a_first, b_first]);
        let dims = w.dims(at_a);
        let end = w.splat(DType::S32, &dims, Scalar::Int(n));
        let (has_a, has_b) = (w.compare(Comparison::Lt, at_a, end), w.compare(Comparison::Lt, at_b, end));
        let no_a = w.each(Opcode::Not, &[has_a]);
        let swaps = w.each(Opcode::Or, &[no_a, swaps]);
        w.each(Opcode::And, &[has_b, swaps])
    }
}

/// A step of the network.
#[derive(Clone, Copy)]
struct Step {
    /// Half a block, or the distance of the elements that are compared.
    distance: i64,
    /// Whether the first element of a block is compared with its last one, and so on.
    is_mirrored: bool,
    /// Elements that are no padding.
    n: i64,
}
