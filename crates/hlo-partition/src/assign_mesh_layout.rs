//! Cut every value as a layout of named dims on a mesh of named axes says.
//!
//! Before, with `mesh='rows:2,cols:2', layout='batch:rows;hidden:cols', names='batch=%x:0; hidden=%w:1'`:
//! ```text
//! %x = f32[4,8] parameter(0)
//! %w = f32[8,6] parameter(1)
//! ROOT %h = f32[4,6] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! ```
//! after, all values have their cut, and `spmd-partition` writes the program of each device:
//! ```text
//! %x = f32[4,8] parameter(0), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}
//! %w = f32[8,6] parameter(1), sharding={devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}
//! ROOT %h = f32[4,6] dot(%x, %w), …, sharding={devices=[2,2]<=[4]}
//! ```
//! The sample `ir-samples/passes/assign-mesh-layout/dot.hlo` runs this.
//!
//! **Why.** A few pairs of a dim and an axis say how a whole training step is spread: `batch:rows` is data parallelism,
//! `hidden:cols` model parallelism. Who thinks in dims of the model need not annotate tensors.
//!
//! **What it does not do.** Nothing is propagated: a dim whose class is not in the layout stays whole. One device at each place of the
//! mesh. Annotations that the module has are replaced; manual regions are refused.
//!
//! **Algorithm.** Dims that ops tie by their factors are one class ([`classes`](crate::mesh_layout::classes)), near-linear. A sidecar names
//! classes. The layout is checked on every tensor and op ([`layout`](crate::mesh_layout::layout)). With `order=best` the program of each device is
//! written and priced for every order of the mesh's axes over the devices of the cluster, and the fastest is taken.
//!
//! **Requires** a global program. **Ensures** the same results. **Errors**: `names`, `mesh` and `layout` about texts, `mesh-layout`
//! about a layout that is not legal; the module is then as it was.
//!
//! **References.** Shazeer et al., *Mesh-TensorFlow: Deep Learning for Supercomputers*, 2018, §4 (layouts), §5 (what is legal), §6 (what ops
//! and reshapes become), §8 and §9 (examples). We differ in that names are found, not written, and in that a dim may be a
//! product of named parts.

use crate::error::PartitionError;
use crate::mesh_layout::auto::AutoLayout;
use crate::mesh_layout::classes::DimProgram;
use crate::mesh_layout::forecast::Forecast;
use crate::mesh_layout::layout::{Layout, NamedMesh, write_n_devices};
use crate::mesh_layout::names::{NamedClass, name_classes};
use crate::mesh_layout::search::Solution;
use crate::mesh_layout::text::{NamedAxis, parse_layout, parse_mesh};
use crate::propagate_shardings::claims::ClaimReader;
use crate::propagate_shardings::emit::{plan_emission, texts};
use crate::spmd_partition::{COMPUTE, ComputeRule, compute_rule, why_per_device};
use hlo_analysis::Preserved;
use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::shardy::Meshes;
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::report::{Alternative, Decision};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::DependsOnItself;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "assign-mesh-layout",
    help: "cut every value as a layout of named dims says: batch over rows, hidden over cols",
    options: OPTIONS,
    build: |options| Ok(Box::new(AssignMeshLayout::new(options)?)),
};

const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "names",
        kind: OptionKind::Text,
        default: "",
        help: "names of dims, as a file or as `batch = %x:0; hidden = %w:1`; others are called as `analyze dims` suggests",
    },
    OptionInfo { name: "mesh", kind: OptionKind::Text, default: "", help: "the mesh: rows:4,cols:2" },
    OptionInfo {
        name: "layout",
        kind: OptionKind::Text,
        default: "",
        help: "which axis cuts which dim: batch:rows;hidden:cols; all other dims stay whole; auto: the best one",
    },
    OptionInfo {
        name: "objective",
        kind: OptionKind::Word(&["memory", "time"]),
        default: "memory",
        help: "layout=auto: what is made least: live memory at the op that has most, or predicted time",
    },
    OptionInfo {
        name: "considered",
        kind: OptionKind::Int,
        default: "12",
        help: "layout=auto without names: how many dims are considered, those of the largest values",
    },
    OptionInfo {
        name: "steps",
        kind: OptionKind::Int,
        default: "1000000",
        help: "layout=auto: how many nodes of the search are looked at at most",
    },
    OptionInfo {
        name: "programs",
        kind: OptionKind::Int,
        default: "64",
        help: "objective=time: of how many layouts the program is written and priced at most, those with least memory first",
    },
    OptionInfo {
        name: "even",
        kind: OptionKind::Bool,
        default: "true",
        help: "whether an axis has to divide the dim that it cuts; false: the last tiles are padded",
    },
    OptionInfo {
        name: "order",
        kind: OptionKind::Word(&["best", "given"]),
        default: "best",
        help: "how the mesh lies on the cluster: the fastest order of its axes, or the given one, the first axis slowest",
    },
    COMPUTE,
];

