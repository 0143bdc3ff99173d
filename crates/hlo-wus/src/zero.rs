//! Which state lies in shards before and after the step: the forms of ZeRO, and the choice of one for each parameter under a memory limit.
//!
//! The minimum cut finds the fastest placement. Under a limit, a byte of state that lies whole is given a price λ, and the cut is solved
//! for several λ: a Lagrange multiplier (Everett 1963). State is parameters of the entry, and what loops carry: stacks of layers that are whole
//! while a loop runs, or gathered layer by layer. The placements are the corners of the convex hull of time over bytes. Between two
//! corners, of which one fits and the other does not, units of state are switched one by one. What that leaves open is closed by taking sets
//! of units in the order of their time (Lawler 1972), as far as the effort goes.
//!
//! A placement fits if the peak of the module that it makes, measured by [`hlo_analysis::memory`], is at most the limit. The bound on
//! what any placement can save is the smaller one of two: what is saved without a limit, and the Lagrangian of the bytes of parameters, which the peak
//! is never below. Time is the sum that the cut minimizes, in which nothing overlaps.
//!
//! References: Rajbhandari et al., *ZeRO*, SC 2020, section 5 (the forms); H. Everett, *Generalized Lagrange Multiplier Method*, Operations
//! Research 11 (1963); E. Lawler, *A Procedure for Computing the K Best Solutions*, Management Science 18 (1972).

use crate::error::WusError;
use crate::tables::{IndexMap, IndexSet};
use hlo_analysis::values::ValueId;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The state that lies in shards between steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateForm {
    /// Moments; weights where that is cheaper. Under a memory limit whatever is fastest for each parameter.
    Auto,
    /// The optimizer's state; gradients as is faster (ZeRO-1).
    Optimizer,
    /// The optimizer's state, and gradients during the step (ZeRO-2).
    Gradients,
    /// The optimizer's state, gradients and weights (ZeRO-3).
    Parameters,
}

impl StateForm {
    /// The form that the option `state` names; `None` for `replicated`.
    pub(crate) fn named(text: &str) -> Option<StateForm> {
        match text {
            "auto" => Some(StateForm::Auto),
            "optimizer" => Some(StateForm::Optimizer),
            "gradients" => Some(StateForm::Gradients),
            "parameters" => Some(StateForm::Parameters),
            _ => None,
        }
    }

    /// Whether only what [`hlo_analysis::optimizer_state`] finds may be in shards between steps.
    pub(crate) fn is_of_optimizer(self) -> bool {
        match self {
            StateForm::Optimizer | StateForm::Gradients => true,
            StateForm::Auto | StateForm::Parameters => false,
        }
    }

    /// Whether weights stay in shards between steps, if the form says so.
    pub(crate) fn keeps_weights(self) -> Option<bool> {
        match self {
            StateForm::Auto => None,
            StateForm::Optimizer | StateForm::Gradients => Some(false),
            StateForm::Parameters => Some(true),
        }
    }
}

/// What is whole or in shards for itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StateUnit {
    /// A parameter of the entry, by flat number.
    Param(usize),
    /// What a loop carries: a stack of layers, whole while the loop runs or gathered layer by layer. By the number of its problem and its
    /// value there.
    Carry(usize, ValueId),
}

/// What state costs beside time, and what of it is not free.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StateChoice {
    /// Picoseconds that a byte of a parameter is worth.
    pub ps_per_param_byte: f64,
    /// Picoseconds that a byte is worth that a loop carries.
    pub ps_per_carried_byte: f64,
    /// In shards or whole.
    pub fixed: IndexMap<StateUnit, bool>,
    /// Every update with state in this form, whether or not that is faster.
    pub form: Option<StateForm>,
}

impl StateChoice {
    /// The fastest placement with these parameters as they are.
    fn fastest(fixed: IndexMap<StateUnit, bool>) -> StateChoice {
        StateChoice { fixed, ..StateChoice::default() }
    }

    /// What a byte of a unit is worth, in picoseconds.
    pub(crate) fn ps_per_byte(&self, unit: &StateUnit) -> f64 {
        match unit {
            StateUnit::Param(_) => self.ps_per_param_byte,
            StateUnit::Carry(..) => self.ps_per_carried_byte,
        }
    }
}

/// Parameters that the user fixes, where arrays are cut at the interface alone.
pub(crate) struct Pins<'a> {
    /// Whether each is in shards.
    pub said: &'a IndexMap<StateUnit, bool>,
    /// Those that could be cut.
    pub met: &'a mut IndexSet<StateUnit>,
}

impl Pins<'_> {
    /// Whether the user wants a parameter whole that could be cut.
    pub(crate) fn holds_whole(&mut self, number: usize) -> bool {
        let unit = StateUnit::Param(number);
        self.met.insert(unit);
        self.said.get(&unit) == Some(&false)
    }
}

