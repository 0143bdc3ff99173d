//! Walks a module: each instruction's value from those of its operands.

use crate::array::{Tree, Value};
use crate::elementwise::ElementwiseOp;
use crate::functions::{effect_of, is_function, may_differ};
use crate::prover::{Prover, Side};
use crate::rules::Rules;
use crate::segment::row_major;
use crate::term::{ArrayId, Node, WordId};
use hashbrown::HashMap;
use hlo_ir::attrs::{
    CallAttrs, CompareAttrs, DimsAttrs, DotAttrs, DynamicSliceAttrs, FusionAttrs, IotaAttrs, PadAttrs, ParameterAttrs,
    ReduceAttrs, SliceAttrs, TupleIndexAttrs, default_order,
};
use hlo_ir::monoid::find_monoid;
use hlo_ir::op::{Begun, Effects, EvalRoutine, EvalRule, FactorRule, Flow, OneArrayRoutine};
use hlo_ir::{ArrayShape, CompId, ConstantValue, DType, InstId, Opcode, Shape};
use smallvec::SmallVec;
use std::rc::Rc;

/// The operands and the value that the instructions of a loop's body had when they were last looked at.
pub(crate) type Known = HashMap<InstId, (SmallVec<[Tree; 4]>, Tree)>;

impl Prover {
    /// The result of a computation on these arguments.
    pub(crate) fn run(&mut self, side: &mut Side<'_>, comp: CompId, args: Vec<Tree>) -> Tree {
        self.run_again(side, comp, args, None)
    }

    /// As [`Prover::run`], for a computation that an instruction calls.
    pub(crate) fn run_called(&mut self, side: &mut Side<'_>, site: InstId, comp: CompId, args: Vec<Tree>) -> Tree {
        self.run_called_again(side, site, comp, args, None)
    }

    /// As [`Prover::run_called`] and [`Prover::run_again`].
    pub(crate) fn run_called_again(
        &mut self,
        side: &mut Side<'_>,
        site: InstId,
        comp: CompId,
        args: Vec<Tree>,
        known: Option<&mut Known>,
    ) -> Tree {
        if let Some(trace) = &mut self.trace {
            trace.enter(side.module, site, comp);
            let result = self.run_again(side, comp, args, known);
            if let Some(trace) = &mut self.trace {
                trace.leave();
            }
            return result;
        }
        if known.is_some() || self.is_impure(side, comp) {
            return self.run_again(side, comp, args, known);
        }
        // A call on values that were seen gives what it gave: calls within calls would take twice as long with each level.
        let state = (side.number, comp, self.parent, self.n_forgotten);
        if let Some(result) = self.calls.get(&state).and_then(|calls| calls.get(&args)) {
            return result.clone();
        }
        let result = self.run_again(side, comp, args.clone(), None);
        if state.3 == self.n_forgotten {
            self.calls.entry(state).or_default().insert(args, result.clone());
        }
        result
    }

    /// Whether a computation has effects or hidden state, so that it may give another result each time.
    pub(crate) fn is_impure(&mut self, side: &Side<'_>, comp: CompId) -> bool {
        if let Some(&known) = self.impure.get(&(side.number, comp)) {
            return known;
        }
        let is_impure = may_differ(side.module, comp);
        self.impure.insert((side.number, comp), is_impure);
        is_impure
    }