/// What the option `layout` says.
#[derive(Clone, Debug)]
enum WantedLayout {
    /// Names of dims with the axes that cut them.
    Said(Vec<(String, String)>),
    Auto(AutoOptions),
}

/// How a layout is looked for.
#[derive(Clone, Debug)]
struct AutoOptions {
    is_by_time: bool,
    n_considered: usize,
    most_steps: u64,
    most_programs: usize,
}

impl WantedLayout {
    fn new(options: &Options) -> Result<WantedLayout, PartitionError> {
        let count = |name: &str| usize::try_from(options.int(name)).unwrap_or(0);
        Ok(match options.text("layout").trim() {
            "auto" => WantedLayout::Auto(AutoOptions {
                is_by_time: options.text("objective") == "time",
                n_considered: count("considered"),
                most_steps: count("steps") as u64,
                most_programs: count("programs").max(1),
            }),
            said => WantedLayout::Said(parse_layout(said)?),
        })
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct AssignMeshLayout {
    names: String,
    axes: Vec<NamedAxis>,
    layout: WantedLayout,
    is_uneven_allowed: bool,
    /// By which rule the program is partitioned whose costs are told.
    rule: ComputeRule,
    /// Whether orders of axes are tried.
    tries_orders: bool,
}

impl AssignMeshLayout {
    fn new(options: &Options) -> Result<AssignMeshLayout, Box<dyn std::error::Error>> {
        Ok(AssignMeshLayout {
            names: options.text("names").to_string(),
            axes: parse_mesh(options.text("mesh"))?,
            layout: WantedLayout::new(options)?,
            is_uneven_allowed: !options.flag("even"),
            rule: compute_rule(options),
            tries_orders: options.text("order") == "best",
        })
    }

    /// The program with its cuts for one order of the axes.
    fn assigned(&self, program: &mut DimProgram, layout: &Layout, order: &[usize]) -> Result<Assigned, PassError> {
        let mesh = NamedMesh::new(&self.axes, order)?;
        layout.cut_values(program, &mesh);
        let mut module = program.module.clone();
        let mut claims = ClaimReader::new(&program.module, &mesh.mesh)?;
        let mut texts = texts(&mesh.mesh);
        let emission = plan_emission(&program.module, &program.graph, &mut claims, &mut texts)?;
        let (_, n_copies) = emission
            .write(&mut module, &Meshes::default(), &mut texts)
            .map_err(|inst| PassError::from(DependsOnItself(inst)))?;
        program.constants.clone().merge(&mut module);
        program.copies.merge(&mut module);
        write_n_devices(&mut module, &mesh);
        Ok(Assigned { module, mesh, n_copies })
    }

    /// The order of axes whose program is fastest, with its program; the given one where none can be priced.
    fn best_order(
        &self,
        program: &mut DimProgram,
        layout: &Layout,
        cx: &mut PassCx<'_>,
    ) -> Result<Assigned, PassError> {
        let given: Vec<usize> = (0..self.axes.len()).collect();
        let mut orders = vec![given.clone()];
        // At one switch all orders are alike.
        if self.tries_orders && cx.target.machine.cluster().is_some() {
            orders = permutations(&given);
            // Too many to try: the given one.
            orders.truncate(if orders.len() > MOST_ORDERS { 1 } else { MOST_ORDERS });
        }
        let mut best: Option<(f64, Vec<usize>, Assigned, Option<Forecast>)> = None;
        let mut rejected = Vec::new();
        for order in orders {
            let assigned = self.assigned(program, layout, &order)?;
            let options = cx.analyses.frequency_options;
            let how = (&cx.target.machine, self.rule);
            let forecast = match Forecast::of(assigned.module.clone(), &assigned.mesh, how, options, cx.deadline) {
                Ok(forecast) => Some(forecast),
                Err(PartitionError::OutOfTime(error)) => return Err(error.into()),
                Err(error @ PartitionError::About { .. }) => {
                    cx.report.decisions.push(Decision {
                        subject: "the program of each device".into(),
                        action: "not priced".into(),
                        computation: entry_name(&program.module),
                        reason: error.to_string(),
                        ..Decision::default()
                    });
                    None
                }
            };
            let seconds = forecast.as_ref().map_or(f64::INFINITY, |forecast| forecast.time.critical_path_s);
            let is_better = best.as_ref().is_none_or(|(other, ..)| seconds < *other);
            let is_known = forecast.is_some();
            let mut told = (seconds, order);
            if is_better {
                let new = (told.0, told.1.clone(), assigned, forecast);
                let Some((seconds, order, ..)) = best.replace(new) else { continue };
                told = (seconds, order);
            }
            rejected.push(Alternative {
                what: self.order_text(&told.1),
                because: format!("{:.1} µs by prediction", told.0 * 1e6),
            });
            if !is_known {
                break;
            }
        }
        let Some((seconds, order, assigned, forecast)) = best else { return self.assigned(program, layout, &given) };
        if seconds.is_finite() {
            cx.report.decisions.push(Decision {
                subject: format!("mesh {}", self.order_text(&order)),
                action: "ordered".into(),
                computation: entry_name(&program.module),
                reason: format!(
                    "{:.1} µs by prediction; devices are numbered through the axes, the first one slowest",
                    seconds * 1e6
                ),
                rejected,
                ..Decision::default()
            });
        }
        if let Some(forecast) = forecast {
            report_forecast(&forecast, &entry_name(&program.module), cx);
        }
        Ok(assigned)
    }

    /// `rows:4,cols:2` in an order of axes.
    fn order_text(&self, order: &[usize]) -> String {
        let axes = order.iter().map(|&axis| &self.axes[axis]);
        let texts: Vec<String> = axes.map(|axis| format!("{}:{}", axis.name, axis.size)).collect();
        texts.join(",")
    }
}

/// Legal layouts that are listed at most before the programs of some are priced.
const MOST_LEGAL: usize = 4096;

/// More orders than of five axes are not tried.
const MOST_ORDERS: usize = 120;

/// A program with its cuts.
struct Assigned {
    module: Module,
    mesh: NamedMesh,
    n_copies: usize,
}

impl Pass for AssignMeshLayout {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        if let Some(why) = why_per_device(module, cx.analyses) {
            cx.report.unchanged_because = Some(why);
            return Ok(Changed::No);
        }
        let mut program = DimProgram::read(module)?;
        let classes = name_classes(&mut program, &self.names)?;
        let layout = match &self.layout {
            WantedLayout::Said(said) => Layout::new(&program, &classes, &self.axes, said, self.is_uneven_allowed)?,
            WantedLayout::Auto(wanted) => self.auto_layout(&mut program, &classes, wanted, cx)?,
        };
        layout.check_legal(&program, &classes, &self.axes)?;
        for class in &classes {
            cx.report.decisions.extend(self.report_class(&program, &layout, class));
        }
        let assigned = self.best_order(&mut program, &layout, cx)?;
        cx.report.count("classes", classes.len() as u64);
        cx.report.count("copies", assigned.n_copies as u64);
        let text = |module: &Module| print_module(module, &PrintOptions::default());
        if text(&assigned.module) == text(module) {
            cx.report.unchanged_because = Some("every instruction has the sharding that the layout says".into());
            return Ok(Changed::No);
        }
        *module = assigned.module;
        Ok(Changed::Yes(Preserved::NONE))
    }
}

impl AssignMeshLayout {
    /// The layout with the least memory or time.
    fn auto_layout(
        &self,
        program: &mut DimProgram,
        classes: &[NamedClass],
        wanted: &AutoOptions,
        cx: &mut PassCx<'_>,
    ) -> Result<Layout, PassError> {
        let auto = AutoLayout::new(program, classes, &self.axes, wanted.n_considered);
        let mut best = auto.problem.solve(wanted.most_steps, cx.deadline)?;
        let names: Vec<&str> = auto.considered.iter().map(|&class| classes[class].name.as_str()).collect();
        let mut reason = format!(
            "{} bytes live at the op that has most, {} without a layout; {} steps",
            best.z_bytes,
            auto.problem.rated(&vec![None; names.len()]).0,
            best.n_steps
        );
        if wanted.is_by_time {
            let (mut ways, is_all) = auto.legal(MOST_LEGAL);
            ways.sort_by(|a, b| auto.problem.rated(a).1.total_cmp(&auto.problem.rated(b).1));
            best.is_proved = is_all && ways.len() <= wanted.most_programs;
            ways.truncate(wanted.most_programs);
            let (n_ways, order) = (ways.len(), (0..self.axes.len()).collect::<Vec<_>>());
            let mut least_s = f64::INFINITY;
            for axis_of in ways {
                let way = Solution { axis_of, ..best.clone() };
                let assigned = self.assigned(program, &auto.layout(classes, &way), &order)?;
                let options = cx.analyses.frequency_options;
                let how = (&cx.target.machine, self.rule);
                let forecast = Forecast::of(assigned.module, &assigned.mesh, how, options, cx.deadline)?;
                if forecast.time.critical_path_s < least_s {
                    least_s = forecast.time.critical_path_s;
                    best = way;
                }
            }
            reason = format!("{:.1} µs by prediction, the least of {n_ways} layouts", least_s * 1e6);
        }
        let layout = auto.layout(classes, &best);
        let pairs = auto.considered.iter().zip(&best.axis_of);
        let pairs: Vec<String> = pairs
            .filter_map(|(&class, axis)| Some(format!("{}:{}", classes[class].name, self.axes[(*axis)?].name)))
            .collect();
        let proof = if best.is_proved { "proved best" } else { "not proved best" };
        cx.report.count("steps", best.n_steps);
        cx.report.decisions.push(Decision {
            subject: format!("layout '{}'", pairs.join(";")),
            computation: entry_name(&program.module),
            action: "found".into(),
            reason: format!("{reason}; {proof} over {}", names.join(", ")),
            ..Decision::default()
        });
        Ok(layout)
    }

