//! Link loads on machines of switches alone, counted without putting groups into order.
//!
//! A closed ring goes through the devices of a group by their ids, and the ids inside an entity are neighbours. So it
//! leaves and enters every entity that holds some but not all of the group exactly once. The number of its hops that part
//! at a level is the number of siblings at that level less one. A chain is the ring without the hop that leads to its root.
//! Only trees need an order: they are walked when they are asked for, and [`TreeBound`] is what they cost at least.
//!
//! A device is in one group of an instruction, so the link of a device has a load from one class only: of the innermost level
//! the largest load of each class is kept, of the others the load of every entity.

use crate::reduction::device_groups::{Groups, Members};
use crate::topology::{Cluster, Level, LevelNetwork};
use crate::tree;

/// Whether every level is a switch to which each entity has a link of its own.
pub(crate) fn is_plain(cluster: &Cluster) -> bool {
    let is_switch = |l: &Level| l.network == LevelNetwork::Switched && l.shared_by == 1 && l.bypass.is_none();
    !cluster.levels().is_empty() && cluster.levels().iter().all(is_switch)
}

/// The flows that need no order.
pub(crate) struct Rings {
    /// The closed ring, with the latency of a reduce-scatter.
    pub around: Counted,
    /// By class: the latency of a chain from the root. One to the root loads the same links the other way round.
    pub chain_s: Vec<f64>,
    /// By group: what a chain does not have.
    pub closing: Vec<Closing>,
    /// For the trees.
    pub bound: TreeBound,
}

/// The hop that closes a ring.
pub(crate) struct Closing {
    class: usize,
    last: u32,
    root: u32,
    /// The level at which the two part.
    parting: usize,
}

/// What the groups load in one flow, in tensors.
pub(crate) struct Counted {
    /// By class: the slowest group.
    pub latency_s: Vec<f64>,
    /// By level but the innermost: of each entity the load by class.
    pub outer: Vec<Vec<f64>>,
    /// By class: the largest load of a device.
    pub innermost: Vec<f64>,
}

/// What trees cost at least. Every entity that a group crosses carries one tensor or more, and of `k` entities the mean is
/// `2(k-1)/k` or more, as trees that span them have `k-1` edges.
pub(crate) struct TreeBound {
    /// By class.
    pub latency_s: Vec<f64>,
    /// By level, by class: the mean load of all its links.
    pub mean: Vec<Vec<f64>>,
}

impl Groups<'_> {
    /// Rings and chains, and what trees cost at least.
    pub(super) fn rings(&self) -> Rings {
        let (levels, n_classes) = (self.cluster.levels(), self.n_classes());
        let mut around = Counted::new(self);
        let mut bound = TreeBound { latency_s: vec![0.0; n_classes], mean: vec![vec![0.0; n_classes]; levels.len()] };
        let mut chain_s = vec![0.0; n_classes];
        let mut closing = Vec::new();
        let mut crossed = Crossed::new(self.cluster);
        self.for_each(|class, members| {
            crossed.mark(members);
            around.add_crossed(&crossed, class);
            let (n, slowest) = (members.len(), crossed.hops().map(|(_, s)| s).fold(0.0, f64::max));
            at_least(&mut around.latency_s[class], (n - 1) as f64 * slowest);
            let n_entities = crossed.entities.iter().map(Vec::len).chain([n]);
            for (mean, k) in bound.mean.iter_mut().zip(n_entities) {
                mean[class] += 2.0 * (k - 1) as f64;
            }
            at_least(&mut bound.latency_s[class], crossed.least_tree_s(n));
            let root = members.devices[0];
            let last = members.before(root);
            if let Some(parting) = self.cluster.parting_level(last, root) {
                let hops_s: f64 = crossed.hops().map(|(n, s)| n as f64 * s).sum();
                let outermost_s = crossed.hops().next().map_or(0.0, |(_, s)| s);
                at_least(&mut chain_s[class], hops_s + outermost_s - levels[parting].latency_s);
                closing.push(Closing { class, last, root, parting });
            }
        });
        let n_links = self.cluster.entity.iter().map(|of_device| of_device.last().map_or(1, |last| last + 1));
        for (mean, n) in bound.mean.iter_mut().zip(n_links) {
            mean.iter_mut().for_each(|load| *load /= f64::from(n));
        }
        Rings { around, chain_s, closing, bound }
    }

    /// Chains inside of nodes and two trees between them, up and down: see [`tree::all_reduce`].
    pub(super) fn trees(&self) -> Counted {
        let mut counted = Counted::new(self);
        let (cluster, levels) = (self.cluster, self.cluster.levels());
        let innermost = levels.len() - 1;
        let is_one_node = |a: &u32, b: &u32| {
            innermost > 0 && cluster.entity[innermost - 1][*a as usize] == cluster.entity[innermost - 1][*b as usize]
        };
        let (mut order, mut heads, mut loads, mut depth_s) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut edges = [Vec::new(), Vec::new()];
        let mut edges_of = 0;
        self.for_each(|class, members| {
            order.clear();
            order.extend(members.iter());
            order.sort();
            heads.clear();
            loads.clear();
            let mut longest = 1;
            for node in order.chunk_by(is_one_node) {
                heads.push(node[0]);
                loads.push(if node.len() > 1 { 1.0 } else { 0.0 });
                longest = longest.max(node.len());
            }
            if heads.len() != edges_of {
                edges_of = heads.len();
                edges = [false, true].map(|is_second| tree::tree(edges_of as u32, is_second));
            }
            let mut trees_s = 0.0f64;
            for tree in &edges {
                depth_s.clear();
                depth_s.resize(heads.len(), 0.0f64);
                for &(child, parent) in tree {
                    let (a, b) = (heads[child as usize], heads[parent as usize]);
                    let parting = cluster.parting_level(a, b).unwrap_or(innermost);
                    for l in parting..innermost {
                        counted.add(l, cluster.entity[l][a as usize], class, 0.5);
                        counted.add(l, cluster.entity[l][b as usize], class, 0.5);
                    }
                    loads[child as usize] += 0.5;
                    loads[parent as usize] += 0.5;
                    depth_s[child as usize] = depth_s[parent as usize] + 2.0 * levels[parting].latency_s;
                }
                trees_s = depth_s.iter().copied().fold(trees_s, f64::max);
            }
            let of_chain = if longest > 2 { 2.0 } else { 0.0 };
            at_least(&mut counted.innermost[class], loads.iter().copied().fold(of_chain, f64::max));
            let chains_s = 2.0 * (longest - 1) as f64 * levels[innermost].latency_s;
            at_least(&mut counted.latency_s[class], chains_s + trees_s);
        });
        counted
    }
}

