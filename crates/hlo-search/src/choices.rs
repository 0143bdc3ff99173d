//! Regions of a program that may be computed in several ways, of which a plan takes one (Unger et al. 2022, §5, in one problem with the
//! placement of all ops).
//!
//! The ways stand beside each other in the program that is planned. An op of a way that is not taken is *off*: it has no plan, costs
//! nothing, and what it would take need not be anywhere. What a region gives is a value of its own, a *port*, which comes from the way
//! that is taken. So a variable for each region, its way, decides which ops are on.

use crate::ids::{CutId, OpId};
use crate::regions::{RegionId, WayOf};
use cranelift_entity::{PrimaryMap, SecondaryMap};

/// A result of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Port {
    pub region: RegionId,
    /// What others take.
    pub value: CutId,
    /// By way, the value that it gives.
    pub roots: Vec<CutId>,
}

/// The regions of a program.
#[derive(Clone, Default)]
pub(crate) struct Choices {
    /// By region, how many ways it has.
    pub n_ways: PrimaryMap<RegionId, u32>,
    /// The way that an op is part of.
    pub of_op: SecondaryMap<OpId, Option<WayOf>>,
    /// Results of regions.
    pub ports: Vec<Port>,
    port_of: SecondaryMap<CutId, Option<u32>>,
    ops_of: SecondaryMap<RegionId, Vec<OpId>>,
}

impl Choices {
    /// Regions with so many ways, of which no op and no result is known yet.
    pub(crate) fn new(n_ways: PrimaryMap<RegionId, u32>) -> Choices {
        Choices { n_ways, ..Choices::default() }
    }

    /// Says of which way an op is part.
    pub(crate) fn add_op(&mut self, op: OpId, of: WayOf) {
        self.of_op[op] = Some(of);
        self.ops_of[of.region].push(op);
    }

    /// The ops of all ways of a region.
    pub(crate) fn ops_of(&self, region: RegionId) -> &[OpId] {
        &self.ops_of[region]
    }

    /// The results of a region.
    pub(crate) fn ports_of(&self, region: RegionId) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(move |port| port.region == region)
    }

    /// Adds a result of a region.
    pub(crate) fn add_port(&mut self, port: Port) {
        self.port_of[port.value] = Some(self.ports.len() as u32);
        self.ports.push(port);
    }

    /// The port that a value is.
    pub(crate) fn port(&self, value: CutId) -> Option<&Port> {
        self.port_of[value].map(|number| &self.ports[number as usize])
    }
}
