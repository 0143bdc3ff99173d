//! The numeric meaning of dimension factors: every sample instruction, split along each factor that says it can be,
//! gives parts which join (or combine) to what the whole instruction gives.
//!
//! Each instruction is taken out of its module with the values that its operands have there, so indices, init values and
//! matrices are sensible. Its operands are cut in `n` equal parts along the factor (`n`: the least prime of its
//! size), a module with the local shapes runs on each part, and the parts are put together again.

use hlo_eval::{Inputs, Options, entry_leaves, run};
use hlo_ir::attrs::{Attrs, ParameterAttrs, ReduceAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::factors::{FactorKind, FactorSet, TensorFactors, find_factors};
use hlo_ir::module::Instruction;
use hlo_ir::op::{EvalRule, FactorRule, Opcode};
use hlo_ir::{ArrayShape, DType, Dims, InstId, Literal, Module, Scalar, Shape};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

type Array = Arc<Literal>;

fn sample_modules() -> Vec<(String, Module)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/ops");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("a folder of samples")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|e| e == "hlo"))
        .collect();
    files.sort();
    let parse = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a readable sample");
        let parsed = hlo_text::parse_module(&text).unwrap_or_else(|d| panic!("{}: {:?}", path.display(), d[0]));
        (path.file_stem().expect("a file name").to_string_lossy().into_owned(), parsed.module)
    };
    files.into_iter().map(parse).collect()
}

/// The module with an entry that takes `params`, applies `inst` with `attrs` to them, and returns `result`.
fn alone(module: &Module, inst: &Instruction, attrs: Attrs, params: &[Shape], result: Shape) -> Module {
    let mut module = module.clone();
    let name = module.names.fresh("alone");
    let old = module.entry().expect("an entry");
    let order: Vec<_> = module.computations().iter().copied().filter(|&c| c != old).collect();
    module.set_computation_order(order);
    let comp = module.add_computation(name);
    let mut b = Builder::new(&mut module, comp);
    let operands: Vec<InstId> = params
        .iter()
        .enumerate()
        .map(|(i, shape)| {
            let attrs = ParameterAttrs { number: i as i64, ..ParameterAttrs::default() };
            b.add("operand", Opcode::Parameter, shape.clone(), [], attrs)
        })
        .collect();
    let root = b.add("root", inst.opcode, result, operands, attrs);
    module.comp_mut(comp).root = Some(root).into();
    module.set_entry(comp);
    module.header = Default::default();
    module
}

fn run_one_device(module: &Module, inputs: &[Array]) -> Result<Vec<Array>, String> {
    hlo_ir::verify::verify(module).map_err(|d| format!("does not verify: {}", d[0].message))?;
    let inputs = Inputs { leaves: inputs.iter().map(|a| vec![a.clone()]).collect() };
    let outputs = run(module, &inputs, &Options::default()).map_err(|e| e.to_string())?;
    Ok(outputs.leaves.into_iter().map(|mut row| row.remove(0)).collect())
}

/// Values of the entry's parameters: small distinct numbers of both signs.
fn draw(shape: &ArrayShape, seed: &mut u64) -> Array {
    let n: i64 = shape.dims.iter().product();
    let mut literal = Literal::zeros(shape.dtype, &shape.dims).expect("a static shape");
    for i in 0..n as usize {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = (*seed >> 40) as f64 / (1u64 << 24) as f64;
        let value = match shape.dtype {
            DType::Pred => Scalar::Pred(x < 0.5),
            d if d.is_integer() => Scalar::Int((x * 4.0) as i64),
            d if d.is_complex() => Scalar::Complex(x * 2.0 - 1.0, 1.0 - x),
            _ => Scalar::Float(x * 2.0 - 1.0),
        };
        literal.set(i, value);
    }
    Arc::new(literal)
}

/// The operands of `inst` as the sample computes them.
fn operand_values(module: &Module, inst: InstId) -> Result<Vec<Array>, String> {
    let mut module = module.clone();
    let node = module.inst(inst).clone();
    let comp = node.parent;
    let shapes: Vec<Shape> = node.operands.iter().map(|&o| module.shape(o).clone()).collect();
    let tuple =
        Builder::new(&mut module, comp).add("t", Opcode::Tuple, Shape::Tuple(shapes), node.operands, Attrs::Plain);
    module.comp_mut(comp).root = Some(tuple).into();
    module.remove_dead(comp);
    module.header = Default::default();
    let mut seed = 7;
    let inputs: Vec<Array> = entry_leaves(&module).iter().map(|leaf| draw(&leaf.shape, &mut seed)).collect();
    run_one_device(&module, &inputs)
}

