//! Per-device programs and global ones: how a reference and what is compared with it are run on the same inputs, and which of their
//! arrays belong together.

use super::difference::{FirstDifference, LeafDifference, Measure, Tolerance, of_leaf};
use super::sides::Sides;
use super::signature::{self, is_same_interface};
use crate::Failure;
use crate::arrays::ChosenInputs;
use crate::console::Console;
use hlo_analysis::program_kind::{ProgramDecision, ProgramKind};
use hlo_eval::global::{GlobalProgram, TiledInterface};
use hlo_eval::{EvalError, EvalOptions, Inputs, Outputs, Value, run, run_observed};
use hlo_ir::devices::find_n_devices;
use hlo_ir::{InstId, Literal, Module};
use std::sync::Arc;

/// What is right.
pub(crate) enum Reference<'a> {
    /// A per-device program.
    Devices(&'a Module),
    /// A global program: one set of inputs.
    Global(Box<GlobalProgram<'a>>),
}

impl<'a> Reference<'a> {
    /// The module by itself.
    ///
    /// # Errors
    /// It is a global program of several replicas.
    pub(crate) fn of(module: &'a Module, kind: ProgramDecision) -> Result<Reference<'a>, EvalError> {
        match kind.is_global() {
            true => Ok(Reference::Global(Box::new(GlobalProgram::of(module)?))),
            false => Ok(Reference::Devices(module)),
        }
    }

    /// The module beside programs that run one after the other. A module of one device beside those of several is a
    /// global program. So is one of whose kind nothing is known, if its shapes are no others than those of wholes of
    /// which they take and give tiles.
    ///
    /// # Errors
    /// It is a global program of several replicas, or on another number of devices.
    pub(crate) fn beside(
        (module, kind): (&'a Module, ProgramDecision),
        (chain, after): (&[&Module], ProgramDecision),
    ) -> Result<Reference<'a>, EvalError> {
        let n_devices = chain.first().map_or(1, |first| first.n_devices());
        let on =
            |n_devices: usize| GlobalProgram::on(module, n_devices).map(|whole| Reference::Global(Box::new(whole)));
        let has_tiles = n_devices > 1 && !after.is_global();
        match kind.kind {
            ProgramKind::Global | ProgramKind::OneDevice if has_tiles => on(n_devices),
            ProgramKind::Global => Reference::of(module, kind),
            ProgramKind::OneDevice if after.is_global() => on(chain.first().map_or(1, |first| find_n_devices(first))),
            ProgramKind::OneDevice => Ok(Reference::Devices(module)),
            ProgramKind::PerDevice if kind.is_open() && has_tiles => {
                let differs = signature::difference(module, chain).is_some();
                let whole = GlobalProgram::on(module, n_devices).ok().filter(|_| differs);
                let whole = whole.filter(|whole| TiledInterface::between(whole, chain).is_ok());
                Ok(whole.map_or(Reference::Devices(module), |whole| Reference::Global(Box::new(whole))))
            }
            ProgramKind::PerDevice if kind.is_open() && after.is_global() && is_same_interface(module, chain) => {
                on(module.n_devices())
            }
            ProgramKind::PerDevice => Ok(Reference::Devices(module)),
        }
    }

    pub(crate) fn module(&self) -> &Module {
        match self {
            Reference::Devices(module) => module,
            Reference::Global(program) => program.module(),
        }
    }

    pub(super) fn is_global(&self) -> bool {
        matches!(self, Reference::Global(_))
    }

    /// The inputs of a trial: those of all devices, or the wholes.
    ///
    /// # Errors
    /// As [`ChosenInputs::of_trial`].
    pub(super) fn inputs(
        &self,
        chosen: &ChosenInputs<'_>,
        trial: u64,
        console: &mut Console<'_>,
    ) -> Result<Inputs, Failure> {
        match self {
            Reference::Devices(module) => chosen.of_trial(module, trial, console),
            Reference::Global(program) => chosen.of_global(program, trial),
        }
    }

    /// The outputs of all devices, and where the copies of a value part in a global program. `sides` sees the choices.
    ///
    /// # Errors
    /// The evaluation cannot go on.
    pub(super) fn run(
        &self,
        inputs: &Inputs,
        options: &EvalOptions,
        sides: &mut Sides,
    ) -> Result<(Outputs, Option<String>), EvalError> {
        let mut see = |inst: InstId, _: u32, value: &Value| sides.see(inst, value);
        match self {
            Reference::Devices(module) => Ok((run_observed(module, inputs, options, &mut see)?, None)),
            Reference::Global(program) => {
                let outputs = program.run_observed(inputs, options, &mut see)?;
                Ok((outputs.of_devices().clone(), outputs.parting().map(Into::into)))
            }
        }
    }
}

/// What is compared with a reference.
pub(super) enum Candidate<'c> {
    /// It takes the same arrays on the same devices; modules run one after the other.
    Devices(&'c [&'c Module]),
    /// A global program beside a global one.
    Global(Box<GlobalProgram<'c>>),
    /// Programs that take and give tiles of a global program's values.
    Tiles(&'c [&'c Module], TiledInterface),
}

