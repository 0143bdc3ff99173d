//! Files of strategies, in TOML.
//!
//! ```toml
//! devices = 8
//! depth = 0                        # operators are single instructions; 3: those that share three parts of op_name
//!
//! [[operator]]
//! name = "%dot.1"                  # or a prefix of op_name, which is for all operators below it
//! strategy = [[2, 1], [1, 4]]      # cuts of each input's dims
//!
//! [[operator]]
//! name = "%add.2"
//! device-matrix = [2, 4]           # in the place of a strategy: any layout
//! tensor-map = [[0, 1], [0, 1]]    # entries from the right, -1 or a list for none or several
//!
//! [[value]]                        # a parameter
//! name = "%w"
//! device-matrix = [2, 4]
//! tensor-map = [-1, 0]
//! ```

use serde::{Deserialize, Serialize};

/// A file of strategies.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StrategyFile {
    /// Number of devices; 0: the option of the pass says it.
    #[serde(default)]
    pub devices: i64,
    /// How many parts of `op_name` the instructions of an operator share; 0: every instruction is an operator.
    #[serde(default)]
    pub depth: usize,
    /// One entry for each operator.
    #[serde(default)]
    pub operator: Vec<OperatorEntry>,
    /// Layouts of parameters; of those without an entry the first operator that takes them decides.
    #[serde(default)]
    pub value: Vec<ValueEntry>,
}

/// The layout of a value that no operator computes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ValueEntry {
    pub name: String,
    /// Which array of a tuple.
    #[serde(default)]
    pub leaf: u32,
    #[serde(rename = "device-matrix")]
    pub device_matrix: Vec<i64>,
    #[serde(rename = "tensor-map")]
    pub tensor_map: Vec<MapEntry>,
}

/// The strategy of one operator, or of all below a name.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OperatorEntry {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Vec<Vec<i64>>>,
    /// Whether devices left over are the last or the first entry of the device matrix.
    #[serde(rename = "left-over", default, skip_serializing_if = "Option::is_none")]
    pub left_over: Option<LeftOver>,
    #[serde(rename = "device-matrix", default, skip_serializing_if = "Option::is_none")]
    pub device_matrix: Option<Vec<i64>>,
    #[serde(rename = "tensor-map", default, skip_serializing_if = "Option::is_none")]
    pub tensor_map: Option<Vec<Vec<MapEntry>>>,
}

/// Where devices left over stand in the device matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LeftOver {
    Last,
    First,
}

/// What cuts a dim: an entry of the device matrix from the right, -1 for none; or several, major to minor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum MapEntry {
    One(i64),
    Several(Vec<i64>),
}

impl MapEntry {
    /// The entries, from the right.
    pub(super) fn entries(&self) -> Vec<i64> {
        match self {
            MapEntry::One(-1) => Vec::new(),
            MapEntry::One(one) => vec![*one],
            MapEntry::Several(all) => all.clone(),
        }
    }

    /// The shortest way to say these.
    pub(super) fn of(entries: Vec<i64>) -> MapEntry {
        match entries.as_slice() {
            [] => MapEntry::One(-1),
            [one] => MapEntry::One(*one),
            _ => MapEntry::Several(entries),
        }
    }
}

/// The most devices that a file may ask for.
const MOST_DEVICES: i64 = 1 << 16;