    /// As [`Prover::run`], but instructions that have the operands of the last time have the value of the last time.
    pub(crate) fn run_again(
        &mut self,
        side: &mut Side<'_>,
        comp: CompId,
        args: Vec<Tree>,
        mut known: Option<&mut Known>,
    ) -> Tree {
        let module = side.module;
        let computation = module.comp(comp);
        let mut values: HashMap<InstId, Tree> = HashMap::with_capacity(computation.insts.len());
        for &inst in &computation.insts {
            if self.arrays.terms.deadline.has_passed() {
                return Tree::Tuple(Rc::new(Vec::new()));
            }
            let before = self.arrays.terms.len();
            let instruction = module.inst(inst);
            let operands = instruction.operands.iter().filter_map(|o| values.get(o).cloned());
            let operands: SmallVec<[Tree; 4]> = operands.collect();
            let is_complete = operands.len() == instruction.operands.len();
            // Loops within are read anew: they are noted as they are read.
            let may_be_known = match instruction.opcode.row().flow {
                // An effect takes the world as well, which is no operand.
                Flow::All | Flow::Collective(_) => known.is_some() && is_complete && effect_of(module, inst).is_none(),
                Flow::Parameter
                | Flow::Constant
                | Flow::Tuple
                | Flow::GetTupleElement
                | Flow::Identity
                | Flow::Call
                | Flow::While
                | Flow::Conditional
                | Flow::ReplicaId
                | Flow::PartitionId
                | Flow::AsyncStart(_)
                | Flow::AsyncUpdate
                | Flow::AsyncDone => false,
            };
            let last = known.as_ref().filter(|_| may_be_known).and_then(|known| known.get(&inst));
            if let Some((_, value)) = last.filter(|last| last.0 == operands) {
                values.insert(inst, value.clone());
                continue;
            }
            let value = if is_complete { self.step(side, inst, &operands, &args) } else { None };
            let value = value.unwrap_or_else(|| self.whole_op(side, inst, &operands));
            self.note_origin(before, side.number, inst);
            if let Some(known) = &mut known {
                known.insert(inst, (operands, value.clone()));
            }
            if let Some(trace) = &mut self.trace {
                trace.note(side.number, inst, &value);
            }
            values.insert(inst, value);
        }
        computation
            .root
            .expand()
            .and_then(|root| values.remove(&root))
            .unwrap_or_else(|| Tree::Tuple(Rc::new(Vec::new())))
    }

    /// The value of an instruction; `None` if no rule gives it, so that it is a function of its whole operands.
    fn step(&mut self, side: &mut Side<'_>, inst: InstId, operands: &[Tree], args: &[Tree]) -> Option<Tree> {
        let module = side.module;
        let instruction = module.inst(inst);
        let row = instruction.opcode.row();
        // What calls a computation with effects is no function of its operands, whatever the computation gives.
        let has_rule = matches!(row.flow, Flow::Collective(_) | Flow::AsyncStart(Begun::Collective(_)) | Flow::All);
        if has_rule && effect_of(module, inst).is_some() {
            return None;
        }
        match row.flow {
            Flow::Parameter => {
                let number = ParameterAttrs::of(&instruction.attrs)?.number;
                args.get(usize::try_from(number).ok()?).cloned()
            }
            Flow::Constant => self.constant(instruction.attrs.as_constant()?),
            Flow::Tuple => Some(Tree::Tuple(Rc::new(operands.to_vec()))),
            Flow::GetTupleElement => {
                let index = TupleIndexAttrs::of(&instruction.attrs)?.index;
                match &operands[0] {
                    Tree::Tuple(elements) => elements.get(usize::try_from(index).ok()?).cloned(),
                    Tree::Leaf(_) => None,
                }
            }
            Flow::Identity => operands.first().cloned(),
            Flow::Call => {
                let callee = CallAttrs::of(&instruction.attrs).map(|a| a.to_apply);
                let callee = callee.or_else(|| FusionAttrs::of(&instruction.attrs).map(|a| a.calls))??;
                Some(self.run_called(side, inst, callee, operands.to_vec()))
            }
            Flow::While => self.run_while(side, inst, operands.first()?),
            Flow::Conditional => self.run_conditional(side, inst, operands),
            Flow::ReplicaId | Flow::PartitionId if !side.has_device_numbers => {
                let number = self.arrays.terms.unique(1);
                Some(Tree::Leaf(Value::Same(self.arrays.whole(number, 1))))
            }
            Flow::ReplicaId | Flow::PartitionId => {
                let partitions = module.header.num_partitions.max(1);
                let is_replica = matches!(row.flow, Flow::ReplicaId);
                let id = |d: i64| if is_replica { d / partitions } else { d % partitions };
                let dtype = module.shape(inst).as_array()?.dtype;
                let n = self.n_devices() as i64;
                Some(Tree::Leaf(self.arrays.numbers(dtype, (0..n).map(id))))
            }
            Flow::Collective(rule) => self.collective(side, inst, rule, operands),
            Flow::AsyncStart(begun) => {
                let result = match begun {
                    Begun::Call => {
                        let callee = *module.called(inst).first()?;
                        self.run_called(side, inst, callee, operands.to_vec())
                    }
                    Begun::Copy => operands.first()?.clone(),
                    Begun::Collective(rule) => self.collective(side, inst, rule, operands)?,
                };
                // Whatever the shape of a start, its done takes the second element.
                let operands = Tree::Tuple(Rc::new(operands.to_vec()));
                Some(Tree::Tuple(Rc::new(vec![operands, result])))
            }
            Flow::AsyncUpdate => operands.first().cloned(),
            Flow::AsyncDone => match operands.first()? {
                Tree::Tuple(elements) if elements.len() == 2 => elements.get(1).cloned(),
                Tree::Tuple(_) | Tree::Leaf(_) => None,
            },
            Flow::All if instruction.opcode == Opcode::CustomCall => match self.annotation(side, inst, operands) {
                Some(value) => Some(value),
                None if is_function(module, inst) => self.unit_op(side, inst, operands),
                None => None,
            },
            Flow::All => match self.array_op(side, inst, operands) {
                Some(value) => Some(Tree::Leaf(value)),
                None if is_function(module, inst) => self.unit_op(side, inst, operands),
                None => None,
            },
        }
    }