impl<'c> Candidate<'c> {
    /// Modules that run one after the other, beside a reference.
    ///
    /// # Errors
    /// Their inputs or outputs are not the reference's, nor tiles of them: what was expected and found.
    pub(super) fn beside(
        reference: &Reference<'_>,
        (chain, after): (&'c [&'c Module], ProgramDecision),
    ) -> Result<Candidate<'c>, String> {
        let same = |module: &Module| signature::difference(module, chain);
        let program = match reference {
            Reference::Devices(module) => return same(module).map_or(Ok(Candidate::Devices(chain)), Err),
            Reference::Global(program) => program,
        };
        let is_open = after.is_open() && is_same_interface(program.module(), chain);
        if let [only] = chain
            && (after.is_global() || only.n_devices() == 1 || is_open)
        {
            let other = GlobalProgram::on(only, program.n_devices()).map_err(|error| error.to_string())?;
            let difference = signature::difference(program.module(), &[other.module()]);
            return difference.map_or(Ok(Candidate::Global(Box::new(other))), Err);
        }
        let interface = TiledInterface::between(program, chain).map_err(|error| error.to_string())?;
        Ok(Candidate::Tiles(chain, interface))
    }

    /// The outputs of all devices on the reference's inputs.
    ///
    /// # Errors
    /// The evaluation cannot go on.
    pub(super) fn run(&self, inputs: &Inputs, options: &EvalOptions) -> Result<Outputs, EvalError> {
        match self {
            Candidate::Devices(chain) => run_chain(chain, inputs.clone(), options),
            Candidate::Global(program) => Ok(program.run(inputs, options)?.of_devices().clone()),
            Candidate::Tiles(chain, interface) => run_chain(chain, interface.cut_inputs(inputs)?, options),
        }
    }
}

fn run_chain(chain: &[&Module], mut inputs: Inputs, options: &EvalOptions) -> Result<Outputs, EvalError> {
    for module in chain {
        inputs = Inputs { leaves: run(module, &inputs, options)?.leaves };
    }
    Ok(Outputs { leaves: inputs.leaves })
}

/// For each output the numbers of the ways in which it may be cut that no trial has refuted.
pub(super) struct Ways {
    alive: Vec<Vec<usize>>,
    /// For each output whose cut nobody says, and that annotations' ways do not fit: the tiles that each device may hold.
    held: Vec<Option<Vec<Vec<usize>>>>,
    /// The outputs that one of the annotations' ways fitted.
    is_cut: Vec<bool>,
}

impl Ways {
    /// All of them.
    pub(super) fn of(candidate: &Candidate<'_>, n_outputs: usize) -> Ways {
        let n_ways = |leaf: usize| match candidate {
            Candidate::Devices(_) | Candidate::Global(_) => 1,
            Candidate::Tiles(_, interface) => interface.of_output(leaf).len(),
        };
        Ways {
            alive: (0..n_outputs).map(|leaf| (0..n_ways(leaf)).collect()).collect(),
            held: vec![None; n_outputs],
            is_cut: vec![false; n_outputs],
        }
    }

