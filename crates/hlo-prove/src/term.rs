//! Terms: scalar functions of coordinates, each stored once.
//!
//! A term of rank `k` is a function of `k` integers, on each device. Ops make terms of terms; where the elements of an
//! array stand is not said by terms but by [`crate::segment`]. So a shard of a product and the product of shards are the
//! same term at the same coordinates.
//!
//! The coordinates of a term are those of its arguments. Coordinates that go in step share a variable: `a[x] + b[x + 3]`
//! has one, `a[x] + b[y]` has two. An application is looked up among those that exist before a new one is made, so that a
//! shard of one row, where more coordinates go in step than in the whole, is found in the whole's term.

use crate::deadline::Deadline;
use crate::devices::{Classes, Devices, Spread};
use crate::estimate::{Estimate, Ordinary};
pub(crate) use crate::ids::{ArrayId, LoopId, TermId, WordId};
use crate::rules::Rules;
use crate::segment::{Coords, Dim, Region, Segment};
use crate::store::{short, wide};
use hashbrown::{DefaultHashBuilder, HashMap, HashSet, HashTable};
use hlo_ir::monoid::Monoid;
use hlo_ir::{DType, Literal, Scalar};
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hash, Hasher};

/// With more arguments than these applications are not told apart by their arguments.
const MAX_PAIRED: usize = 8;

/// Below so many ops terms are not told apart at once: they are compared element by element.
const MAX_DEPTH: usize = 2_000;

/// What an application does with its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Head {
    /// An elementwise op.
    Elementwise(WordId),
    /// A sum (or maximum, …) of the arguments, each over its [`Extent`].
    Sum(Monoid, DType),
    /// The first argument with its coordinates moved by the others, which are scalars; see [`Moves`].
    Moved,
    /// The argument as other devices have it.
    From(Spread),
    /// An op on its operands at one position: the place within its result, then the segments of the operands.
    Unit(WordId),
    /// The sum of the argument over the iterations of a loop.
    LoopSum(LoopId),
    /// What is written into an array of a loop: the row's number, the row of this iteration, the new row, the array before.
    LoopStack(LoopId),
}

/// Over what a sum adds up one of its arguments.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Extent {
    /// Numbers of steps, and what each step adds to the argument's coordinates.
    pub reduce: SmallVec<[(i64, Coords); 1]>,
    /// The devices.
    pub spread: Spread,
}

/// How scalars move coordinates: the `k`-th scalar, clamped to `0..=max`, times `step`.
pub(crate) type Moves = Vec<(Coords, i64)>;

/// A segment of an operand within one unit.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Inner {
    /// The operand's number.
    pub operand: usize,
    /// Places within the unit, and what they add to the term's coordinates.
    pub region: Region,
}

/// What belongs to an argument besides the term.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Extra {
    None,
    Extent(Extent),
    Moves(Moves),
    Inner(Inner),
}

/// An extra's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct ExtraId(u32);

/// Where a coordinate of an argument comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Source {
    /// A variable of the application, and what is added to it.
    Variable(u32, i64),
    /// Nowhere: it is this number.
    Fixed(i64),
}

/// An argument of an application, and where its coordinates come from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Arg {
    pub term: TermId,
    pub extra: ExtraId,
    pub map: SmallVec<[Source; 2]>,
}

impl Arg {
    /// A term whose coordinates are the application's variables.
    pub(crate) fn same(terms: &Terms, term: TermId, extra: ExtraId) -> Arg {
        Arg { term, extra, map: (0..terms.rank(term) as u32).map(|v| Source::Variable(v, 0)).collect() }
    }

    /// The argument's coordinates where the application's variables have these values.
    pub(crate) fn at(&self, variables: &[i64]) -> Coords {
        let of = |source: &Source| match *source {
            Source::Variable(v, offset) => variables[v as usize] + offset,
            Source::Fixed(at) => at,
        };
        self.map.iter().map(of).collect()
    }