impl StrategyFile {
    /// Reads the text of a file. `devices`: the number of devices if the file has none; 0: it has to have one.
    ///
    /// # Errors
    /// What is wrong, with the line.
    pub(super) fn parse(text: &str, devices: i64) -> Result<StrategyFile, String> {
        let mut file: StrategyFile = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            format!("strategies, line {line}: {}", error.message())
        })?;
        if devices > 0 && file.devices > 0 && devices != file.devices {
            let found = file.devices;
            return Err(format!("strategies: expected {devices} devices, as the option says, found {found}"));
        }
        file.devices = file.devices.max(devices);
        if !(1..=MOST_DEVICES).contains(&file.devices) {
            let found = file.devices;
            let where_said = "`devices = N` in the file or the option devices=N";
            return Err(format!("strategies: expected 1 to {MOST_DEVICES} devices ({where_said}), found {found}"));
        }
        for (k, entry) in file.operator.iter().enumerate() {
            entry.check()?;
            if file.operator[..k].iter().any(|before| before.name == entry.name) {
                return Err(format!("strategies: expected each operator once, found `{}` twice", entry.name));
            }
        }
        Ok(file)
    }

    /// The text of a file; lists of an entry stand on one line each.
    pub(super) fn print(&self) -> String {
        use std::fmt::Write;
        let mut out = format!("devices = {}\ndepth = {}\n", self.devices, self.depth);
        for entry in &self.operator {
            let _ = write!(out, "\n[[operator]]\nname = {}\n", quoted(&entry.name));
            if let Some(strategy) = &entry.strategy {
                let _ = writeln!(out, "strategy = {strategy:?}");
            }
            match entry.left_over {
                Some(LeftOver::First) => out.push_str("left-over = \"first\"\n"),
                Some(LeftOver::Last) => out.push_str("left-over = \"last\"\n"),
                None => {}
            }
            if let (Some(matrix), Some(maps)) = (&entry.device_matrix, &entry.tensor_map) {
                let _ = writeln!(out, "device-matrix = {matrix:?}");
                let all: Vec<String> = maps.iter().map(|map| map_text(map)).collect();
                let _ = writeln!(out, "tensor-map = [{}]", all.join(", "));
            }
        }
        for entry in &self.value {
            let _ = write!(out, "\n[[value]]\nname = {}\nleaf = {}\n", quoted(&entry.name), entry.leaf);
            let map = map_text(&entry.tensor_map);
            let _ = write!(out, "device-matrix = {:?}\ntensor-map = {map}\n", entry.device_matrix);
        }
        out
    }

    /// The entry for an operator: by its name; else the longest prefix of its name that ends at a `/`.
    pub(super) fn find(&self, name: &str) -> Option<(usize, &OperatorEntry)> {
        let is_prefix =
            |entry: &str| name.strip_prefix(entry).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let known = self.operator.iter().enumerate().filter(|(_, entry)| is_prefix(&entry.name));
        known.max_by_key(|(at, entry)| (entry.name.len(), std::cmp::Reverse(*at)))
    }
}

fn map_text(map: &[MapEntry]) -> String {
    let dims: Vec<String> = map.iter().map(MapEntry::text).collect();
    format!("[{}]", dims.join(", "))
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let escaped = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escaped).collect::<String>())
}

impl MapEntry {
    fn text(&self) -> String {
        match self {
            MapEntry::One(one) => one.to_string(),
            MapEntry::Several(all) => format!("{all:?}"),
        }
    }
}

impl OperatorEntry {
    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if name.is_empty() {
            return Err("strategies: expected the name of an operator, found \"\"".into());
        }
        match (&self.strategy, &self.device_matrix, &self.tensor_map) {
            (Some(_), None, None) => Ok(()),
            (None, Some(_), Some(_)) if self.left_over.is_none() => Ok(()),
            (None, Some(_), Some(_)) => {
                Err(format!("strategies: operator `{name}`: expected `left-over` beside a strategy only"))
            }
            _ => Err(format!(
                "strategies: operator `{name}`: expected `strategy`, or `device-matrix` with `tensor-map`, found neither or both"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        let text = "devices = 8\n\n[[operator]]\nname = \"%dot\"\nstrategy = [[2, 1], [1, 4]]\nleft-over = \"first\"\n\n\
                    [[operator]]\nname = \"jit(f)/a\"\ndevice-matrix = [2, 4]\ntensor-map = [[0, -1], [[1, 0]]]\n\n\
                    [[value]]\nname = \"%w\"\ndevice-matrix = [8]\ntensor-map = [-1, 0]\n";
        let file = StrategyFile::parse(text, 0).expect("a file");
        assert_eq!(StrategyFile::parse(&file.print(), 8).expect("its text"), file);
        assert_eq!(file.find("jit(f)/a/b").map(|(at, _)| at), Some(1));
        assert_eq!(file.find("jit(f)/ab").map(|(at, _)| at), None);
        assert_eq!(MapEntry::of(vec![1, 0]).entries(), [1, 0]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let wrong = |text: &str| StrategyFile::parse(text, 0).expect_err("an error");
        assert!(wrong("devices = 8\ncolour = 1").starts_with("strategies, line 2: unknown field `colour`"));
        assert_eq!(
            wrong("devices = 0"),
            "strategies: expected 1 to 65536 devices (`devices = N` in the file or the option devices=N), found 0"
        );
        assert!(wrong("devices = 2\n[[operator]]\nname = \"a\"").contains("operator `a`: expected `strategy`"));
        assert!(wrong("devices = 2\n[[operator]]\nname = \"a\"\nstrategy = [[\"x\"]]").contains("line 4"));
    }
}