impl Counted {
    fn new(groups: &Groups<'_>) -> Counted {
        let n_classes = groups.n_classes();
        let of_level =
            |of_device: &Vec<u32>| vec![0.0; of_device.last().map_or(0, |last| *last as usize + 1) * n_classes];
        let entity = &groups.cluster.entity;
        Counted {
            latency_s: vec![0.0; n_classes],
            outer: entity[..entity.len() - 1].iter().map(of_level).collect(),
            innermost: vec![0.0; n_classes],
        }
    }

    fn add(&mut self, level: usize, entity: u32, class: usize, load: f64) {
        let n_classes = self.innermost.len();
        self.outer[level][entity as usize * n_classes + class] += load;
    }

    /// Adds to the links by which the hops leave (`is_out`) or enter the entities of their ends.
    pub(super) fn add_closing(&mut self, cluster: &Cluster, closing: &[Closing], is_out: bool, load: f64) {
        for Closing { class, last, root, parting } in closing {
            let device = if is_out { *last } else { *root };
            for l in *parting..self.outer.len() {
                self.add(l, cluster.entity[l][device as usize], *class, load);
            }
        }
    }

    /// One tensor over the links of every entity that holds some of a group, not all.
    fn add_crossed(&mut self, crossed: &Crossed<'_>, class: usize) {
        for (l, entities) in crossed.entities.iter().enumerate().filter(|(_, entities)| entities.len() > 1) {
            for entity in entities {
                self.add(l, *entity, class, 1.0);
            }
        }
        self.innermost[class] = 1.0;
    }
}

/// The entities that hold devices of a group.
struct Crossed<'a> {
    cluster: &'a Cluster,
    /// By level but the innermost, by entity: the last group that marked it.
    marks: Vec<Vec<u32>>,
    mark: u32,
    /// By level but the innermost: the entities.
    entities: Vec<Vec<u32>>,
    /// By level: hops of the ring that part there, the one that closes it left out.
    n_hops: Vec<usize>,
}

impl<'a> Crossed<'a> {
    fn new(cluster: &'a Cluster) -> Crossed<'a> {
        let outer = &cluster.entity[..cluster.entity.len() - 1];
        let marks = |of_device: &Vec<u32>| vec![0; of_device.last().map_or(0, |last| *last as usize + 1)];
        Crossed {
            cluster,
            marks: outer.iter().map(marks).collect(),
            mark: 0,
            entities: vec![Vec::new(); outer.len()],
            n_hops: vec![0; cluster.entity.len()],
        }
    }

    /// Forgets the last group and marks the entities of this one, from the inside to the first that is marked already.
    fn mark(&mut self, members: Members<'_>) {
        self.mark += 1;
        self.entities.iter_mut().for_each(Vec::clear);
        self.n_hops.fill(0);
        for (i, device) in members.iter().enumerate() {
            let mut parting = 0;
            for l in (0..self.marks.len()).rev() {
                let entity = self.cluster.entity[l][device as usize];
                let mark = &mut self.marks[l][entity as usize];
                if *mark == self.mark {
                    parting = l + 1;
                    break;
                }
                *mark = self.mark;
                self.entities[l].push(entity);
            }
            if i > 0 {
                self.n_hops[parting] += 1;
            }
        }
    }

    /// The levels at which hops part, outermost first: how many, and the latency of each.
    fn hops(&self) -> impl Iterator<Item = (usize, f64)> {
        let levels = self.n_hops.iter().zip(self.cluster.levels());
        levels.filter(|(n, _)| **n > 0).map(|(n, level)| (*n, level.latency_s))
    }

    /// Of `k` nodes one is at depth `log2(k + 1) - 1` or deeper, as none has more than two children; up and down.
    fn least_tree_s(&self, n: usize) -> f64 {
        let levels = self.cluster.levels();
        let innermost = levels.len() - 1;
        let n_nodes = self.entities.last().map_or(n, Vec::len);
        let depth = (n_nodes + 1).next_power_of_two().ilog2() - 1;
        let between = self.n_hops.iter().zip(levels).take(innermost.max(1)).filter(|(n, _)| **n > 0);
        let least_hop_s = between.map(|(_, level)| level.latency_s).fold(f64::INFINITY, f64::min);
        let trees_s = if depth > 0 { 2.0 * f64::from(depth) * least_hop_s } else { 0.0 };
        trees_s + 2.0 * (n.div_ceil(n_nodes) - 1) as f64 * levels[innermost].latency_s
    }
}

fn at_least(slowest: &mut f64, seconds: f64) {
    *slowest = slowest.max(seconds);
}
