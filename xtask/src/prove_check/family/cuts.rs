//! Loops whose iterations are cut at other places: a value made one iteration ahead, the first iteration before the loop, two
//! iterations in one.

use hlo_tests::random_module::Rng;

use super::Program;

/// Where iterations begin and end.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Plain,
    /// The weight is made before the loop, and in each iteration for the next one.
    Ahead,
    /// The first iteration stands before the loop.
    Peeled,
    /// Two iterations are one.
    Twice,
}

/// What the weight of an iteration is made of.
#[derive(Clone, Copy, PartialEq)]
enum Weight {
    /// A row of a table, summed over devices.
    Row,
    /// The state.
    State,
    /// Both.
    Product,
}

#[derive(Clone)]
struct Loop {
    form: Form,
    weight: Weight,
    start: i64,
    /// A number, or an input.
    limit: Option<i64>,
    direction: &'static str,
    /// What is added to the row that is read ahead, before the loop and in it.
    off: (i64, i64),
    /// Whether what is made ahead is made of the state before the iteration.
    is_of_old_state: bool,
    /// What is added to the counter and the limit of a loop that is cut otherwise.
    shift: (i64, i64),
    /// Whether the sum takes the weight, or the state.
    adds_weight: bool,
    /// Whether the weight that is left over is given too.
    gives_weight: bool,
}

const STATE: &str = "f32[2]";
const TABLE: &str = "f32[6,2]";

pub(super) fn pair(rng: &mut Rng) -> (Program, Program) {
    let before = Loop {
        form: *rng.pick(&[Form::Plain, Form::Plain, Form::Plain, Form::Peeled, Form::Ahead]),
        weight: *rng.pick(&[Weight::Row, Weight::State, Weight::Product]),
        start: *rng.pick(&[0, 0, 0, 1, 2]),
        limit: *rng.pick(&[Some(4), Some(5), Some(6), Some(6), Some(1), Some(0), None]),
        direction: rng.pick::<&'static str>(&["LT", "LT", "LT", "LE", "NE"]),
        off: (0, 0),
        is_of_old_state: false,
        shift: (0, 0),
        adds_weight: rng.one_in(2),
        gives_weight: false,
    };
    let mut after = before.clone();
    after.form = *rng.pick(&[Form::Ahead, Form::Ahead, Form::Peeled, Form::Twice, Form::Plain]);
    if rng.one_in(2) {
        change(&mut after, rng);
    }
    (before.write(), after.write())
}

/// Another detail.
fn change(description: &mut Loop, rng: &mut Rng) {
    match rng.below(8) {
        0 => description.off.0 += *rng.pick(&[-1, 1]),
        1 => description.off.1 += *rng.pick(&[-1, 1]),
        2 => description.is_of_old_state = true,
        3 => description.shift.0 += *rng.pick(&[-1, 1]),
        4 => description.shift.1 += *rng.pick(&[-1, 1, 2]),
        5 => description.adds_weight = !description.adds_weight,
        6 => description.gives_weight = true,
        _ => description.weight = *rng.pick(&[Weight::Row, Weight::State, Weight::Product]),
    }
}

/// The carried values: counter, state, sum, table.
#[derive(Clone)]
struct State([String; 4]);

impl Loop {
    fn write(&self) -> Program {
        let mut p = Program::new(1, 2);
        let (x, a, t) = (p.param(STATE), p.param(STATE), p.param(TABLE));
        let steps = p.param("s32[]");
        let mut shapes = vec!["s32[]", STATE, STATE, TABLE, "s32[]"];
        if self.form == Form::Ahead {
            shapes.push(STATE);
        }
        let tuple = format!("({})", shapes.join(", "));
        self.write_computations(&mut p, &tuple);
        let start = self.start + if self.form == Form::Plain { 0 } else { self.shift.0 };
        let i = p.constant("s32[]", &start.to_string());
        let mut state = State([i, x, a, t]);
        let mut ahead = None;
        match self.form {
            Form::Plain | Form::Twice => {}
            Form::Ahead => ahead = Some(self.weight(&mut p, &state, self.off.0)),
            Form::Peeled => {
                let weight = self.weight(&mut p, &state, self.off.0);
                state = self.step(&mut p, &state, &weight);
            }
        }
        let limit = match self.limit {
            Some(limit) => p.constant("s32[]", &limit.to_string()),
            None => steps,
        };
        let mut elements = state.0.to_vec();
        elements.push(limit);
        elements.extend(ahead);
        let first = p.add(&tuple, &format!("tuple({})", elements.join(", ")));
        let result = p.add(&tuple, &format!("while({first}), condition=%condition, body=%body"));
        let last = if self.gives_weight { shapes.len() - 1 } else { 1 };
        for leaf in [1, 2, if shapes[last] == STATE { last } else { 1 }] {
            let leaf = p.add(STATE, &format!("get-tuple-element({result}), index={leaf}"));
            p.give(STATE, &leaf);
        }
        p
    }

