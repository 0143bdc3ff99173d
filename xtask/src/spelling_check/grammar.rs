//! From `spellings.txt` to modules: every combination of the alternatives of a family, each in some form of the text around it.

use std::collections::HashSet;

/// A text that somebody may write.
pub(super) struct Spelling {
    /// The family's name and a number.
    pub(super) name: String,
    /// The text of a module, or of something that is none.
    pub(super) text: String,
}

/// Most combinations of one family; of families with more, these are drawn.
const MOST: usize = 60;

/// Computations that families name with `&`.
const COMPUTATIONS: [(&str, &str); 13] = [
    ("add", "{ x = f32[] parameter(0) y = f32[] parameter(1) ROOT s = f32[] add(x, y) }"),
    ("below", "{ x = s32[] parameter(0) n = s32[] constant(5) ROOT c = pred[] compare(x, n), direction=LT }"),
    (
        "both",
        "{ x = f32[] parameter(0) i = s32[] parameter(1) y = f32[] parameter(2) j = s32[] parameter(3) \
         s = f32[] add(x, y) k = s32[] add(i, j) ROOT t = (f32[], s32[]) tuple(s, k) }",
    ),
    ("deep", "{ x = f32[4] parameter(0) y = f32[4] abs(x) ROOT z = f32[4] negate(y) }"),
    (
        "deep-thread",
        "{ x = f32[4] parameter(0) y = f32[4] abs(x) ROOT z = f32[4] negate(y) }, execution_thread=\"side\"",
    ),
    ("ge", "{ x = f32[] parameter(0) y = f32[] parameter(1) ROOT c = pred[] compare(x, y), direction=GE }"),
    ("halve", "{ x = f32[] parameter(0) h = f32[] constant(0.5) ROOT y = f32[] multiply(x, h) }"),
    ("less", "{ x = f32[] parameter(0) y = f32[] parameter(1) ROOT c = pred[] compare(x, y), direction=LT }"),
    ("one", "{ x = f32[4] parameter(0) ROOT z = f32[4] negate(x) }"),
    ("scale", "{ x = f32[4] parameter(0) ROOT y = f32[4] add(x, x) }"),
    ("scale1", "{ x = f32[] parameter(0) ROOT y = f32[] add(x, x) }"),
    ("step", "{ x = s32[] parameter(0) o = s32[] constant(1) ROOT y = s32[] add(x, o) }"),
    ("zero", "{ x = f32[] parameter(0) ROOT y = f32[] subtract(x, x) }"),
];

/// All spellings of the families of `source`.
pub(super) fn spellings(source: &str) -> Result<Vec<Spelling>, String> {
    let mut found = Vec::new();
    let mut texts = HashSet::new();
    for section in source.split("\n== ").skip(1) {
        let (family, body) = section.split_once('\n').ok_or("a family without lines")?;
        let mut seed = family.bytes().fold(1u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let expanded = combinations(body.trim_end(), &mut seed);
        for (i, body) in expanded.iter().enumerate() {
            // Each in the plain form, and in one other.
            for form in [Form::Plain, Form::ALL[draw(&mut seed, Form::ALL.len())]] {
                let text = write(body, form)?;
                if texts.insert(text.clone()) {
                    found.push(Spelling { name: format!("{family}/{i}{}", form.mark()), text });
                }
            }
        }
    }
    Ok(found)
}

/// A number below `n`.
fn draw(seed: &mut u64, n: usize) -> usize {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) as usize % n.max(1)
}

/// The texts that a text with alternatives stands for.
fn combinations(text: &str, seed: &mut u64) -> Vec<String> {
    let mut pieces: Vec<Vec<&str>> = Vec::new();
    for part in text.split('«') {
        match part.split_once('»') {
            Some((choices, rest)) => pieces.extend([choices.split('|').collect(), vec![rest]]),
            None => pieces.push(vec![part]),
        }
    }
    let n_all: usize = pieces.iter().map(Vec::len).product();
    let choose = |mut number: usize| {
        let mut out = String::new();
        for choices in &pieces {
            out.push_str(choices.get(number % choices.len()).copied().unwrap_or_default());
            number /= choices.len();
        }
        out
    };
    if n_all <= MOST {
        return (0..n_all).map(choose).collect();
    }
    // Each alternative once at least, with the first of all others, and then any.
    let mut numbers: Vec<usize> = Vec::new();
    let mut place = 1;
    for choices in &pieces {
        numbers.extend((0..choices.len()).map(|choice| choice * place));
        place *= choices.len();
    }
    numbers.extend(std::iter::repeat_with(|| draw(seed, n_all)).take(MOST));
    let mut known = HashSet::new();
    numbers.retain(|&number| known.insert(number));
    numbers.into_iter().take(MOST).map(choose).collect()
}