    fn constant(&mut self, value: &ConstantValue) -> Option<Tree> {
        match value {
            ConstantValue::Array(literal) => {
                let n = literal.n_elems() as i64;
                let literal = match literal.get(0) {
                    Some(first) if literal.is_splat() => hlo_ir::Literal::scalar(literal.dtype(), first),
                    Some(_) | None => literal.clone().with_dims(&[n]).ok()?,
                };
                let term = self.arrays.terms.constant(literal);
                Some(Tree::Leaf(Value::Same(self.arrays.whole(term, n))))
            }
            ConstantValue::Tuple(values) => {
                let elements: Option<Vec<Tree>> = values.iter().map(|v| self.constant(v)).collect();
                Some(Tree::Tuple(Rc::new(elements?)))
            }
            ConstantValue::Elided => None,
        }
    }

    /// The value of an op on arrays that gives an array, as its factors say.
    fn array_op(&mut self, side: &mut Side<'_>, inst: InstId, operands: &[Tree]) -> Option<Value> {
        let module = side.module;
        let instruction = module.inst(inst);
        let to = module.shape(inst).as_array()?;
        if to.n_elems() == 0 {
            return Some(Value::Same(self.arrays.intern(Vec::new())));
        }
        let values: Vec<&Value> = operands.iter().map(leaf).collect::<Option<_>>()?;
        let shapes: Vec<&ArrayShape> =
            instruction.operands.iter().map(|&o| module.shape(o).as_array()).collect::<Option<_>>()?;
        if to.dynamic != 0 || shapes.iter().any(|s| s.dynamic != 0) {
            return None;
        }
        let attrs = &instruction.attrs;
        match instruction.opcode.row().factors {
            FactorRule::Elementwise => self.elementwise_op(side, inst, &values, &shapes, to),
            FactorRule::Broadcast => {
                self.broadcast(values[0], &shapes[0].dims, &DimsAttrs::of(attrs)?.dimensions, &to.dims)
            }
            FactorRule::Reshape => Some(values[0].clone()),
            FactorRule::Bitcast if shapes[0].dtype == to.dtype => self.bitcast(values[0], shapes[0], to),
            FactorRule::BitcastConvert if shapes[0].dtype == to.dtype => Some(values[0].clone()),
            FactorRule::BitcastConvert if shapes[0].dims == to.dims => {
                self.elementwise_op(side, inst, &values, &shapes, to)
            }
            FactorRule::Transpose => self.transpose(values[0], &shapes[0].dims, &DimsAttrs::of(attrs)?.dimensions),
            FactorRule::Reverse => {
                let reversed = &DimsAttrs::of(attrs)?.dimensions;
                let mut steps = row_major(&to.dims);
                let mut start = 0;
                for &d in reversed {
                    let d = usize::try_from(d).ok()?;
                    start += (to.dims[d] - 1) * steps[d];
                    steps[d] = -steps[d];
                }
                self.view(values[0], &to.dims, start, &steps)
            }
            FactorRule::Slice => {
                let slice = &SliceAttrs::of(attrs)?.slice;
                let steps = row_major(&shapes[0].dims);
                let start = slice.iter().zip(&steps).map(|(s, step)| s.start * step).sum();
                let steps: Vec<i64> = slice.iter().zip(&steps).map(|(s, step)| s.stride.max(1) * step).collect();
                self.view(values[0], &to.dims, start, &steps)
            }
            FactorRule::DynamicSlice => {
                let sizes = &DynamicSliceAttrs::of(attrs)?.dynamic_slice_sizes;
                let indices = self.indices(&values[1..], &shapes[1..], sizes.len())?;
                let indices: Vec<&Value> = indices.iter().collect();
                self.dynamic_slice(values[0], &indices, &shapes[0].dims, sizes)
            }
            FactorRule::DynamicUpdateSlice => {
                let indices = self.indices(&values[2..], &shapes[2..], to.rank())?;
                let indices: Vec<&Value> = indices.iter().collect();
                let index_dtype = shapes.get(2).map_or(DType::S32, |s| s.dtype);
                self.dynamic_update(values[0], values[1], &indices, &to.dims, &shapes[1].dims, (to.dtype, index_dtype))
            }
            FactorRule::Pad => self.pad(values[0], values[1], &shapes[0].dims, &PadAttrs::of(attrs)?.padding, &to.dims),
            FactorRule::Concatenate => {
                let dim = usize::try_from(*DimsAttrs::of(attrs)?.dimensions.first()?).ok()?;
                let sizes: Vec<i64> = shapes.iter().map(|s| s.dims[dim]).collect();
                self.concatenate(&values, &sizes, dim, &to.dims)
            }
            FactorRule::Iota => {
                let along = usize::try_from(IotaAttrs::of(attrs)?.iota_dimension).ok()?;
                self.iota(to.dtype, &to.dims, along).map(Value::Same)
            }
            FactorRule::Dot => {
                let [lhs, rhs] = values.as_slice() else { return None };
                let dtypes = [shapes[0].dtype, shapes[1].dtype, to.dtype];
                self.dot((lhs, &shapes[0].dims), (rhs, &shapes[1].dims), DotAttrs::of(attrs)?, dtypes)
            }
            FactorRule::Reduce => {
                let [value, init] = values.as_slice() else { return None };
                let attrs = ReduceAttrs::of(attrs)?;
                if shapes[0].n_elems() == 0 {
                    return self.splat(init, to.n_elems() as i64);
                }
                let monoid = find_monoid(module, attrs.to_apply?)?;
                let identity = hlo_ir::Literal::scalar(to.dtype, monoid.identity(to.dtype)?);
                let Value::Same(init) = init else { return None };
                let init = self.scalar_term(*init)?;
                if self.arrays.terms.as_constant(init) != Some(&identity) {
                    return None;
                }
                self.reduce(value, &shapes[0].dims, &attrs.dimensions, monoid, to.dtype)
            }
            FactorRule::Convolution | FactorRule::ReduceWindow => self.window_op(module, inst, &values, &shapes),
            FactorRule::Gather | FactorRule::Scatter => self.indexed_op(module, inst, &values, &shapes),
            // Functions of whole operands, as far as the rules go.
            FactorRule::Bitcast
            | FactorRule::BitcastConvert
            | FactorRule::SelectAndScatter
            | FactorRule::Sort
            | FactorRule::Cholesky
            | FactorRule::TriangularSolve
            | FactorRule::Fft
            | FactorRule::BatchNorm
            | FactorRule::CustomCall
            | FactorRule::Structural(_)
            | FactorRule::Whole(_) => None,
        }
    }