    /// What a step of the variables adds to the argument's coordinates.
    pub(crate) fn step(&self, variables: &[i64]) -> Coords {
        let of = |source: &Source| match *source {
            Source::Variable(v, _) => variables[v as usize],
            Source::Fixed(_) => 0,
        };
        self.map.iter().map(of).collect()
    }
}

/// What a term is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Node {
    /// A leaf of an entry parameter, flat.
    Input(u32),
    /// A number.
    Constant(u32),
    /// A literal array, flat.
    Table(u32),
    /// Its coordinate, as a number of a type.
    Iota(DType),
    /// A leaf of a loop's carried value at the start of an iteration, flat.
    Carry(LoopId, u32, u32),
    /// A leaf of a loop's result, flat.
    LoopResult(LoopId, u32),
    /// One element of a term.
    Element(TermId, Coords),
    /// A result leaf of an op that is a function of whole arrays, flat.
    Whole(WordId, Vec<ArrayId>, u32),
    /// What nothing else is equal to: effects, hidden state.
    Unique(u32),
    /// An op applied to terms.
    Apply(Head, Vec<Arg>),
}

struct TermData {
    node: Node,
    rank: u32,
    classes: Classes,
    rules: Rules,
    /// Whether what equals itself alone, such as what pads a tile, is a part of it: that may be any number and none.
    holds_unknowns: bool,
    /// Whether what an effect gives may be a part of it.
    holds_effects: bool,
}

/// All terms, and what they share.
pub(crate) struct Terms {
    pub(crate) devices: Devices,
    pub(crate) deadline: Deadline,
    terms: Vec<TermData>,
    /// Each with its hash, so that nodes are stored and hashed once.
    ids: HashTable<(u32, TermId)>,
    hasher: DefaultHashBuilder,
    literals: Vec<Literal>,
    literal_ids: HashMap<Literal, u32>,
    extras: Vec<Extra>,
    extra_ids: HashMap<Extra, ExtraId>,
    /// Applications by the hash of the head and the arguments, in any coordinates.
    patterns: HashTable<(u32, TermId)>,
    words: Vec<String>,
    word_ids: HashMap<String, WordId>,
    n_unique: u32,
    /// The effects that give arrays.
    effects: HashSet<WordId>,
    elements: HashMap<(TermId, Coords), TermId>,
    commutative: HashSet<WordId>,
    apart: HashMap<(TermId, TermId), bool>,
    pub(crate) spreads: SpreadTable,
    /// Terms as factors, as far as anybody asked for them (`finite`).
    pub(crate) estimates: HashMap<TermId, Estimate>,
    /// Their numbers for some inputs (`ordinary`).
    pub(crate) ordinary: HashMap<TermId, Ordinary>,
}

/// What sums over devices of products, and products with such sums, became (`spread`).
#[derive(Default)]
pub(crate) struct SpreadTable {
    pub into: HashMap<(TermId, Spread), Option<TermId>>,
    pub out_of: HashMap<TermId, Option<(TermId, Spread)>>,
}

impl Terms {
    pub(crate) fn new(n_devices: usize) -> Terms {
        let mut terms = Terms {
            devices: Devices::new(n_devices),
            deadline: Deadline::default(),
            terms: Vec::new(),
            ids: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            literals: Vec::new(),
            literal_ids: HashMap::new(),
            extras: Vec::new(),
            extra_ids: HashMap::new(),
            patterns: HashTable::new(),
            words: Vec::new(),
            word_ids: HashMap::new(),
            n_unique: 0,
            effects: HashSet::new(),
            elements: HashMap::new(),
            commutative: HashSet::new(),
            apart: HashMap::new(),
            spreads: SpreadTable::default(),
            estimates: HashMap::new(),
            ordinary: HashMap::new(),
        };
        terms.extra(Extra::None);
        terms
    }

    pub(crate) const NO_EXTRA: ExtraId = ExtraId(0);

    pub(crate) fn len(&self) -> usize {
        self.terms.len()
    }