    fn write_computations(&self, p: &mut Program, tuple: &str) {
        // The limit is carried, so that it is a number or an input alike; numbers stand in the condition.
        let limit = match self.limit {
            Some(limit) => {
                let shift = if self.form == Form::Plain { 0 } else { self.shift.1 };
                format!("constant({})", limit + shift)
            }
            None => "get-tuple-element(%c.t), index=4".into(),
        };
        p.computations.push_str(&format!(
            "%condition {{\n  %c.t = {tuple} parameter(0)\n  %c.i = s32[] get-tuple-element(%c.t), index=0\n  %c.k = \
             s32[] {limit}\n  ROOT %c.r = pred[] compare(%c.i, %c.k), direction={}\n}}\n\n",
            self.direction
        ));
        let mut body = Program::single();
        let t = body.add(tuple, "parameter(0)");
        let shapes = ["s32[]", STATE, STATE, TABLE, "s32[]", STATE];
        let n_leaves = if self.form == Form::Ahead { 6 } else { 5 };
        let leaves: Vec<String> =
            (0..n_leaves).map(|k| body.add(shapes[k], &format!("get-tuple-element({t}), index={k}"))).collect();
        let state = State([0, 1, 2, 3].map(|k: usize| leaves[k].clone()));
        let weight = match leaves.get(5) {
            Some(ahead) => ahead.clone(),
            None => self.weight(&mut body, &state, 0),
        };
        let mut next = self.step(&mut body, &state, &weight);
        let mut out = Vec::new();
        if self.form == Form::Twice {
            let weight = self.weight(&mut body, &next, self.off.1);
            next = self.step(&mut body, &next, &weight);
        }
        if self.form == Form::Ahead {
            let mut made_of = next.clone();
            if self.is_of_old_state {
                made_of.0[1].clone_from(&state.0[1]);
            }
            out.push(self.weight(&mut body, &made_of, self.off.1));
        }
        let names = next.0.iter().chain([&leaves[4]]).chain(&out).cloned().collect::<Vec<_>>().join(", ");
        let (lines, names) = (body.lines.join("\n  ").replace("%v", "%b"), names.replace("%v", "%b"));
        p.computations.push_str(&format!("%body {{\n  {lines}\n  ROOT %b.r = {tuple} tuple({names})\n}}\n\n"));
    }

    /// What an iteration multiplies by.
    fn weight(&self, p: &mut Program, State([i, x, _, t]): &State, off: i64) -> String {
        if self.weight == Weight::State {
            return p.add(STATE, &format!("sine({x})"));
        }
        let by = p.constant("s32[]", &off.to_string());
        let at = p.add("s32[]", &format!("add({i}, {by})"));
        let zero = p.constant("s32[]", "0");
        let row = p.add("f32[1,2]", &format!("dynamic-slice({t}, {at}, {zero}), dynamic_slice_sizes={{1,2}}"));
        let row = p.add(STATE, &format!("reshape({row})"));
        let sum = p.add(STATE, &format!("all-reduce({row}), replica_groups={{}}, to_apply=%add"));
        match self.weight {
            Weight::Row | Weight::State => sum,
            Weight::Product => p.add(STATE, &format!("multiply({sum}, {x})")),
        }
    }

    fn step(&self, p: &mut Program, State([i, x, a, t]): &State, weight: &str) -> State {
        let product = p.add(STATE, &format!("multiply({x}, {weight})"));
        let next = p.add(STATE, &format!("sine({product})"));
        let added = if self.adds_weight { weight } else { &next };
        let sum = p.add(STATE, &format!("add({a}, {added})"));
        let one = p.constant("s32[]", "1");
        let count = p.add("s32[]", &format!("add({i}, {one})"));
        State([count, next, sum, t.clone()])
    }
}