/// A tensor dim as the product of its factors; says which indices belong to part `part` of `n` along `factor`.
fn indices_of_part(set: &FactorSet, dim_factors: &[usize], factor: usize, part: i64, n: i64) -> Option<Vec<i64>> {
    let place = dim_factors.iter().position(|&f| f == factor)?;
    let size = set.factors[factor].size;
    let minor: i64 = dim_factors[place + 1..].iter().map(|&f| set.factors[f].size).product();
    let total: i64 = dim_factors.iter().map(|&f| set.factors[f].size).product();
    Some((0..total).filter(|i| i / minor % size / (size / n) == part).collect())
}

/// The dim of a tensor that a factor cuts, and the indices of each part.
fn cut(set: &FactorSet, tensor: &TensorFactors, factor: usize, part: i64, n: i64) -> Option<(usize, Vec<i64>)> {
    tensor.iter().enumerate().find_map(|(d, f)| Some((d, indices_of_part(set, f, factor, part, n)?)))
}

/// Calls `visit(index in the part, index in the whole)` for all elements of the part.
fn for_each_pair(dims: &[i64], dim: usize, indices: &[i64], visit: &mut dyn FnMut(usize, usize)) {
    let minor: i64 = dims[dim + 1..].iter().product();
    let major: i64 = dims[..dim].iter().product();
    let mut at = 0;
    for a in 0..major {
        for &i in indices {
            for c in 0..minor {
                visit(at, ((a * dims[dim] + i) * minor + c) as usize);
                at += 1;
            }
        }
    }
}

fn take(whole: &Literal, dim: usize, indices: &[i64]) -> Literal {
    let mut dims: Vec<i64> = whole.dims().to_vec();
    dims[dim] = indices.len() as i64;
    let mut part = Literal::zeros(whole.dtype(), &dims).expect("a part fits");
    for_each_pair(whole.dims(), dim, indices, &mut |to, from| {
        part.set(to, whole.get(from).expect("an index in range"));
    });
    part
}

fn put(whole: &mut Literal, part: &Literal, dim: usize, indices: &[i64]) {
    let dims = whole.dims().to_vec();
    for_each_pair(&dims, dim, indices, &mut |from, to| {
        whole.set(to, part.get(from).expect("an index in range"));
    });
}

fn local_shape(shape: &Shape, cut: &Option<(usize, Vec<i64>)>) -> Shape {
    let array = shape.as_array().expect("only arrays have factors");
    let mut dims = array.dims.clone();
    if let Some((dim, indices)) = cut {
        dims[*dim] = indices.len() as i64;
    }
    Shape::Array(ArrayShape { dims, ..array.clone() })
}

/// The attributes for the local shapes: sizes that repeat those of operand 0 or of the result shrink along.
fn local_attrs(attrs: &Attrs, whole: &[Shape], locals: &[Shape], result: &Shape) -> Attrs {
    let dims = |shape: &Shape| shape.as_array().map(|a| a.dims.clone()).unwrap_or_default();
    let mut attrs = attrs.clone();
    match &mut attrs {
        Attrs::Slice(a) => {
            for (range, (&n, &local)) in a.slice.iter_mut().zip(dims(&whole[0]).iter().zip(&dims(&locals[0]))) {
                if n != local {
                    range.limit = local;
                }
            }
        }
        Attrs::DynamicSlice(a) => a.dynamic_slice_sizes = dims(result),
        Attrs::Gather(a) => {
            for (size, (&n, &local)) in a.slice_sizes.iter_mut().zip(dims(&whole[0]).iter().zip(&dims(&locals[0]))) {
                if n != local && *size == n {
                    *size = local;
                }
            }
        }
        _ => {}
    }
    attrs
}

fn as_numbers(value: Scalar) -> [f64; 2] {
    match value {
        Scalar::Pred(x) => [f64::from(u8::from(x)), 0.0],
        Scalar::Int(x) => [x as f64, 0.0],
        Scalar::Uint(x) => [x as f64, 0.0],
        Scalar::Float(x) => [x, 0.0],
        Scalar::Complex(re, im) => [re, im],
    }
}

/// Relative distance allowed: rounding of sums in another order, in the element type's precision.
fn tolerance(dtype: DType, is_reordered: bool) -> f64 {
    match dtype {
        _ if !is_reordered => 0.0,
        DType::F64 | DType::C128 => 1e-12,
        DType::F32 | DType::C64 => 2e-6,
        DType::F16 => 4e-3,
        // Every step of a sum rounds to as few as three significant bits.
        d if d.is_float() && d.bits() <= 8 => 0.25,
        d if d.is_float() => 3e-2,
        _ => 0.0,
    }
}