    /// What a class of the layout is cut into.
    fn report_class(&self, program: &DimProgram, layout: &Layout, named: &NamedClass) -> Option<Decision> {
        let NamedClass { name, class, .. } = named;
        let axis = &self.axes[*layout.axis_of.get(&class.part)?];
        let mut values: Vec<_> = class.places.iter().map(|place| place.value).collect();
        values.sort();
        values.dedup();
        let tile_size = class.size / axis.size + i64::from(class.size % axis.size != 0);
        let first = class.places.first().map(|&place| program.place_text(place)).unwrap_or_default();
        Some(Decision {
            subject: format!("{name} over {}", axis.name),
            computation: entry_name(&program.module),
            action: "laid out".into(),
            reason: format!(
                "{} elements are {} tiles of {tile_size} in {} values from {first} on",
                class.size,
                axis.size,
                values.len()
            ),
            ..Decision::default()
        })
    }
}

/// Tells what devices exchange, and their memory.
fn report_forecast(forecast: &Forecast, entry: &str, cx: &mut PassCx<'_>) {
    for ((op, axes), sum) in &forecast.exchanged {
        cx.report.decisions.push(Decision {
            subject: format!("{op} over {axes}"),
            bytes: sum.bytes as u64,
            action: "exchanges".into(),
            computation: entry.to_string(),
            reason: format!("{} in a run, {} values that a device puts in", sum.n_collectives, sum.n_elems),
            ..Decision::default()
        });
        cx.report.count(&format!("{op}-elems"), sum.n_elems as u64);
    }
    cx.report.count("peak-bytes", forecast.peak_bytes);
}

fn entry_name(module: &Module) -> String {
    module.entry().map_or_else(String::new, |entry| module.comp_name(entry).to_string())
}

/// All orders, the given one first.
fn permutations(of: &[usize]) -> Vec<Vec<usize>> {
    if of.len() > 5 {
        return vec![of.to_vec()];
    }
    let mut out = vec![Vec::new()];
    for _ in 0..of.len() {
        let longer = |start: &Vec<usize>| -> Vec<Vec<usize>> {
            let left = of.iter().filter(|axis| !start.contains(axis));
            left.map(|&axis| start.iter().copied().chain([axis]).collect()).collect()
        };
        out = out.iter().flat_map(longer).collect();
    }
    out
}
