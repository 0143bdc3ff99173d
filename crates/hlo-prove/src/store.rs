//! Lists of segments, each stored once and packed: large modules have millions, most of one segment of a few numbers.

use crate::ids::{ArrayId, TermId};
use crate::segment::{Coords, Dim, Region, Segment};
use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hasher};

/// Numbers of one block.
const N_BLOCK: usize = 1 << 16;

/// Where a list stands.
#[derive(Clone, Copy)]
struct Span {
    block: u32,
    start: u32,
    len: u32,
}

/// A list is its segments one after another; a segment is its term, how many coordinates and dims it has, the coordinates,
/// then each dim's number of steps and its step.
pub(crate) struct Store {
    blocks: Vec<Vec<i64>>,
    spans: Vec<Span>,
    ids: HashTable<(u32, ArrayId)>,
    hasher: DefaultHashBuilder,
    packed: Vec<i64>,
}

/// The segments of a list.
pub(crate) type Segments = SmallVec<[Segment; 1]>;

impl Store {
    pub(crate) fn new() -> Store {
        Store {
            blocks: Vec::new(),
            spans: Vec::new(),
            ids: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            packed: Vec::new(),
        }
    }

    /// The list of these segments.
    pub(crate) fn intern(&mut self, segments: &[Segment]) -> ArrayId {
        let mut packed = std::mem::take(&mut self.packed);
        packed.clear();
        segments.iter().for_each(|segment| pack(segment, &mut packed));
        let mut hasher = self.hasher.build_hasher();
        packed.iter().for_each(|&number| hasher.write_i64(number));
        let hash = short(hasher.finish());
        let is_it = |&(h, id): &(u32, ArrayId)| h == hash && *self.packed_of(id) == *packed;
        let known = self.ids.find(wide(hash), is_it).map(|entry| entry.1);
        let id = known.unwrap_or_else(|| self.add(hash, &packed));
        self.packed = packed;
        id
    }

    fn add(&mut self, hash: u32, packed: &[i64]) -> ArrayId {
        if self.blocks.last().is_none_or(|block| block.capacity() - block.len() < packed.len()) {
            self.blocks.push(Vec::with_capacity(N_BLOCK.max(packed.len())));
        }
        let id = ArrayId(self.spans.len() as u32);
        let n_blocks = self.blocks.len() as u32;
        if let Some(block) = self.blocks.last_mut() {
            self.spans.push(Span { block: n_blocks - 1, start: block.len() as u32, len: packed.len() as u32 });
            block.extend_from_slice(packed);
        }
        self.ids.insert_unique(wide(hash), (hash, id), |entry| wide(entry.0));
        id
    }

    fn packed_of(&self, id: ArrayId) -> &[i64] {
        let span = self.spans[id.0 as usize];
        let start = span.start as usize;
        &self.blocks[span.block as usize][start..start + span.len as usize]
    }

    /// How long a list is, packed.
    pub(crate) fn n_numbers(&self, id: ArrayId) -> usize {
        self.spans[id.0 as usize].len as usize
    }

    pub(crate) fn segments(&self, id: ArrayId) -> Segments {
        let mut packed = self.packed_of(id);
        let mut out = Segments::new();
        while let [term, n_coords, rest @ ..] = packed {
            let (n_coords, n_dims) = ((n_coords & 0xffff_ffff) as usize, (n_coords >> 32) as usize);
            let (at, rest) = rest.split_at(n_coords);
            let (of_dims, rest) = rest.split_at(n_dims * (1 + n_coords));
            let dims = of_dims.chunks_exact(1 + n_coords);
            let dims = dims.map(|dim| Dim { n: dim[0], step: Coords::from_slice(&dim[1..]) }).collect();
            out.push(Segment { term: TermId(*term as u32), region: Region { at: Coords::from_slice(at), dims } });
            packed = rest;
        }
        out
    }
}

fn pack(segment: &Segment, out: &mut Vec<i64>) {
    let Region { at, dims } = &segment.region;
    out.extend([i64::from(segment.term.0), at.len() as i64 | (dims.len() as i64) << 32]);
    out.extend_from_slice(at);
    for dim in dims {
        out.push(dim.n);
        out.extend_from_slice(&dim.step);
    }
}

/// A hash of half the size, which tables keep beside what they find.
pub(crate) fn short(hash: u64) -> u32 {
    (hash ^ hash >> 32) as u32
}

/// As tables want it, with all bits used.
pub(crate) fn wide(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