    pub(crate) fn node(&self, term: TermId) -> &Node {
        &self.terms[term.0 as usize].node
    }

    pub(crate) fn rank(&self, term: TermId) -> usize {
        self.terms[term.0 as usize].rank as usize
    }

    pub(crate) fn classes(&self, term: TermId) -> Classes {
        self.terms[term.0 as usize].classes
    }

    pub(crate) fn rules(&self, term: TermId) -> Rules {
        self.terms[term.0 as usize].rules
    }

    /// For each term the rules that were used to make it or what it is made of. What a loop gives hides of what it was made,
    /// so that every rule that was used anywhere counts for it.
    pub(crate) fn rules_below(&self) -> Vec<Rules> {
        let all = self.terms.iter().fold(Rules::NONE, |rules, data| rules | data.rules);
        let mut below: Vec<Rules> = Vec::with_capacity(self.terms.len());
        for data in &self.terms {
            // Terms are newer than their arguments.
            let of = |term: TermId| below.get(term.0 as usize).copied().unwrap_or(all);
            below.push(match &data.node {
                Node::Element(term, _) => data.rules | of(*term),
                Node::Apply(Head::LoopSum(_) | Head::LoopStack(_), _)
                | Node::Carry(..)
                | Node::LoopResult(..)
                | Node::Whole(..) => all,
                Node::Apply(_, args) => args.iter().fold(data.rules, |rules, arg| rules | of(arg.term)),
                Node::Input(_) | Node::Constant(_) | Node::Table(_) | Node::Iota(_) | Node::Unique(_) => data.rules,
            });
        }
        below
    }

    /// Notes that a rule was used to make the term.
    pub(crate) fn mark(&mut self, term: TermId, rules: Rules) {
        let data = &mut self.terms[term.0 as usize];
        data.rules = data.rules | rules;
    }

    pub(crate) fn word(&mut self, text: &str) -> WordId {
        if let Some(&id) = self.word_ids.get(text) {
            return id;
        }
        let id = WordId(self.words.len() as u32);
        self.words.push(text.to_string());
        self.word_ids.insert(text.to_string(), id);
        id
    }

    pub(crate) fn text(&self, word: WordId) -> &str {
        &self.words[word.0 as usize]
    }

    pub(crate) fn extra(&mut self, extra: Extra) -> ExtraId {
        if let Some(&id) = self.extra_ids.get(&extra) {
            return id;
        }
        let id = ExtraId(self.extras.len() as u32);
        self.extras.push(extra.clone());
        self.extra_ids.insert(extra, id);
        id
    }

    pub(crate) fn extra_of(&self, id: ExtraId) -> &Extra {
        &self.extras[id.0 as usize]
    }

    fn add(&mut self, node: Node, rank: usize, classes: Classes, rules: Rules) -> TermId {
        let hash = short(self.hasher.hash_one(&node));
        self.find(hash, &node).unwrap_or_else(|| self.add_new(hash, node, rank, classes, rules))
    }

    fn find(&self, hash: u32, node: &Node) -> Option<TermId> {
        let is_it = |&(h, id): &(u32, TermId)| h == hash && self.node(id) == node;
        self.ids.find(wide(hash), is_it).map(|entry| entry.1)
    }

    fn add_new(&mut self, hash: u32, node: Node, rank: usize, classes: Classes, rules: Rules) -> TermId {
        let id = TermId(self.terms.len() as u32);
        self.ids.insert_unique(wide(hash), (hash, id), |entry| wide(entry.0));
        let holds_unknowns = match &node {
            Node::Element(of, _) => self.holds_unknowns(*of),
            Node::Apply(_, args) => args.iter().any(|arg| self.holds_unknowns(arg.term)),
            Node::Input(_) | Node::Constant(_) | Node::Table(_) | Node::Iota(_) => false,
            // What these are made of is not looked at.
            Node::Carry(..) | Node::LoopResult(..) | Node::Whole(..) | Node::Unique(_) => self.n_unique > 0,
        };
        let holds_effects = match &node {
            Node::Element(of, _) => self.holds_effects(*of),
            Node::Apply(_, args) => args.iter().any(|arg| self.holds_effects(arg.term)),
            Node::Input(_) | Node::Constant(_) | Node::Table(_) | Node::Iota(_) | Node::Unique(_) => false,
            Node::Carry(..) | Node::LoopResult(..) | Node::Whole(..) => !self.effects.is_empty(),
        };
        self.terms.push(TermData { node, rank: rank as u32, classes, rules, holds_unknowns, holds_effects });
        id
    }

