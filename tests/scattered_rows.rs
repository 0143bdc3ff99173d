//! Random scatters of one element a row compute the same as selects, bit for bit.

use crate::lockstep::{are_equal, parse};
use hlo_analysis::Analyses;
use hlo_eval::draw::{DrawOptions, draw_inputs};
use hlo_eval::{EvalOptions, run};
use hlo_ir::{Module, Opcode};
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};
use hlo_tests::random_module::Rng;

/// What a dim of the result is to the scatter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// A batching dim.
    Batch,
    /// Named by index vectors, which count along a dim of the indices.
    Counted,
    /// Named by index vectors, of any numbers; the updates have it as a dim of one element, or not.
    Named { is_inserted: bool },
    /// Written whole.
    Whole,
}

fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

fn shuffled<T: Copy>(rng: &mut Rng, items: &[T]) -> Vec<T> {
    rng.shuffled(items.len()).into_iter().map(|k| items[k]).collect()
}

/// A scatter that the pass takes.
struct Scatter {
    dims: Vec<usize>,
    roles: Vec<Role>,
    /// The dims that index vectors name, in the order of their components.
    named: Vec<usize>,
    /// For each dim of the indices before the vectors', the dim of the result that it is; none for one of one element.
    of_indices: Vec<Option<usize>>,
    /// Whether the scatter takes the dims of the indices as one.
    is_flat: bool,
    /// Which dims of the updates are those of windows.
    window_places: Vec<usize>,
}

impl Scatter {
    fn draw(rng: &mut Rng) -> Scatter {
        let dims: Vec<usize> = (0..=rng.below(4)).map(|_| 1 + rng.below(5)).collect();
        let is_flat = rng.one_in(3);
        let batch = if is_flat { Role::Counted } else { Role::Batch };
        let named = |is_inserted| Role::Named { is_inserted };
        let all = [batch, Role::Counted, Role::Whole, named(true), named(true), named(false)];
        let roles: Vec<Role> = dims.iter().map(|_| *rng.pick(&all)).collect();
        let mut scatter = Scatter { dims, roles, named: vec![], of_indices: vec![], is_flat, window_places: vec![] };
        scatter.named = shuffled(rng, &scatter.of(|role| matches!(role, Role::Counted | Role::Named { .. })));
        let rows = scatter.of(|role| matches!(role, Role::Batch | Role::Counted)).into_iter().map(Some);
        let one = rng.one_in(3).then_some(None);
        scatter.of_indices = shuffled(rng, &rows.chain(one).collect::<Vec<_>>());
        let n_windows = scatter.windows().len();
        let n_rows = if is_flat { 1 } else { scatter.of_indices.len() };
        scatter.window_places = rng.shuffled(n_rows + n_windows)[..n_windows].to_vec();
        scatter.window_places.sort_unstable();
        scatter
    }

    fn of(&self, is_wanted: fn(Role) -> bool) -> Vec<usize> {
        (0..self.dims.len()).filter(|&dim| is_wanted(self.roles[dim])).collect()
    }

    fn windows(&self) -> Vec<usize> {
        self.of(|role| matches!(role, Role::Whole | Role::Named { is_inserted: false }))
    }

    /// Sizes of the dims of the indices before the vectors'.
    fn row_dims(&self) -> Vec<usize> {
        self.of_indices.iter().map(|dim| dim.map_or(1, |dim| self.dims[dim])).collect()
    }

    fn update_dims(&self) -> Vec<usize> {
        let rows = self.row_dims();
        let rows = if self.is_flat { vec![rows.iter().product()] } else { rows };
        let windows = self.windows();
        let size = |&dim: &usize| if self.roles[dim] == Role::Whole { self.dims[dim] } else { 1 };
        let (mut sizes, mut rows) = (windows.iter().map(size), rows.into_iter());
        let n_updates = sizes.len() + rows.len();
        (0..n_updates)
            .filter_map(|place| if self.window_places.contains(&place) { sizes.next() } else { rows.next() })
            .collect()
    }

    fn attributes(&self) -> String {
        let batch = self.of(|role| role == Role::Batch);
        let partner =
            |&dim: &usize| self.of_indices.iter().position(|&of| of == Some(dim)).expect("a dim of the indices");
        let inserted = self.of(|role| matches!(role, Role::Counted | Role::Named { is_inserted: true }));
        format!(
            "update_window_dims={{{}}}, inserted_window_dims={{{}}}, scatter_dims_to_operand_dims={{{}}}, \
             input_batching_dims={{{}}}, scatter_indices_batching_dims={{{}}}, index_vector_dim={}",
            list(&self.window_places),
            list(&inserted),
            list(&self.named),
            list(&batch),
            list(&batch.iter().map(partner).collect::<Vec<_>>()),
            if self.is_flat { 1 } else { self.of_indices.len() },
        )
    }