/// What is around the instructions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    /// Names with `%`.
    Percent,
    /// No HloModule line.
    NoHeader,
    /// No ENTRY.
    NoEntry,
    /// No ROOT.
    NoRoot,
    /// A comment at the end of each line.
    Comments,
    /// Lines that end in CR LF.
    CarriageReturns,
    /// All in one line.
    OneLine,
    /// Blanks where they may be.
    Blanks,
    /// Names with points and dashes.
    LongNames,
}

impl Form {
    const ALL: [Form; 10] = [
        Form::Plain,
        Form::Percent,
        Form::NoHeader,
        Form::NoEntry,
        Form::NoRoot,
        Form::Comments,
        Form::CarriageReturns,
        Form::OneLine,
        Form::Blanks,
        Form::LongNames,
    ];

    fn mark(self) -> &'static str {
        match self {
            Form::Plain => "",
            Form::Percent => "-percent",
            Form::NoHeader => "-no-header",
            Form::NoEntry => "-no-entry",
            Form::NoRoot => "-no-root",
            Form::Comments => "-comments",
            Form::CarriageReturns => "-cr",
            Form::OneLine => "-one-line",
            Form::Blanks => "-blanks",
            Form::LongNames => "-long-names",
        }
    }
}

/// The text of a family's lines in a form.
fn write(body: &str, form: Form) -> Result<String, String> {
    if let Some(text) = body.strip_prefix("raw\n") {
        return Ok(match form {
            Form::CarriageReturns => text.replace('\n', "\r\n"),
            Form::Blanks => format!("\n \t{}\n\n", text.replace('\n', "\n\t ")),
            _ => text.to_string(),
        });
    }
    let (mut header, mut computations, mut lines) = (String::new(), String::new(), String::new());
    for line in body.lines() {
        if let Some(end) = line.strip_prefix('!') {
            header = end.trim().to_string();
        } else if let Some(names) = line.strip_prefix("& ") {
            for name in names.split(' ') {
                let known = COMPUTATIONS.iter().find(|(known, _)| *known == name);
                let (_, text) = known.ok_or_else(|| format!("expected the name of a computation, found '{name}'"))?;
                let name = name.trim_end_matches("-thread");
                computations.push_str(&format!("~{name} {text}\n"));
            }
        } else if !line.is_empty() {
            let line = if form == Form::NoRoot { line.replace("ROOT ~", "~") } else { line.to_string() };
            lines.push_str(&format!("  {line}{}\n", if form == Form::Comments { " // note" } else { "" }));
        }
    }
    let comma = if header.is_empty() { "" } else { ", " };
    let header = match form {
        Form::NoHeader if header.is_empty() => String::new(),
        _ => format!("HloModule m{comma}{header}\n\n"),
    };
    let entry = if form == Form::NoEntry { "" } else { "ENTRY " };
    let text = format!("{header}{computations}{entry}~main {{\n{lines}}}\n");
    let text = match form {
        Form::Percent => text.replace('~', "%"),
        Form::LongNames => text.replace('~', "a.b-c_1."),
        Form::Blanks => text.replace('~', "").replace('\n', "\n\n\t ").replace("ENTRY ", "ENTRY\t\t"),
        _ => text.replace('~', ""),
    };
    Ok(match form {
        Form::CarriageReturns => text.replace('\n', "\r\n"),
        Form::OneLine => text.replacen('\n', "\u{1}", 1).replace('\n', " ").replacen('\u{1}', "\n", 1),
        _ => text,
    })
}