    /// A leaf term: of rank 0 if it is one number, else flat.
    pub(crate) fn leaf(&mut self, node: Node, n_elems: i64, classes: Classes, rules: Rules) -> TermId {
        self.add(node, usize::from(n_elems != 1), classes, rules)
    }

    pub(crate) fn unique(&mut self, n_elems: i64) -> TermId {
        self.n_unique += 1;
        let classes = self.devices.all_different();
        self.leaf(Node::Unique(self.n_unique), n_elems, classes, Rules::NONE)
    }

    /// Notes that an effect gives arrays.
    pub(crate) fn note_effect(&mut self, word: WordId) {
        self.effects.insert(word);
    }

    /// Whether what an effect gives may be a part of a term.
    pub(crate) fn holds_effects(&self, term: TermId) -> bool {
        self.terms[term.0 as usize].holds_effects
    }

    /// Whether something that nothing is known of may be a part of a term; it need not be a finite number, as others are said to be.
    pub(crate) fn holds_unknowns(&self, term: TermId) -> bool {
        self.terms[term.0 as usize].holds_unknowns
    }

    pub(crate) fn constant(&mut self, literal: Literal) -> TermId {
        let n = literal.n_elems();
        let id = match self.literal_ids.get(&literal) {
            Some(&id) => id,
            None => {
                let id = self.literals.len() as u32;
                self.literals.push(literal.clone());
                self.literal_ids.insert(literal, id);
                id
            }
        };
        let node = if n == 1 { Node::Constant(id) } else { Node::Table(id) };
        self.add(node, usize::from(n != 1), Classes::ALL_EQUAL, Rules::NONE)
    }

    pub(crate) fn scalar(&mut self, dtype: DType, value: Scalar) -> TermId {
        self.constant(Literal::scalar(dtype, value))
    }

    pub(crate) fn integer(&mut self, dtype: DType, value: i64) -> TermId {
        self.scalar(dtype, Scalar::Int(value))
    }

    /// The number that the term is, if it is one.
    pub(crate) fn as_constant(&self, term: TermId) -> Option<&Literal> {
        match self.node(term) {
            Node::Constant(id) => Some(&self.literals[*id as usize]),
            _ => None,
        }
    }

    /// The number or table that the term is, if it is one.
    pub(crate) fn literal(&self, term: TermId) -> Option<&Literal> {
        match self.node(term) {
            Node::Constant(id) | Node::Table(id) => self.literals.get(*id as usize),
            _ => None,
        }
    }

    /// The integer or truth value that the term is, if it is one.
    pub(crate) fn as_integer(&self, term: TermId) -> Option<i64> {
        match self.as_constant(term)?.get(0)? {
            Scalar::Pred(value) => Some(i64::from(value)),
            Scalar::Int(value) => Some(value),
            Scalar::Uint(value) => i64::try_from(value).ok(),
            Scalar::Float(_) | Scalar::Complex(..) => None,
        }
    }

    /// Whether the term is the number zero.
    pub(crate) fn is_zero(&self, term: TermId) -> bool {
        let value = self.as_constant(term);
        value.is_some_and(|v| Literal::zeros(v.dtype(), &[]).is_ok_and(|zero| zero == *v))
    }

    pub(crate) fn iota(&mut self, dtype: DType) -> TermId {
        self.add(Node::Iota(dtype), 1, Classes::ALL_EQUAL, Rules::NONE)
    }