    /// Lines that make a component of the index vectors, called `c{k}`: numbers from -1 (or the largest) to 6.
    fn component(&self, k: usize, dtype: &str, n_parameters: &mut usize) -> String {
        let vectors = format!("{dtype}[{}]", list(&[self.row_dims(), vec![1]].concat()));
        if let Some(along) = self.of_indices.iter().position(|&of| of == Some(self.named[k])) {
            return format!("  c{k} = {vectors} iota(), iota_dimension={along}\n");
        }
        *n_parameters += 1;
        format!(
            "  p{k} = {vectors} parameter({n_parameters})\n  \
             seven{k} = {dtype}[] constant(7)\n  sevens{k} = {vectors} broadcast(seven{k}), dimensions={{}}\n  \
             one{k} = {dtype}[] constant(1)\n  ones{k} = {vectors} broadcast(one{k}), dimensions={{}}\n  \
             low{k} = {vectors} and(p{k}, sevens{k})\n  c{k} = {vectors} subtract(low{k}, ones{k})\n"
        )
    }
}

/// A module of one scatter that the pass takes.
fn random_scatter(seed: u64) -> String {
    let mut rng = Rng::new(seed);
    let scatter = Scatter::draw(&mut rng);
    let dtype = *rng.pick(&["s32", "u8", "s64"]);
    let (element, combined) =
        *rng.pick(&[("f32", "add(b, a)"), ("bf16", "maximum(a, b)"), ("s32", "multiply(a, b)"), ("f32", "copy(b)")]);
    let mut n_parameters = 0;
    let components: String = (0..scatter.named.len()).map(|k| scatter.component(k, dtype, &mut n_parameters)).collect();
    let (rows, n_components) = (scatter.row_dims(), scatter.named.len());
    let (whole, last) = (format!("{dtype}[{}]", list(&[rows.clone(), vec![n_components]].concat())), rows.len());
    let names: Vec<String> = (0..n_components).map(|k| format!("c{k}")).collect();
    let vectors = match names.is_empty() {
        true => format!("{whole} iota(), iota_dimension={last}"),
        false => format!("{whole} concatenate({}), dimensions={{{last}}}", names.join(", ")),
    };
    let (n_rows, dims) = (rows.iter().product::<usize>(), list(&scatter.dims));
    let indices = if scatter.is_flat { "flat" } else { "vectors" };
    let (updates, attributes) = (list(&scatter.update_dims()), scatter.attributes());
    format!(
        "HloModule scatter_{seed}\n
r {{\n  a = {element}[] parameter(0)\n  b = {element}[] parameter(1)\n  ROOT c = {element}[] {combined}\n}}\n
ENTRY e {{\n  u = {element}[{updates}] parameter(0)\n{components}  vectors = {vectors}
  flat = {dtype}[{n_rows},{n_components}] reshape(vectors)
  three = {element}[] constant(3)\n  filled = {element}[{dims}] broadcast(three), dimensions={{}}
  ROOT s = {element}[{dims}] scatter(filled, {indices}, u), {attributes}, to_apply=r\n}}\n"
    )
}

fn n_scatters(module: &Module) -> usize {
    let all = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    all.filter(|&&inst| module.inst(inst).opcode == Opcode::Scatter).count()
}

#[test]
fn selects_compute_what_scatters_do() {
    let n_cases = std::env::var("HLO_PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let passes = bind(&parse_pipeline("scatter-to-select").expect("a pass"), hlo_simplify::PASSES).expect("a pass");
    let mut n_partly = 0;
    for seed in 0..n_cases {
        let text = random_scatter(seed);
        let mut module = parse(&format!("seed {seed}"), &text);
        let inputs = draw_inputs(&module, None, &DrawOptions { seed, ..DrawOptions::default() }).expect("inputs");
        let before = run(&module, &inputs, &EvalOptions::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let options = RunOptions { check: true, ..RunOptions::default() };
        if let Err(error) = run_pipeline(&mut module, &mut Analyses::default(), &passes, options) {
            panic!("seed {seed}: {:?}\n{text}", error.diagnostics);
        }
        assert_eq!(n_scatters(&module), 0, "seed {seed}: the scatter is left\n{text}");
        let after = run(&module, &inputs, &EvalOptions::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let (before, after) = (&before.leaves[0][0], &after.leaves[0][0]);
        assert!(are_equal(before, after), "seed {seed}: {before:?} became {after:?}\n{text}");
        n_partly += u64::from((1..before.n_elems()).any(|i| before.get(i) != before.get(0)));
    }
    assert!(n_partly * 3 > n_cases, "of {n_cases} scatters only {n_partly} write some elements and leave others");
}
