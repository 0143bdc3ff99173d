//! Put elementwise, data-moving and reducing instructions into fusions, one kernel each.
//!
//! Before, three launches:
//! ```text
//! %m = f32[64] multiply(%x, %y)
//! %a = f32[64] add(%m, %z)
//! ROOT %t = (f32[64], f32[64]) tuple(%m, %a)
//! ```
//! after, one:
//! ```text
//! %fusion = (f32[64], f32[64]) fusion(%x, %y, %z), kind=kLoop, calls=%fused
//! ROOT %t = (f32[64], f32[64]) tuple(%gte.0, %gte.1)
//! ```
//! The sample `ir-samples/passes/fuse/adam.hlo` runs this on an Adam update.
//!
//! **Why.** A kernel reads its operands from memory and writes its results there; what passes between two instructions of one
//! kernel stays in registers. Adam on one weight reads four arrays and writes three, which nothing can undercut.
//!
//! **What it does.** 1. Copies that keep the layout go, broadcasts that repeat nothing become views, and long reductions to few
//! results go in two steps ([`prepare_and_stage`]). 2. Instructions that are computed element by element of the same dims
//! go together, with all results that are needed elsewhere; so do producers that one consumer alone reads through a
//! transpose, slice, pad, broadcast or reduction. What costs nothing to do again (constants, iotas, broadcasts, views) is done
//! again in each fusion. Reductions and sorts of several operands take in the iotas among these ([`fills`]), scatters what their arrays and updates
//! are ([`scatters`]), convolutions what follows them element by element ([`convolutions`]). 3. Sums of columns (the gradients of biases, of a norm's scale) go to the kernel that computes what they
//! sum, or that reads what they read, row by row or element by element: each of its blocks adds up a part. 4. Small fusions whose
//! results leave the computation (the updates of biases and scales) go together into one, side by side; so do those that read
//! parameters alone (weights in another type), and short sums of one stage (the second steps of long ones).
//!
//! **What it does not do.** No expensive arithmetic is done twice: a value that two fusions need is written to memory, unless a few
//! operations give it anew of others that are kept as long (see [`prepare_and_stage`]). What a
//! reduction gives is used within its fusion element by element, where there are enough results or each is short, and for the rows
//! that it comes from: softmax and the norms are one kernel, and so are their gradients. Dots, collectives, loops stay as they are.
//!
//! **Algorithm.** Each instruction has a *stage*: an edge that cannot be fused leads to a later stage, one that can may stay
//! within. So edges between different fusions lead to later stages always, and no cycle can come about.
//! Fusions are the components of fusable edges within a stage ([`hlo_analysis::fusion`] finds and writes them). Linear but for
//! sorting.
//!
//! **Requires** nothing; calls should be inlined. **Ensures** the same values, computed by the same operations. **Errors**:
//! none.

mod convolutions;
mod fills;
mod scatters;

use crate::lower::legalize::stepwise_computations;
use hashbrown::HashSet;
use hlo_analysis::Preserved;
use hlo_analysis::fusion::{FusionLimits, Prepared, build_fusions, find_groups_of, prepare_and_stage};
use hlo_ir::diag::Entity;
use hlo_ir::{CompId, InstId, Module};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "fuse",
    help: "put elementwise, data-moving and reducing instructions into fusions, one kernel each",
    options: &[
        OptionInfo {
            name: "max-arguments",
            kind: OptionKind::Int,
            default: "480",
            help: "operands and results of one fusion: a kernel's parameters must fit into 4 KiB",
        },
        OptionInfo {
            name: "side-by-side-bytes",
            kind: OptionKind::Int,
            default: "2MiB",
            help: "fusions that read and write less, and whose results leave the computation or whose operands are parameters, go together; 0 for none",
        },
        OptionInfo {
            name: "tf32",
            kind: OptionKind::Bool,
            default: "false",
            help: "convolutions of f32 round their factors to TF32: tiles of tensor cores have other rows, whose sums go with them",
        },
    ],
    build: |options: &Options| {
        let size = |name: &str| u64::try_from(options.int(name)).unwrap_or(0);
        let limits = FusionLimits {
            max_arguments: size("max-arguments") as usize,
            side_by_side_bytes: size("side-by-side-bytes"),
        };
        Ok(Box::new(Fuse { limits, uses_tf32: options.flag("tf32") }))
    },
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fuse {
    /// What one fusion may hold.
    pub limits: FusionLimits,
    /// Whether convolutions round factors of f32 to TF32.
    pub uses_tf32: bool,
}

impl Pass for Fuse {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut n_changes = 0;
        for comp in stepwise_computations(module) {
            let sorts = fills::find_sorts(module, comp);
            n_changes += sorts.len();
            if !sorts.is_empty() {
                cx.report.count("sorts", sorts.len() as u64);
            }
            build_fusions(module, comp, &sorts).map_err(cycle)?;
            let scatters = scatters::find_scatters(module, comp);
            n_changes += scatters.len();
            if !scatters.is_empty() {
                cx.report.count("scatters", scatters.len() as u64);
            }
            build_fusions(module, comp, &scatters).map_err(cycle)?;
            let convs = convolutions::find_convolutions(module, comp, self.uses_tf32).map_err(cycle)?;
            n_changes += convs.len();
            if !convs.is_empty() {
                cx.report.count("convolutions", convs.len() as u64);
            }
            build_fusions(module, comp, &convs).map_err(cycle)?;
            let (Prepared { n_views, n_lifted, n_split, n_copies, n_repeated }, staged) =
                prepare_and_stage(module, comp).map_err(cycle)?;
            if n_lifted > 0 {
                cx.report.count("views-lifted", n_lifted as u64);
            }
            if n_repeated > 0 {
                cx.report.count("values-repeated", n_repeated as u64);
            }
            let mut groups = find_groups_of(module, comp, Some(staged), self.limits);
            groups.extend(fills::find_filled_reductions(module, comp));
            let n_fused = groups.iter().map(|group| group.members.len()).sum::<usize>();
            cx.report.count("broadcasts-as-views", n_views as u64);
            cx.report.count("reductions-split", n_split as u64);
            cx.report.count("copies-removed", n_copies as u64);
            cx.report.count("fusions", groups.len() as u64);
            cx.report.count("instructions-fused", n_fused as u64);
            n_changes += n_views + n_lifted + n_split + n_copies + n_repeated + groups.len();
            build_fusions(module, comp, &groups).map_err(cycle)?;
        }
        if n_changes == 0 {
            cx.report.unchanged_because = Some("no two instructions can share a kernel".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// Whether an instruction waits for others beside its operands.
fn has_order(module: &Module, inst: InstId) -> bool {
    !module.inst(inst).control_predecessors().is_empty()
}

/// What others wait for. A fusion does not stand for its members: these would be computed a second time, outside of it.
fn waited_for(module: &Module, comp: CompId) -> HashSet<InstId> {
    module.comp(comp).insts.iter().flat_map(|&inst| module.inst(inst).control_predecessors()).copied().collect()
}

fn cycle(inst: InstId) -> PassError {
    PassError::about("acyclic", Entity::Inst(inst), "expected no cycle after fusion, found one")
}