    /// The element of a term at these coordinates, as a term of rank 0.
    pub(crate) fn element(&mut self, term: TermId, at: &[i64]) -> TermId {
        // A list in the place of recursion: terms are as deep as programs are long.
        let mut open: Vec<(TermId, Coords)> = Vec::new();
        let mut next = Some((term, Coords::from_slice(at)));
        while let Some((term, at)) = next {
            if self.known_element(term, &at).is_none() && !self.make_element(term, &at, &mut open) {
                next = open.last().cloned();
                continue;
            }
            if open.last().is_some_and(|last| *last == (term, at)) {
                open.pop();
            }
            next = open.last().cloned();
        }
        self.known_element(term, at).unwrap_or(term)
    }

    /// The element of a term, if it is known.
    fn known_element(&mut self, term: TermId, at: &[i64]) -> Option<TermId> {
        if self.rank(term) == 0 {
            return Some(term);
        }
        let element = self.elements.get(&(term, Coords::from_slice(at))).copied()?;
        // The element may be made of the term's arguments, and rests on what the term rests on all the same.
        self.mark(element, self.rules(term));
        Some(element)
    }

    /// Makes the element of a term; false if it needs elements that are not known, which are added to `open` behind it.
    fn make_element(&mut self, term: TermId, at: &[i64], open: &mut Vec<(TermId, Coords)>) -> bool {
        let key = (term, Coords::from_slice(at));
        let element = match self.node(term).clone() {
            Node::Iota(dtype) => self.integer(dtype, at[0]),
            Node::Apply(head, mut args) if self.acts_by_element(head, &args) => {
                let n_open = open.len();
                for arg in &mut args {
                    let at = arg.at(at);
                    match self.known_element(arg.term, &at) {
                        Some(element) => *arg = Arg { term: element, extra: arg.extra, map: SmallVec::new() },
                        None => open.push((arg.term, at)),
                    }
                }
                if open.len() > n_open {
                    if n_open.checked_sub(1).and_then(|last| open.get(last)) != Some(&key) {
                        open.insert(n_open, key);
                    }
                    return false;
                }
                self.apply_mapped(head, args)
            }
            node => match self.number_of_table(&node, at) {
                Some(number) => number,
                None => {
                    let (classes, rules) = (self.classes(term), self.rules(term));
                    self.add(Node::Element(term, key.1.clone()), 0, classes, rules)
                }
            },
        };
        self.elements.insert(key, element);
        true
    }

    fn number_of_table(&mut self, node: &Node, at: &[i64]) -> Option<TermId> {
        let Node::Table(id) = node else { return None };
        let literal = &self.literals[*id as usize];
        let value = usize::try_from(at[0]).ok().and_then(|k| literal.get(k))?;
        let dtype = literal.dtype();
        Some(self.scalar(dtype, value))
    }

    /// Whether an element of the application needs one element of each argument.
    fn acts_by_element(&self, head: Head, args: &[Arg]) -> bool {
        match head {
            Head::Elementwise(_) => true,
            Head::Sum(..) => args.iter().all(|arg| self.is_unreduced(arg.extra)),
            Head::Moved | Head::From(_) | Head::Unit(_) | Head::LoopSum(_) | Head::LoopStack(_) => false,
        }
    }

    fn is_unreduced(&self, extra: ExtraId) -> bool {
        match self.extra_of(extra) {
            Extra::Extent(extent) => extent.reduce.is_empty(),
            Extra::None | Extra::Moves(_) | Extra::Inner(_) => true,
        }
    }

    /// Notes that the order of an op's operands does not matter.
    pub(crate) fn note_commutative(&mut self, word: WordId) {
        self.commutative.insert(word);
    }