/// Parameters that the user fixes, by flat number, as `[0:sharded,3:whole]`.
///
/// # Errors
/// What was expected and what was found.
pub(crate) fn parse_pins(text: &str) -> Result<IndexMap<StateUnit, bool>, WusError> {
    let text = text.trim();
    let listed = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let mut pins = IndexMap::default();
    for pin in listed.split(',').map(str::trim).filter(|pin| !pin.is_empty()) {
        let failed = || WusError::PinSyntax { found: pin.into() };
        let (number, form) = pin.split_once([':', '=']).ok_or_else(failed)?;
        let is_sharded = match form.trim() {
            "sharded" => true,
            "whole" => false,
            _ => return Err(failed()),
        };
        let param = StateUnit::Param(number.trim().parse().map_err(|_| failed())?);
        if pins.insert(param, is_sharded).is_some() {
            return Err(failed());
        }
    }
    Ok(pins)
}

/// State that may be in shards.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UnitForm {
    /// Whether it is.
    pub is_sharded: bool,
    /// What a device holds less of it in shards, in bytes.
    pub saved_bytes: f64,
}

/// One placement, made and measured.
pub(crate) struct Trial<T> {
    /// What it saves against everything whole, in picoseconds, by the cut's own prices.
    pub gain_ps: f64,
    /// What everything whole takes, in picoseconds.
    pub whole_ps: f64,
    /// What may be in shards.
    pub state: IndexMap<StateUnit, UnitForm>,
    /// How far `gain_ps` may be from the best one, since the cut rounds prices to whole picoseconds.
    pub rounding_ps: f64,
    /// Whether all state is one problem. Several are solved one after the other: together they need not be the best.
    pub is_one_problem: bool,
    /// Peak of a device, in bytes.
    pub peak_bytes: u64,
    /// What was made.
    pub made: T,
}

impl<T> Trial<T> {
    /// Bytes of state that a device holds less than with everything whole.
    fn saved_bytes(&self) -> f64 {
        self.state.values().filter(|unit| unit.is_sharded).map(|unit| unit.saved_bytes).sum()
    }
}

/// The placement that was chosen.
pub(crate) struct Chosen<T> {
    pub trial: Trial<T>,
    /// No placement that fits saves more, in picoseconds.
    pub bound_ps: f64,
    /// Placements that were made and measured.
    pub n_tried: usize,
}

impl<T> Chosen<T> {
    /// How much faster a placement that fits may be, in picoseconds; zero where none is but by rounding. `None`: not known.
    pub(crate) fn gap_ps(&self) -> Option<f64> {
        let gap_ps = self.bound_ps - self.trial.gain_ps;
        self.trial.is_one_problem.then_some(if gap_ps > self.trial.rounding_ps { gap_ps } else { 0.0 })
    }
}

/// What a search under a limit ends with.
pub(crate) enum Outcome<T> {
    Chosen(Box<Chosen<T>>),
    /// Nothing that was tried fits: the least peak, in bytes.
    NothingFits(u64),
}

/// Makes the fastest placement under prices and fixed parameters; `None` where none is possible.
pub(crate) type Try<'t, T, E> = dyn FnMut(&StateChoice) -> Result<Option<Trial<T>>, E> + 't;

/// A price at which time no longer counts: a microsecond for a byte.
const ANY_TIME: f64 = 1e6;

/// Prices that are tried for a bound.
const BOUND_PRICES: usize = 16;

/// Prices that are tried between the two ends; each halves the hull or ends the search.
const MAX_PRICES: usize = 40;

/// Finds the placement that saves the most time within `limit` bytes. `whole_bytes` are those of all parameters when nothing is in shards; at most
/// `effort` placements are made, beside the prices'.
pub(crate) fn choose<T, E>(
    limit: u64,
    whole_bytes: u64,
    pins: &IndexMap<StateUnit, bool>,
    effort: usize,
    attempt: &mut Try<'_, T, E>,
) -> Result<Outcome<T>, E> {
    let mut search = Search { limit, pins, best: None, least: u64::MAX, n_tried: 0, attempt };
    let Some(free) = search.attempt(&StateChoice::fastest(pins.clone()))? else {
        return Ok(Outcome::NothingFits(search.least));
    };
    let mut bound_ps = free.gain_ps + free.rounding_ps;
    if free.peak_bytes <= limit {
        return Ok(search.chosen(free, bound_ps));
    }
    if let Some(fits) = search.ends(&free)? {
        search.along_hull(&free, fits)?;
    }
    let needed_bytes = whole_bytes.saturating_sub(limit);
    if needed_bytes > 0 {
        bound_ps = bound_ps.min(search.lagrangian(needed_bytes as f64)?);
    }
    bound_ps = bound_ps.min(search.in_order(free, effort)?);
    if search.best.is_none() {
        search.forms()?;
    }
    let Some(best) = search.best.take() else { return Ok(Outcome::NothingFits(search.least)) };
    let bound_ps = bound_ps.max(best.gain_ps);
    Ok(search.chosen(best, bound_ps))
}

