//! Loops: leaves that are passed on, added to, exchanged, or changed where another leaf says so; stacks whose rows are clamped.

use hlo_tests::random_module::Rng;

use super::{Program, factor};

/// How a leaf of two floats begins.
#[derive(Clone, Copy, PartialEq)]
enum Init {
    Input(usize),
    Number(&'static str),
}

/// What an iteration makes of a leaf.
#[derive(Clone, Copy, PartialEq)]
enum Update {
    Keep,
    Sine,
    /// The sum with another leaf.
    Add(usize),
    /// The sum with another leaf, times the counter.
    AddTimesCounter(usize),
    /// The sum with another leaf, times a number.
    AddTimes(usize, &'static str),
    /// The sum with that of another leaf over devices.
    AddOfDevices(usize),
    /// Another leaf.
    Take(usize),
    /// Another leaf, unless the flag is zero.
    TakeUnlessZero(usize),
    /// Another leaf where the counter is this.
    TakeAt(i64, usize),
}

#[derive(Clone)]
struct Loop {
    start: i64,
    limit: i64,
    step: i64,
    direction: &'static str,
    leaves: Vec<(Init, Update)>,
    /// An integer leaf: its start, and what is added to it.
    flag: (i64, i64),
    /// Whether the condition looks at the flag.
    is_flag_counted: bool,
    /// The rows of a stack into which leaf 0 is written, the number added to the counter, and whether a second row is written.
    stack: (usize, i64, bool),
    /// What the stack holds before.
    empty: &'static str,
}

const ROWS_GIVEN: usize = 4;

pub(super) fn pair(rng: &mut Rng) -> (Program, Program) {
    let n_leaves = 1 + rng.below(3);
    let before = Loop {
        start: *rng.pick(&[0, 0, 0, 1, -1]),
        limit: *rng.pick(&[3, 4, 5, 6, 0]),
        step: *rng.pick(&[1, 1, 1, 2]),
        direction: rng.pick::<&'static str>(&["LT", "LT", "LT", "LE", "NE"]),
        leaves: (0..n_leaves).map(|_| (init(rng), update(n_leaves, rng))).collect(),
        flag: (rng.below(2) as i64, *rng.pick(&[0, 0, 1])),
        is_flag_counted: rng.one_in(6),
        stack: (*rng.pick(&[4, 5, 8]), *rng.pick(&[0, 0, 1, -1]), rng.one_in(4)),
        empty: rng.pick::<&'static str>(&["0", "0", "1"]),
    };
    let mut after = before.clone();
    if rng.one_in(2) {
        change(&mut after, rng);
    }
    if rng.one_in(3) {
        after.stack.0 = *rng.pick(&[4, 5, 8]);
    }
    let write = |description: &Loop, rng: &mut Rng| {
        // Of a stack the first rows are given; of a loop all floats, and sometimes the flag.
        description.write(rng.below(2), rng)
    };
    (write(&before, rng), write(&after, rng))
}

fn init(rng: &mut Rng) -> Init {
    match rng.below(3) {
        0 => Init::Number(rng.pick::<&'static str>(&["0", "1", "-0"])),
        _ => Init::Input(rng.below(3)),
    }
}

fn update(n_leaves: usize, rng: &mut Rng) -> Update {
    let other = rng.below(n_leaves);
    match rng.below(12) {
        0 | 1 => Update::Keep,
        2 => Update::Sine,
        3 => Update::Add(other),
        4 => Update::AddTimesCounter(other),
        5 | 6 => Update::AddTimes(other, factor(rng)),
        7 => Update::AddOfDevices(other),
        8 => Update::Take(other),
        9 | 10 => Update::TakeUnlessZero(other),
        _ => Update::TakeAt(rng.below(4) as i64, other),
    }
}

/// Another detail.
fn change(description: &mut Loop, rng: &mut Rng) {
    let n = description.leaves.len();
    let k = rng.below(n);
    match rng.below(10) {
        0 => description.start += 1,
        1 => description.limit += *rng.pick(&[-1, 1]),
        2 => description.leaves[k].0 = init(rng),
        3 => description.leaves[k].1 = update(n, rng),
        4 => description.leaves.swap(0, k),
        5 => description.flag.0 = 1 - description.flag.0,
        6 => description.flag.1 = 1 - description.flag.1,
        7 => description.stack.1 += *rng.pick(&[-1, 1]),
        8 => description.is_flag_counted = !description.is_flag_counted,
        _ => description.empty = if description.empty == "0" { "1" } else { "0" },
    }
}

impl Loop {
    /// The program, with the counter before the flag or behind it.
    fn write(&self, counter: usize, rng: &mut Rng) -> Program {
        let mut p = Program::new(1, 2);
        let inputs: Vec<String> = (0..3).map(|_| p.param("f32[2]")).collect();
        let places = rng.shuffled(self.leaves.len());
        let rows = self.stack.0;
        let mut shapes = vec!["s32[]".to_string(), "s32[]".into()];
        shapes.extend(self.leaves.iter().map(|_| "f32[2]".to_string()));
        shapes.push(format!("f32[{rows},2]"));
        let tuple = format!("({})", shapes.join(", "));
        self.write_body(&mut p, &tuple, counter, &places);
        let start = p.constant("s32[]", &self.start.to_string());
        let flag = p.constant("s32[]", &self.flag.0.to_string());
        let mut elements = vec![String::new(); shapes.len()];
        (elements[counter], elements[1 - counter]) = (start, flag);
        for (k, (init, _)) in self.leaves.iter().enumerate() {
            elements[2 + places[k]] = match init {
                Init::Input(input) => inputs[*input].clone(),
                Init::Number(value) => p.splat("f32[2]", value),
            };
        }
        let empty = p.splat(&format!("f32[{rows},2]"), self.empty);
        *elements.last_mut().expect("the stack") = empty;
        let first = p.add(&tuple, &format!("tuple({})", elements.join(", ")));
        let result = p.add(&tuple, &format!("while({first}), condition=%condition, body=%body"));
        for place in &places {
            let leaf = p.add("f32[2]", &format!("get-tuple-element({result}), index={}", 2 + place));
            p.give("f32[2]", &leaf);
        }
        let stack =
            p.add(&format!("f32[{rows},2]"), &format!("get-tuple-element({result}), index={}", shapes.len() - 1));
        let shape = format!("f32[{ROWS_GIVEN},2]");
        let given = p.add(&shape, &format!("slice({stack}), slice={{[0:{ROWS_GIVEN}],[0:2]}}"));
        p.give(&shape, &given);
        let flag = p.add("s32[]", &format!("get-tuple-element({result}), index={}", 1 - counter));
        p.give("s32[]", &flag);
        p
    }

    fn write_body(&self, p: &mut Program, tuple: &str, counter: usize, places: &[usize]) {
        let counted = if self.is_flag_counted { 1 - counter } else { counter };
        p.computations.push_str(&format!(
            "%condition {{\n  %c.t = {tuple} parameter(0)\n  %c.i = s32[] get-tuple-element(%c.t), index={counted}\n  %c.k = \
             s32[] constant({})\n  ROOT %c.r = pred[] compare(%c.i, %c.k), direction={}\n}}\n\n",
            self.limit, self.direction
        ));
        let mut body = Program::single();
        let t = body.add(tuple, "parameter(0)");
        let element =
            |p: &mut Program, shape: &str, k: usize| p.add(shape, &format!("get-tuple-element({t}), index={k}"));
        let i = element(&mut body, "s32[]", counter);
        let flag = element(&mut body, "s32[]", 1 - counter);
        let leaves: Vec<String> = places.iter().map(|&place| element(&mut body, "f32[2]", 2 + place)).collect();
        let (rows, offset, is_twice) = self.stack;
        let shape = format!("f32[{rows},2]");
        let mut stack = element(&mut body, &shape, 2 + leaves.len());
        let step = body.constant("s32[]", &self.step.to_string());
        let more = body.constant("s32[]", &self.flag.1.to_string());
        let mut out = vec![String::new(); 3 + leaves.len()];
        out[counter] = body.add("s32[]", &format!("add({i}, {step})"));
        out[1 - counter] = body.add("s32[]", &format!("add({flag}, {more})"));
        for (k, (_, update)) in self.leaves.iter().enumerate() {
            out[2 + places[k]] = self.updated(&mut body, *update, k, &leaves, (&i, &flag));
        }
        let row = body.add("f32[1,2]", &format!("reshape({})", out[2 + places[0]]));
        let zero = body.constant("s32[]", "0");
        let by = body.constant("s32[]", &offset.to_string());
        let mut at = body.add("s32[]", &format!("add({i}, {by})"));
        for _ in 0..1 + usize::from(is_twice) {
            stack = body.add(&shape, &format!("dynamic-update-slice({stack}, {row}, {at}, {zero})"));
            at = body.add("s32[]", &format!("add({at}, {at})"));
        }
        *out.last_mut().expect("the stack") = stack;
        let lines = body.lines.join("\n  ").replace("%v", "%b");
        let names = out.join(", ").replace("%v", "%b");
        p.computations.push_str(&format!("%body {{\n  {lines}\n  ROOT %b.r = {tuple} tuple({names})\n}}\n\n"));
    }

    fn updated(&self, p: &mut Program, update: Update, k: usize, leaves: &[String], (i, flag): (&str, &str)) -> String {
        let (own, shape) = (leaves[k].clone(), "f32[2]");
        let where_equal = |p: &mut Program, number: &str, to: i64, yes: &str, no: &str| {
            let to = p.constant("s32[]", &to.to_string());
            let is_equal = p.add("pred[]", &format!("compare({number}, {to}), direction=EQ"));
            let everywhere = p.add("pred[2]", &format!("broadcast({is_equal}), dimensions={{}}"));
            p.add(shape, &format!("select({everywhere}, {yes}, {no})"))
        };
        match update {
            Update::Keep => own,
            Update::Sine => p.add(shape, &format!("sine({own})")),
            Update::Add(other) => p.add(shape, &format!("add({own}, {})", leaves[other])),
            Update::AddTimesCounter(other) => {
                let number = p.add("f32[]", &format!("convert({i})"));
                let number = p.add(shape, &format!("broadcast({number}), dimensions={{}}"));
                let product = p.add(shape, &format!("multiply({}, {number})", leaves[other]));
                p.add(shape, &format!("add({own}, {product})"))
            }
            Update::AddTimes(other, factor) => {
                let number = p.splat(shape, factor);
                let product = p.add(shape, &format!("multiply({}, {number})", leaves[other]));
                p.add(shape, &format!("add({own}, {product})"))
            }
            Update::AddOfDevices(other) => {
                let sum = p.add(shape, &format!("all-reduce({}), replica_groups={{}}, to_apply=%add", leaves[other]));
                p.add(shape, &format!("add({own}, {sum})"))
            }
            Update::Take(other) => leaves[other].clone(),
            Update::TakeUnlessZero(other) => where_equal(p, flag, 0, &own, &leaves[other]),
            Update::TakeAt(number, other) => where_equal(p, i, number, &leaves[other], &own),
        }
    }
}