    /// An application whose variables are given.
    pub(crate) fn apply_mapped(&mut self, head: Head, mut args: Vec<Arg>) -> TermId {
        match head {
            Head::Elementwise(word) if self.commutative.contains(&word) => args.sort_by_key(|arg| arg.term),
            Head::Sum(..) => {
                let extent = |arg: &Arg| match self.extra_of(arg.extra) {
                    Extra::Extent(extent) => Some(extent),
                    Extra::None | Extra::Moves(_) | Extra::Inner(_) => None,
                };
                args.sort_by(|a, b| (a.term, extent(a)).cmp(&(b.term, extent(b))));
            }
            Head::Elementwise(_)
            | Head::Moved
            | Head::From(_)
            | Head::Unit(_)
            | Head::LoopSum(_)
            | Head::LoopStack(_) => {}
        }
        let n_variables = |source: &Source| match *source {
            Source::Variable(v, _) => v as usize + 1,
            Source::Fixed(_) => 0,
        };
        let rank = args.iter().flat_map(|arg| arg.map.iter().map(n_variables)).max().unwrap_or(0);
        let rules = args.iter().fold(Rules::NONE, |rules, arg| rules | self.rules(arg.term));
        let node = Node::Apply(head, args);
        let hash = short(self.hasher.hash_one(&node));
        if let Some(id) = self.find(hash, &node) {
            return id;
        }
        let Node::Apply(_, args) = &node else { return TermId(0) };
        let key: SmallVec<[(TermId, ExtraId); 4]> = args.iter().map(|arg| (arg.term, arg.extra)).collect();
        let classes = self.classes_of_application(head, &key);
        let id = self.add_new(hash, node, rank, classes, rules);
        let pattern = self.hash_of_pattern(head, key.iter().copied());
        self.patterns.insert_unique(wide(pattern), (pattern, id), |entry| wide(entry.0));
        id
    }

    fn classes_of_application(&mut self, head: Head, args: &[(TermId, ExtraId)]) -> Classes {
        let mut classes = Classes::ALL_EQUAL;
        if let Head::From(spread) = head {
            return self.devices.classes_of(spread);
        }
        for &(term, extra) in args {
            let own = match self.extra_of(extra) {
                Extra::Extent(extent) => {
                    let spread = extent.spread;
                    self.devices.classes_of(spread)
                }
                Extra::None | Extra::Moves(_) | Extra::Inner(_) => self.classes(term),
            };
            classes = self.devices.join(classes, own);
        }
        classes
    }

    /// The segment of an application to `args`, of which each has its coordinates in `region` from a position on.
    /// Coordinate 0 of the region is the place in the array.
    pub(crate) fn apply(&mut self, head: Head, args: &[(TermId, ExtraId, usize)], region: &Region) -> Segment {
        if let Some(found) = self.find_pattern(head, args, region) {
            return found;
        }
        // Scalars at fixed coordinates take no variable.
        let is_still = |c: usize| region.dims.iter().all(|d| d.step[c] == 0);
        let fixes = match head {
            Head::Elementwise(_) => true,
            Head::Sum(..) => (1..region.at.len()).all(is_still) && args.iter().all(|a| self.is_unreduced(a.1)),
            Head::Moved | Head::From(_) | Head::Unit(_) | Head::LoopSum(_) | Head::LoopStack(_) => false,
        };
        let mut scalars = false;
        let mut new_args: Vec<(TermId, ExtraId, usize)> = Vec::with_capacity(args.len());
        for &(term, extra, from) in args {
            let rank = self.rank(term);
            let is_fixed = fixes && rank > 0 && (from..from + rank).all(is_still);
            if is_fixed {
                let at = Coords::from_slice(&region.at[from..from + rank]);
                new_args.push((self.element(term, &at), extra, from));
                scalars = true;
            } else {
                new_args.push((term, extra, from));
            }
        }
        if scalars && let Some(found) = self.find_pattern(head, &new_args, region) {
            return found;
        }
        let mut variables: SmallVec<[(usize, i64); 4]> = SmallVec::new();
        let mut mapped = Vec::with_capacity(new_args.len());
        for &(term, extra, from) in &new_args {
            let mut map = SmallVec::new();
            for c in from..from + self.rank(term) {
                if is_still(c) {
                    map.push(Source::Fixed(region.at[c]));
                    continue;
                }
                let known = variables.iter().position(|&(v, _)| region.dims.iter().all(|d| d.step[v] == d.step[c]));
                let v = known.unwrap_or_else(|| {
                    variables.push((c, 0));
                    variables.len() - 1
                });
                map.push(Source::Variable(v as u32, region.at[c] - region.at[variables[v].0]));
            }
            mapped.push(Arg { term, extra, map });
        }
        let term = self.apply_mapped(head, mapped);
        segment_of(term, region, &variables)
    }