    /// The differences of one trial, each output by the first way in which it does not differ, or by the nearest; ways in which an
    /// output differs are given up as long as another is left.
    ///
    /// # Errors
    /// Arrays are not of the shapes that they should have.
    pub(super) fn differences(
        &mut self,
        candidate: &Candidate<'_>,
        (expected, found): (&Outputs, &Outputs),
        (tolerance, measures): (Tolerance, &[Measure]),
    ) -> Result<Vec<LeafDifference>, EvalError> {
        let mut out = Vec::with_capacity(expected.leaves.len());
        for (leaf, (wholes, found)) in expected.leaves.iter().zip(&found.leaves).enumerate() {
            let tolerance = tolerance.of_output(measures.get(leaf).copied().unwrap_or_default());
            let interface = match candidate {
                Candidate::Devices(_) | Candidate::Global(_) => {
                    out.push(of_leaf(wholes, found, tolerance));
                    continue;
                }
                Candidate::Tiles(_, interface) => interface,
            };
            let alive = self.alive.get(leaf).cloned().unwrap_or_default();
            let mut seen: Vec<(usize, LeafDifference)> = Vec::with_capacity(alive.len());
            for way in alive {
                let Some(tiles) = interface.of_output(leaf).get(way) else { continue };
                let difference = of_leaf(&tiles.of_wholes(wholes)?, &tiles.without_padding(found)?, tolerance);
                seen.push((way, LeafDifference { cut: Some(tiles.sharding.to_string()), ..difference }));
            }
            let equal: Vec<usize> = seen.iter().filter(|(_, d)| d.first.is_none()).map(|(way, _)| *way).collect();
            // An earlier trial may have refuted all of the annotations' ways; of zeros alone each would fit again.
            let is_by_content = self.held[leaf].is_some();
            if !equal.is_empty() && !is_by_content {
                self.alive[leaf] = equal;
                self.is_cut[leaf] = true;
            } else if !self.is_cut[leaf]
                && let Some(difference) = self.by_content(leaf, interface, (wholes, found), tolerance)?
                && (difference.first.is_none() || seen.is_empty() || is_by_content)
            {
                out.push(difference);
                continue;
            }
            let nearest = seen.into_iter().map(|(_, d)| d).min_by_key(|d| d.n_different);
            out.push(nearest.ok_or_else(|| EvalError::invalid(format!("output {leaf} is cut in no way that fits")))?);
        }
        Ok(out)
    }

    /// An output whose cut nobody says is the same where each device holds one of its tiles, the same one in all trials, and each tile is
    /// held by a device. `None` where it is known how the output is cut.
    fn by_content(
        &mut self,
        leaf: usize,
        interface: &TiledInterface,
        (wholes, found): (&[Arc<Literal>], &[Arc<Literal>]),
        tolerance: Tolerance,
    ) -> Result<Option<LeafDifference>, EvalError> {
        let whole = of_leaf(wholes, wholes, tolerance);
        let mut held: Vec<Vec<usize>> = vec![Vec::new(); found.len()];
        // Of each device how it differs from the nearest tile, and of each tile how the nearest device does.
        let mut of_device: Vec<Option<LeafDifference>> = vec![None; found.len()];
        let mut of_tile: Vec<Option<LeafDifference>> = Vec::new();
        for (number, tile) in interface.tiles_of_unsaid(leaf).enumerate() {
            let (expected, found) = (tile.of_wholes(wholes)?, tile.without_padding(found)?);
            of_tile.push(None);
            for (device, (expected, found)) in expected.iter().zip(&found).enumerate() {
                if self.held[leaf].as_ref().is_some_and(|known| !known[device].contains(&number)) {
                    continue;
                }
                let mut difference = of_leaf(std::slice::from_ref(expected), std::slice::from_ref(found), tolerance);
                difference.first = difference.first.map(|first| FirstDifference { device, ..first });
                // A tile may be off by what its whole may, which has larger elements.
                if difference.first.is_none() || difference.largest_error <= whole.allowed {
                    held[device].push(number);
                }
                for nearest in [&mut of_device[device], &mut of_tile[number]] {
                    if nearest.as_ref().is_none_or(|known| difference.n_different < known.n_different) {
                        *nearest = Some(difference.clone());
                    }
                }
            }
        }
        let idle = held.iter().position(Vec::is_empty).and_then(|device| of_device[device].take());
        let is_held = |number: usize| held.iter().any(|tiles| tiles.contains(&number));
        let missing = (0..of_tile.len()).find(|&number| !is_held(number)).and_then(|number| of_tile[number].take());
        match idle.or(missing) {
            Some(difference) => Ok(Some(difference)),
            None if of_tile.is_empty() => Ok(None),
            None => {
                self.held[leaf] = Some(held);
                Ok(Some(whole))
            }
        }
    }
}