/// The only placement there is to choose from.
pub(crate) fn take<T>(limit: u64, only: Option<Trial<T>>) -> Outcome<T> {
    match only {
        Some(trial) if trial.peak_bytes <= limit => {
            let bound_ps = trial.gain_ps;
            Outcome::Chosen(Box::new(Chosen { trial, bound_ps, n_tried: 1 }))
        }
        Some(trial) => Outcome::NothingFits(trial.peak_bytes),
        None => Outcome::NothingFits(u64::MAX),
    }
}

struct Search<'s, 't, T, E> {
    limit: u64,
    /// What the user fixed.
    pins: &'s IndexMap<StateUnit, bool>,
    /// The one that saves the most of those that fit.
    best: Option<Trial<T>>,
    /// The least peak seen.
    least: u64,
    n_tried: usize,
    attempt: &'s mut Try<'t, T, E>,
}

/// What the hull is walked with: a trial without what it made.
#[derive(Clone)]
struct Corner {
    gain_ps: f64,
    rounding_ps: f64,
    saved_bytes: f64,
    state: IndexMap<StateUnit, UnitForm>,
    fits: bool,
}

impl<T, E> Search<'_, '_, T, E> {
    fn attempt(&mut self, choice: &StateChoice) -> Result<Option<Trial<T>>, E> {
        self.n_tried += 1;
        let found = (self.attempt)(choice)?;
        self.least = found.iter().map(|trial| trial.peak_bytes).fold(self.least, u64::min);
        Ok(found)
    }

    /// As `attempt`; the trial is kept if it is the best that fits.
    fn corner(&mut self, choice: &StateChoice) -> Result<Option<Corner>, E> {
        let found = self.attempt(choice)?;
        Ok(found.map(|trial| {
            let corner = self.corner_of(&trial);
            self.keep(trial);
            corner
        }))
    }

    fn corner_of(&self, trial: &Trial<T>) -> Corner {
        let fits = trial.peak_bytes <= self.limit;
        Corner {
            gain_ps: trial.gain_ps,
            rounding_ps: trial.rounding_ps,
            saved_bytes: trial.saved_bytes(),
            state: trial.state.clone(),
            fits,
        }
    }

    fn keep(&mut self, trial: Trial<T>) {
        let is_better = self.best.as_ref().is_none_or(|best| trial.gain_ps > best.gain_ps);
        if trial.peak_bytes <= self.limit && is_better {
            self.best = Some(trial);
        }
    }

    fn chosen(&self, trial: Trial<T>, bound_ps: f64) -> Outcome<T> {
        Outcome::Chosen(Box::new(Chosen { trial, bound_ps, n_tried: self.n_tried }))
    }

    /// The placement with the fewest bytes of parameters, and the one in which all of them are whole; the better one that fits.
    fn ends(&mut self, free: &Trial<T>) -> Result<Option<Corner>, E> {
        let fewest = self.corner(&self.priced(ANY_TIME))?;
        let mut whole: IndexMap<StateUnit, bool> = free.state.keys().map(|&unit| (unit, false)).collect();
        whole.extend(self.pins.iter().map(|(&unit, &is_sharded)| (unit, is_sharded)));
        let whole = self.corner(&StateChoice::fastest(whole))?;
        let fitting = [fewest, whole].into_iter().flatten().filter(|corner| corner.fits);
        Ok(fitting.max_by(|a, b| a.gain_ps.total_cmp(&b.gain_ps)))
    }

    /// Where nothing else fits: gradients too are in shards although that is slower, and temporary arrays are smaller.
    fn forms(&mut self) -> Result<(), E> {
        for form in [StateForm::Gradients, StateForm::Parameters] {
            self.corner(&StateChoice { form: Some(form), ..self.priced(0.0) })?;
        }
        Ok(())
    }

    fn priced(&self, price: f64) -> StateChoice {
        let fastest = StateChoice::fastest(self.pins.clone());
        StateChoice { ps_per_param_byte: price, ps_per_carried_byte: price, ..fastest }
    }