fn first_difference(expected: &Literal, found: &Literal, tolerance: f64) -> Option<String> {
    if (expected.dtype(), expected.dims()) != (found.dtype(), found.dims()) {
        return Some(format!("{:?} against {:?}", expected.dims(), found.dims()));
    }
    let scale = (0..expected.n_elems()).filter_map(|i| expected.get(i)).flat_map(as_numbers);
    let scale = scale.filter(|x| x.is_finite()).fold(1.0, |m: f64, x| m.max(x.abs()));
    (0..expected.n_elems()).find_map(|i| {
        let (a, b) = (expected.get(i)?, found.get(i)?);
        let is_same = as_numbers(a)
            .into_iter()
            .zip(as_numbers(b))
            .all(|(x, y)| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * scale);
        (!is_same).then(|| format!("element {i}: {a:?} against {b:?}"))
    })
}

fn least_prime(n: i64) -> i64 {
    (2..n).find(|p| n % p == 0).unwrap_or(n)
}

/// One instruction with the values of its operands and of its result.
struct Case<'a> {
    module: &'a Module,
    node: &'a Instruction,
    operand_shapes: Vec<Shape>,
    result_shape: Shape,
    operands: Vec<Array>,
    results: Vec<Array>,
}

impl Case<'_> {
    fn leaves(&self) -> Vec<Shape> {
        self.result_shape.as_tuple().map_or(vec![self.result_shape.clone()], <[Shape]>::to_vec)
    }

    /// The results of part `part` of `n` along `factor`.
    fn run_part(&self, set: &FactorSet, factor: usize, part: i64, n: i64) -> Result<Vec<Array>, String> {
        let cuts: Vec<_> = set.operands.iter().map(|t| cut(set, t, factor, part, n)).collect();
        let locals: Vec<Shape> = self.operand_shapes.iter().zip(&cuts).map(|(s, c)| local_shape(s, c)).collect();
        let leaves: Vec<Shape> = self
            .leaves()
            .iter()
            .zip(&set.results)
            .map(|(s, t)| local_shape(s, &cut(set, t, factor, part, n)))
            .collect();
        let result = match self.result_shape {
            Shape::Tuple(_) => Shape::Tuple(leaves),
            _ => leaves[0].clone(),
        };
        let attrs = local_attrs(&self.node.attrs, &self.operand_shapes, &locals, &result);
        let inputs: Vec<Array> = self
            .operands
            .iter()
            .zip(&cuts)
            .map(|(a, c)| c.as_ref().map_or(a.clone(), |(dim, indices)| Arc::new(take(a, *dim, indices))))
            .collect();
        run_one_device(&alone(self.module, self.node, attrs, &locals, result), &inputs)
    }

    /// Joins or combines the parts; `None` where partial results cannot be combined (see [`Case::combine`]).
    fn recombine(&self, set: &FactorSet, factor: usize, parts: &[Vec<Array>]) -> Result<Option<Vec<Literal>>, String> {
        if set.factors[factor].kind == FactorKind::Reduced {
            return self.combine(parts);
        }
        let n = parts.len() as i64;
        let mut joined: Vec<Literal> =
            self.results.iter().map(|a| Literal::zeros(a.dtype(), a.dims()).expect("fits")).collect();
        for (part, results) in parts.iter().enumerate() {
            for ((whole, local), tensor) in joined.iter_mut().zip(results).zip(&set.results) {
                let (dim, indices) = cut(set, tensor, factor, part as i64, n).ok_or("a result without the factor")?;
                put(whole, local, dim, &indices);
            }
        }
        Ok(Some(joined))
    }

    /// Contractions are added; a reduction is applied to the stacked partial results, if its init value is neutral.
    fn combine(&self, parts: &[Vec<Array>]) -> Result<Option<Vec<Literal>>, String> {
        let Attrs::Reduce(attrs) = &self.node.attrs else {
            let mut sum = (*parts[0][0]).clone();
            for part in &parts[1..] {
                for i in 0..sum.n_elems() {
                    let (a, b) = (sum.get(i).expect("in range"), part[0].get(i).expect("in range"));
                    let ([re, im], [x, y]) = (as_numbers(a), as_numbers(b));
                    sum.set(
                        i,
                        if sum.dtype().is_complex() { Scalar::Complex(re + x, im + y) } else { Scalar::Float(re + x) },
                    );
                }
            }
            return Ok(Some(vec![sum]));
        };
        let n = self.operands.len() / 2;
        let inits = &self.operands[n..];
        // One part reduced again must stay itself.
        let again = self.reduce_stacked(attrs, &parts[..1], inits)?;
        if again.iter().zip(&parts[0]).any(|(a, b)| first_difference(b, a, 0.0).is_some()) {
            return Ok(None);
        }
        Ok(Some(self.reduce_stacked(attrs, parts, inits)?.iter().map(|a| (**a).clone()).collect()))
    }

    fn reduce_stacked(&self, attrs: &ReduceAttrs, parts: &[Vec<Array>], inits: &[Array]) -> Result<Vec<Array>, String> {
        let leaves = self.leaves();
        let mut inputs: Vec<Array> = Vec::new();
        let mut shapes: Vec<Shape> = Vec::new();
        for (leaf, shape) in leaves.iter().enumerate() {
            let array = shape.as_array().expect("an array");
            let dims: Dims = [parts.len() as i64].into_iter().chain(array.dims.iter().copied()).collect();
            let mut stacked = Literal::zeros(array.dtype, &dims).expect("fits");
            for (p, part) in parts.iter().enumerate() {
                let each = part[leaf].n_elems();
                (0..each).for_each(|i| {
                    stacked.set(p * each + i, part[leaf].get(i).expect("in range"));
                });
            }
            inputs.push(Arc::new(stacked));
            shapes.push(Shape::array(array.dtype, dims));
        }
        inputs.extend(inits.iter().cloned());
        shapes.extend(self.operand_shapes[self.operand_shapes.len() / 2..].iter().cloned());
        let attrs = ReduceAttrs { dimensions: Dims::from_slice(&[0]), to_apply: attrs.to_apply };
        run_one_device(&alone(self.module, self.node, attrs.into(), &shapes, self.result_shape.clone()), &inputs)
    }
}