    fn hash_of_pattern(&self, head: Head, args: impl Iterator<Item = (TermId, ExtraId)>) -> u32 {
        let mut state = self.hasher.build_hasher();
        head.hash(&mut state);
        args.for_each(|arg| arg.hash(&mut state));
        short(state.finish())
    }

    fn find_pattern(&self, head: Head, args: &[(TermId, ExtraId, usize)], region: &Region) -> Option<Segment> {
        let is_still = |c: usize| region.dims.iter().all(|d| d.step[c] == 0);
        let hash = self.hash_of_pattern(head, args.iter().map(|&(term, extra, _)| (term, extra)));
        // The oldest that fits, whatever the order in the table.
        let terms = self.patterns.iter_hash(wide(hash)).filter(|entry| entry.0 == hash).map(|entry| entry.1);
        let mut terms: SmallVec<[TermId; 4]> = terms.collect();
        terms.sort();
        terms.into_iter().find_map(|term| {
            let Node::Apply(own, mapped) = self.node(term) else { return None };
            let is_arg =
                |(arg, &(term, extra, _)): (&Arg, &(TermId, ExtraId, usize))| (arg.term, arg.extra) == (term, extra);
            if *own != head || mapped.len() != args.len() || !mapped.iter().zip(args).all(is_arg) {
                return None;
            }
            // Where each variable stands in the region, and how far from it.
            let mut variables: SmallVec<[(usize, i64); 4]> = SmallVec::from_elem((usize::MAX, 0), self.rank(term));
            for (arg, &(_, _, from)) in mapped.iter().zip(args) {
                for (c, &source) in arg.map.iter().enumerate() {
                    let place = from + c;
                    let (v, delta) = match source {
                        Source::Variable(v, delta) => (v, delta),
                        Source::Fixed(at) if region.at[place] == at && is_still(place) => continue,
                        Source::Fixed(_) => return None,
                    };
                    let slot = &mut variables[v as usize];
                    if slot.0 == usize::MAX {
                        *slot = (place, delta);
                    }
                    let first = *slot;
                    let goes_along = region.at[place] - delta == region.at[first.0] - first.1
                        && region.dims.iter().all(|d| d.step[place] == d.step[first.0]);
                    if !goes_along {
                        return None;
                    }
                }
            }
            variables.iter().all(|v| v.0 != usize::MAX).then(|| segment_of(term, region, &variables))
        })
    }

    /// The segment of a term that takes the places of a region and stays at its only element.
    pub(crate) fn splat(&self, term: TermId, n: i64) -> Segment {
        Segment { term, region: Region { dims: Region::line(n).dims, at: Coords::from_slice(&[0]) } }
    }
}

/// A term at coordinates that go along some dims.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub term: TermId,
    /// At the first element.
    pub at: Coords,
    /// What a step of each dim adds.
    pub steps: Vec<Coords>,
}

impl Place {
    /// An argument's term at the coordinates that it has here.
    pub(crate) fn of(&self, arg: &Arg) -> Place {
        Place { term: arg.term, at: arg.at(&self.at), steps: self.steps.iter().map(|s| arg.step(s)).collect() }
    }
}