    /// Walks the hull between the fastest placement, which does not fit, and one that does; then switches what differs between the two
    /// corners on either side of the limit.
    fn along_hull(&mut self, free: &Trial<T>, fitting: Corner) -> Result<(), E> {
        let (mut over, mut under) = (self.corner_of(free), fitting);
        for _ in 0..MAX_PRICES {
            let bytes = under.saved_bytes - over.saved_bytes;
            let lost_ps = over.gain_ps - under.gain_ps;
            if bytes <= 0.0 || lost_ps <= 0.0 {
                break;
            }
            let price = lost_ps / bytes;
            let choice = self.priced(price);
            let Some(corner) = self.corner(&choice)? else { break };
            let value = |corner: &Corner| corner.gain_ps + price * corner.saved_bytes;
            let is_corner = value(&corner) > value(&over) * (1.0 + 1e-9) && corner.saved_bytes != over.saved_bytes;
            if !is_corner {
                break;
            }
            match corner.fits {
                true => under = corner,
                false => over = corner,
            }
        }
        self.between(&over, &under)
    }

    /// The least that the Lagrangian of parameters' bytes says any placement saves that holds `needed_bytes` less of them. It is convex in the
    /// price: the slope there says which half of the prices to leave.
    fn lagrangian(&mut self, needed_bytes: f64) -> Result<f64, E> {
        let (mut low, mut high, mut bound_ps) = (0.0, ANY_TIME, f64::INFINITY);
        for _ in 0..BOUND_PRICES {
            let price: f64 = if low == 0.0 { high / 1e3 } else { f64::sqrt(low * high) };
            let choice = StateChoice { ps_per_param_byte: price, ..StateChoice::fastest(self.pins.clone()) };
            let Some(corner) = self.corner(&choice)? else { break };
            let of_params =
                corner.state.iter().filter(|(unit, form)| matches!(unit, StateUnit::Param(_)) && form.is_sharded);
            let saved_bytes: f64 = of_params.map(|(_, form)| form.saved_bytes).sum();
            bound_ps = bound_ps.min(corner.gain_ps + corner.rounding_ps + price * (saved_bytes - needed_bytes));
            match saved_bytes < needed_bytes {
                true => low = price,
                false => high = price,
            }
        }
        Ok(bound_ps)
    }

    /// How much of what is in shards in `under` alone can be whole, in its order.
    fn between(&mut self, over: &Corner, under: &Corner) -> Result<(), E> {
        let is_sharded = |corner: &Corner, unit: &StateUnit| corner.state.get(unit).is_some_and(|form| form.is_sharded);
        let differing: Vec<StateUnit> =
            under.state.keys().copied().filter(|n| is_sharded(under, n) && !is_sharded(over, n)).collect();
        let mut fixed: IndexMap<StateUnit, bool> =
            under.state.iter().map(|(&n, param)| (n, param.is_sharded)).collect();
        let (mut fits, mut too_many) = (0, differing.len() + 1);
        while fits + 1 < too_many {
            let middle = fits.midpoint(too_many);
            for (at, number) in differing.iter().enumerate() {
                fixed.insert(*number, at >= middle);
            }
            let found = self.corner(&StateChoice::fastest(fixed.clone()))?;
            match found.is_some_and(|corner| corner.fits) {
                true => fits = middle,
                false => too_many = middle,
            }
        }
        Ok(())
    }

    /// Takes sets of parameters in the order of what they save, until one fits, or none can be better than what is known, or the effort
    /// ends. Returns a bound on what any that fits saves.
    fn in_order(&mut self, free: Trial<T>, effort: usize) -> Result<f64, E> {
        let mut open = BinaryHeap::new();
        let free = self.corner_of(&free);
        open.push(Open { corner: free, fixed: self.pins.clone() });
        let end = self.n_tried + effort;
        while let Some(Open { corner, fixed }) = open.pop() {
            if self.best.as_ref().is_some_and(|best| best.gain_ps >= corner.gain_ps) || corner.fits {
                return Ok(corner.gain_ps + corner.rounding_ps);
            }
            // Each child has one parameter switched, and those before it as they are here: together they are all other sets.
            let mut prefix = fixed.clone();
            let free: Vec<(StateUnit, UnitForm)> =
                corner.state.iter().filter(|(n, _)| !fixed.contains_key(*n)).map(|(&n, &param)| (n, param)).collect();
            for (number, param) in free {
                if self.n_tried >= end {
                    return Ok(corner.gain_ps + corner.rounding_ps);
                }
                let mut fixed = prefix.clone();
                fixed.insert(number, !param.is_sharded);
                let found = self.corner(&StateChoice::fastest(fixed.clone()))?;
                open.extend(found.map(|corner| Open { corner, fixed }));
                prefix.insert(number, param.is_sharded);
            }
        }
        Ok(self.best.as_ref().map_or(f64::NEG_INFINITY, |best| best.gain_ps))
    }
}

/// Parameters that are fixed, and the fastest placement of the others.
struct Open {
    corner: Corner,
    fixed: IndexMap<StateUnit, bool>,
}

impl PartialEq for Open {
    fn eq(&self, other: &Open) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Open {}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Open) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Open {
    fn cmp(&self, other: &Open) -> Ordering {
        self.corner.gain_ps.total_cmp(&other.corner.gain_ps)
    }
}