/// Splits `inst` along each factor; returns how many splits were compared.
fn check_splits(module: &Module, inst: InstId) -> Result<usize, String> {
    let Ok(set) = find_factors(module, inst) else { return Ok(0) };
    let node = module.inst(inst);
    let operand_shapes: Vec<Shape> = node.operands.iter().map(|&o| module.shape(o).clone()).collect();
    let result_shape = module.shape(inst).clone();
    let operands = operand_values(module, inst)?;
    let whole = alone(module, node, node.attrs.clone(), &operand_shapes, result_shape.clone());
    let results = run_one_device(&whole, &operands)?;
    let case = Case { module, node, operand_shapes, result_shape, operands, results };
    let mut n_compared = 0;
    for (factor, f) in set.factors.iter().enumerate() {
        let is_cuttable = matches!(f.kind, FactorKind::PassThrough | FactorKind::Reduced);
        if !is_cuttable || f.size < 2 {
            continue;
        }
        let n = least_prime(f.size);
        let at = |e: String| format!("factor {factor} {f:?} in {n} parts: {e}");
        let parts: Vec<_> =
            (0..n).map(|part| case.run_part(&set, factor, part, n)).collect::<Result<_, _>>().map_err(at)?;
        let Some(joined) = case.recombine(&set, factor, &parts).map_err(at)? else { continue };
        // Only sums of floats may differ, by the order in which they are added.
        let is_sum =
            matches!(node.opcode.row().factors, FactorRule::Dot | FactorRule::Convolution | FactorRule::Reduce);
        let may_reorder = is_sum || node.opcode.row().factors == FactorRule::BatchNorm;
        for (expected, found) in case.results.iter().zip(&joined) {
            if let Some(difference) = first_difference(expected, found, tolerance(expected.dtype(), may_reorder)) {
                return Err(at(difference));
            }
        }
        n_compared += 1;
    }
    Ok(n_compared)
}

#[test]
fn parts_along_each_factor_make_the_whole() {
    let mut compared: BTreeMap<Opcode, usize> = BTreeMap::new();
    let mut failures = BTreeSet::new();
    let mut not_evaluated = BTreeSet::new();
    for (sample, module) in sample_modules() {
        let entry = module.entry().expect("an entry");
        for &inst in &module.comp(entry).insts {
            let opcode = module.inst(inst).opcode;
            if matches!(opcode.row().eval, EvalRule::NotEvaluated(_)) {
                continue;
            }
            match check_splits(&module, inst) {
                Ok(n) => *compared.entry(opcode).or_default() += n,
                // Which ops and types the evaluator does is its own tests' business.
                Err(e) if e.contains("not evaluated: ") => {
                    not_evaluated.insert(opcode);
                }
                Err(e) => {
                    failures.insert(format!("{sample}: {} {opcode}: {e}", module.inst_name(inst)));
                }
            }
        }
    }
    let failures: Vec<_> = failures.into_iter().collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    let has_rule = |op: &&Opcode| {
        !matches!(op.row().factors, FactorRule::Structural(_) | FactorRule::Whole(_))
            && !matches!(op.row().eval, EvalRule::NotEvaluated(_))
    };
    let has_rule = |op: &&Opcode| has_rule(op) && !not_evaluated.contains(op);
    let never: Vec<_> =
        Opcode::ALL.iter().filter(has_rule).filter(|op| compared.get(op).is_none_or(|&n| n == 0)).collect();
    assert!(never.is_empty(), "no split of {never:?} was compared");
}