    /// One index for each dim, whether they are scalars or the elements of one vector.
    fn indices(&mut self, values: &[&Value], shapes: &[&ArrayShape], n: usize) -> Option<Vec<Value>> {
        if let ([vector], [shape]) = (values, shapes)
            && shape.rank() == 1
        {
            return (0..n as i64).map(|k| self.view(vector, &[], k, &[])).collect();
        }
        (values.len() == n).then(|| values.iter().map(|&v| v.clone()).collect())
    }

    fn elementwise_op(
        &mut self,
        side: &mut Side<'_>,
        inst: InstId,
        values: &[&Value],
        shapes: &[&ArrayShape],
        to: &ArrayShape,
    ) -> Option<Value> {
        let module = side.module;
        let instruction = module.inst(inst);
        let row = instruction.opcode.row();
        let is_pure = matches!(row.effects, Effects::Pure);
        if !is_pure || matches!(row.eval, EvalRule::Routine(EvalRoutine::OneArray(OneArrayRoutine::Map))) {
            return None;
        }
        let n = to.n_elems() as i64;
        // Scalars among arrays: the predicate of a select, the bounds of a clamp.
        let mut spread: Vec<Value> = Vec::with_capacity(values.len());
        for (value, shape) in values.iter().zip(shapes) {
            spread.push(if shape.n_elems() as i64 == n { (*value).clone() } else { self.splat(value, n)? });
        }
        let compare = CompareAttrs::of(&instruction.attrs);
        let attributes = match compare {
            Some(attrs) if attrs.order.as_str() == default_order(shapes.first()?.dtype) => String::new(),
            Some(attrs) => attrs.order.as_str().to_string(),
            None => side.words.attributes(&mut self.arrays.terms, module, inst),
        };
        let op = ElementwiseOp {
            opcode: instruction.opcode,
            dtype: to.dtype,
            operand_dtype: shapes.first()?.dtype,
            comparison: compare.map(|attrs| attrs.direction),
            attributes,
        };
        let values: Vec<&Value> = spread.iter().collect();
        self.elementwise(op, &values, n)
    }