impl Terms {
    /// Whether two terms at these coordinates are the same numbers, as far as their forms tell: the same application may
    /// have been made with fewer variables where more coordinates went in step.
    pub(crate) fn is_same(&mut self, a: &Place, b: &Place, left: &mut usize) -> bool {
        if a == b {
            return true;
        }
        if *left == 0 || self.are_apart(a.term, b.term, 0) {
            return false;
        }
        *left -= 1;
        let is_still = |place: &Place| place.steps.iter().all(|step| step.iter().all(|&s| s == 0));
        if is_still(a) && is_still(b) && self.element(a.term, &a.at) == self.element(b.term, &b.at) {
            return true;
        }
        match (self.node(a.term).clone(), self.node(b.term).clone()) {
            (Node::Apply(x, of_a), Node::Apply(y, of_b)) if x == y && of_a.len() == of_b.len() => {
                of_a.iter().zip(&of_b).all(|(p, q)| {
                    p.extra == q.extra && {
                        let (a, b) = (self.place_of_argument(a, p), self.place_of_argument(b, q));
                        self.is_same(&a, &b, left)
                    }
                })
            }
            (_, _) => false,
        }
    }

    /// An argument's place, with the steps that the application itself takes along it: all elements that it needs are to be
    /// compared, not the first alone.
    fn place_of_argument(&self, place: &Place, arg: &Arg) -> Place {
        let mut inner = place.of(arg);
        match self.extra_of(arg.extra) {
            Extra::None => {}
            Extra::Extent(extent) => inner.steps.extend(extent.reduce.iter().map(|(_, step)| step.clone())),
            Extra::Moves(moves) => inner.steps.extend(moves.iter().map(|(step, _)| step.clone())),
            Extra::Inner(part) => {
                inner.at.iter_mut().zip(&part.region.at[1..]).for_each(|(at, add)| *at += add);
                inner.steps.extend(part.region.dims.iter().map(|dim| Coords::from_slice(&dim.step[1..])));
            }
        }
        inner
    }
}

impl Terms {
    /// Whether [`Terms::is_same`] says no for two terms at any coordinates: somewhere in them stand other ops or other leaves.
    fn are_apart(&mut self, a: TermId, b: TermId, depth: usize) -> bool {
        if a == b || depth > MAX_DEPTH {
            return false;
        }
        let key = (a.min(b), a.max(b));
        if let Some(&known) = self.apart.get(&key) {
            return known;
        }
        let is_leaf = |node: &Node| match node {
            Node::Input(_) | Node::Carry(..) | Node::LoopResult(..) | Node::Whole(..) | Node::Unique(_) => true,
            Node::Constant(_) | Node::Table(_) | Node::Iota(_) | Node::Element(..) | Node::Apply(..) => false,
        };
        let is_apart = match (self.node(a), self.node(b)) {
            (Node::Apply(x, of_a), Node::Apply(y, of_b)) if x == y && of_a.len() == of_b.len() => {
                let args = |args: &[Arg]| args.iter().map(|arg| arg.term).collect::<SmallVec<[TermId; MAX_PAIRED]>>();
                let (of_a, of_b) = (args(of_a), args(of_b));
                // The elements of an op whose order does not matter may stand in another order.
                of_a.len() <= MAX_PAIRED && of_a.iter().any(|&p| of_b.iter().all(|&q| self.are_apart(p, q, depth + 1)))
            }
            (Node::Apply(..), Node::Apply(..)) => true,
            (p, q) => (is_leaf(p) || matches!(p, Node::Apply(..))) && (is_leaf(q) || matches!(q, Node::Apply(..))),
        };
        self.apart.insert(key, is_apart);
        is_apart
    }
}

/// The segment of a term whose variables are these coordinates of a region, each less a number.
fn segment_of(term: TermId, region: &Region, variables: &[(usize, i64)]) -> Segment {
    let step = |d: &Dim| std::iter::once(d.step[0]).chain(variables.iter().map(|&(v, _)| d.step[v])).collect();
    let at = std::iter::once(region.at[0]).chain(variables.iter().map(|&(v, delta)| region.at[v] - delta)).collect();
    let dims = region.dims.iter().map(|d| Dim { n: d.n, step: step(d) }).collect();
    Segment { term, region: Region { at, dims } }
}