    /// An instruction as a function of its whole operands; what has effects or hidden state equals nothing.
    fn whole_op(&mut self, side: &mut Side<'_>, inst: InstId, operands: &[Tree]) -> Tree {
        let module = side.module;
        let instruction = module.inst(inst);
        let is_known = is_function(module, inst);
        // What devices exchange is a function of the operands of all of them.
        let is_exchange = instruction.opcode.row().effects == Effects::Communicates;
        let complete = operands.len() == instruction.operands.len();
        let values: Vec<Value> = operands.iter().flat_map(Tree::leaves).collect();
        let shape = module.shape(inst).without_layout();
        if !is_known || !complete {
            let effect = if complete { self.effect(side, inst, &values) } else { None };
            return effect.unwrap_or_else(|| {
                self.of_leaves(&shape, &mut |p, n, _| {
                    let term = p.arrays.terms.unique(n);
                    Value::Same(p.arrays.whole(term, n))
                })
            });
        }
        let mut text = format!("{} {shape:?}", instruction.opcode);
        for &operand in &instruction.operands {
            text.push_str(&format!(" {:?}", module.shape(operand).without_layout()));
        }
        text.push_str(&side.words.attributes(&mut self.arrays.terms, module, inst));
        // What these give depends on the order of elements in memory.
        let row = instruction.opcode.row();
        if matches!(row.factors, FactorRule::Bitcast | FactorRule::BitcastConvert | FactorRule::CustomCall) {
            for &with_layout in instruction.operands.iter().chain([&inst]) {
                let mut shape = module.shape(with_layout).clone();
                shape.fill_layouts();
                text.push_str(&format!(" {shape:?}"));
            }
        }
        if is_exchange {
            // How groups are read depends on attributes that otherwise say nothing of the result.
            let groups = module.device_groups(inst).map(|groups| groups.groups);
            text.push_str(&format!(" {groups:?} {:?}", module.device_pairs(inst)));
        }
        let word = self.arrays.terms.word(&text);
        let refs: Vec<&Value> = values.iter().collect();
        if is_exchange {
            let n_devices = self.n_devices();
            let arrays: Vec<ArrayId> =
                values.iter().flat_map(|v| (0..n_devices).map(|d| self.arrays.on(v, d)).collect::<Vec<_>>()).collect();
            let classes = self.arrays.terms.devices.all_different();
            let rules = self.rules_of(&arrays);
            return self.of_leaves(&shape, &mut |p, n, leaf| {
                let term = p.arrays.terms.leaf(Node::Whole(word, arrays.clone(), leaf), n, classes, rules);
                Value::Same(p.arrays.whole(term, n))
            });
        }
        self.of_leaves(&shape, &mut |p, n, leaf| p.leaf_of_whole(word, &refs, n, leaf))
    }

    /// A leaf of what an op makes of whole operands, on each device of its own.
    pub(crate) fn leaf_of_whole(&mut self, word: WordId, operands: &[&Value], n: i64, leaf: u32) -> Value {
        let value = self.map(operands, |p, arrays| {
            let mut classes = crate::devices::Classes::ALL_EQUAL;
            for &array in arrays {
                let own = p.arrays.classes_of_array(array);
                classes = p.arrays.terms.devices.join(classes, own);
            }
            let rules = p.rules_of(arrays);
            let term = p.arrays.terms.leaf(Node::Whole(word, arrays.to_vec(), leaf), n, classes, rules);
            Some(p.arrays.whole(term, n))
        });
        value.unwrap_or_else(|| Value::Same(self.arrays.intern(Vec::new())))
    }

    /// The rules that the terms of arrays rest on.
    pub(crate) fn rules_of(&self, arrays: &[ArrayId]) -> Rules {
        let mut rules = Rules::NONE;
        for &array in arrays {
            for segment in self.arrays.segments(array).iter() {
                rules = rules | self.arrays.terms.rules(segment.term);
            }
        }
        rules
    }

    /// A value of a shape, leaf by leaf: `make` gets the number of elements and the leaf's number.
    pub(crate) fn of_leaves(&mut self, shape: &Shape, make: &mut dyn FnMut(&mut Prover, i64, u32) -> Value) -> Tree {
        fn walk(
            p: &mut Prover,
            shape: &Shape,
            next: &mut u32,
            make: &mut dyn FnMut(&mut Prover, i64, u32) -> Value,
        ) -> Tree {
            match shape {
                Shape::Tuple(elements) => {
                    Tree::Tuple(Rc::new(elements.iter().map(|e| walk(p, e, next, make)).collect()))
                }
                Shape::Array(array) | Shape::Buffer(array) => {
                    *next += 1;
                    let n = array.n_elems() as i64;
                    match n {
                        0 => Tree::Leaf(Value::Same(p.arrays.intern(Vec::new()))),
                        _ => Tree::Leaf(make(p, n, *next - 1)),
                    }
                }
                // Which effects a token stands for is its value.
                Shape::Token => {
                    *next += 1;
                    Tree::Leaf(make(p, 1, *next - 1))
                }
                Shape::Opaque => {
                    *next += 1;
                    Tree::Leaf(Value::Same(p.arrays.intern(Vec::new())))
                }
            }
        }
        walk(self, shape, &mut 0, make)
    }
}

fn leaf(tree: &Tree) -> Option<&Value> {
    match tree {
        Tree::Leaf(value) => Some(value),
        Tree::Tuple(_) => None,
    }
}
