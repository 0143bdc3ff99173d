//! Shardings as Shardy writes them in `frontend_attributes`: `#sdy.sharding<@mesh, [{"a", ?}p1, {}]>`.
//!
//! Where an instruction has such an attribute, it says what the user wrote; the `sharding=` beside it may be a stand-in
//! (`{replicated}` where the dims are open).

use crate::groups::{AxisRef, Mesh, MeshDevices};
use crate::header::Header;
use crate::sharding::{LeafSharding, NamedDim, NamedSharding, ShardingKind};
use std::fmt;

/// The header's attribute with the meshes.
pub const MESHES: &str = "xla.sdy.meshes";
/// The attribute with an instruction's sharding.
pub const SHARDING: &str = "xla.sdy.sharding";
/// How the operands of a [`GLOBAL_TO_LOCAL`] are cut.
pub const IN_SHARDINGS: &str = "xla.sdy.in_shardings";
/// How the results of a [`LOCAL_TO_GLOBAL`] are cut.
pub const OUT_SHARDINGS: &str = "xla.sdy.out_shardings";
/// Along which axes a region is manual.
pub const MANUAL_AXES: &str = "xla.sdy.manual_axes";
/// The custom call that begins a manual region: whole values to what each device holds.
pub const GLOBAL_TO_LOCAL: &str = "xla.sdy.GlobalToLocalShape";
/// The custom call that ends a manual region.
pub const LOCAL_TO_GLOBAL: &str = "xla.sdy.LocalToGlobalShape";
/// The custom call that says how a result is cut; it gives its operand.
pub const FUNC_RESULT_SHARDING: &str = "xla.sdy.FuncResultSharding";

/// A sharding with the priorities of its dims.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardySharding {
    /// Mesh, axes of each dim, open dims, replicated and unreduced axes.
    pub named: NamedSharding,
    /// The user priority of each dim; 0, the most urgent, if none is written.
    pub priorities: Vec<u32>,
}

impl ShardySharding {
    /// Whether propagation may cut the value further.
    pub fn is_open(&self) -> bool {
        self.named.dims.iter().any(|dim| dim.is_open)
    }

    /// The same as HLO's `sharding=` says it, over the axes that `is_counted` takes.
    pub fn along(&self, is_counted: impl Fn(&str) -> bool) -> LeafSharding {
        let mut named = self.named.clone();
        for dim in &mut named.dims {
            dim.axes.retain(|axis| is_counted(&axis.name));
        }
        LeafSharding::new(ShardingKind::Named(Box::new(named)))
    }

    /// The same as HLO's `sharding=` says it.
    pub fn as_leaf(&self) -> LeafSharding {
        self.along(|_| true)
    }
}

/// What could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// Byte within the attribute's value.
    pub at: usize,
    /// What was expected there.
    pub expected: String,
    /// The text there.
    pub found: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {} of the Shardy attribute: expected {}, found `{}`", self.at, self.expected, self.found)
    }
}

impl std::error::Error for Error {}

/// The meshes of a module, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Meshes(Vec<(String, Mesh)>);

impl Meshes {
    /// The meshes that the header lists: `{mesh = #sdy.mesh<["data"=2, "model"=4]>}`; none if it lists none.
    ///
    /// # Errors
    /// The attribute is malformed.
    pub fn of(header: &Header) -> Result<Meshes, Error> {
        match header.frontend_attributes.iter().find(|(key, _)| key == MESHES) {
            Some((_, text)) => Meshes::parse(text),
            None => Ok(Meshes::default()),
        }
    }

    /// The meshes of an attribute's value.
    ///
    /// # Errors
    /// It is malformed.
    pub fn parse(text: &str) -> Result<Meshes, Error> {
        let mut cx = Cursor { text, at: 0 };
        let mut meshes = Vec::new();
        cx.expect("{")?;
        cx.list("}", |cx| {
            let name = cx.name()?.to_string();
            cx.expect("=")?;
            cx.expect("#sdy.mesh<")?;
            meshes.push((name, cx.mesh()?));
            cx.expect(">")
        })?;
        cx.end()?;
        Ok(Meshes(meshes))
    }

    /// The mesh of a name.
    pub fn get(&self, name: &str) -> Option<&Mesh> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, mesh)| mesh)
    }

    /// The meshes in the order of the text.
    pub fn iter(&self) -> impl Iterator<Item = &Mesh> {
        self.0.iter().map(|(_, mesh)| mesh)
    }

    /// The sharding of `#sdy.sharding<…>`.
    ///
    /// # Errors
    /// It is malformed, or names a mesh that is not there.
    pub fn sharding(&self, text: &str) -> Result<ShardySharding, Error> {
        let mut cx = Cursor { text, at: 0 };
        cx.expect("#sdy.sharding<")?;
        let sharding = cx.sharding(self)?;
        cx.end()?;
        Ok(sharding)
    }

    /// The shardings of `#sdy.sharding_per_value<[<…>, <…>]>`, or the one of `#sdy.sharding<…>`.
    ///
    /// # Errors
    /// They are malformed, or name a mesh that is not there.
    pub fn shardings(&self, text: &str) -> Result<Vec<ShardySharding>, Error> {
        if text.trim_start().starts_with("#sdy.sharding<") {
            return Ok(vec![self.sharding(text)?]);
        }
        let mut cx = Cursor { text, at: 0 };
        let mut out = Vec::new();
        cx.expect("#sdy.sharding_per_value<")?;
        cx.expect("[")?;
        cx.list("]", |cx| {
            cx.expect("<")?;
            out.push(cx.sharding(self)?);
            Ok(())
        })?;
        cx.expect(">")?;
        cx.end()?;
        Ok(out)
    }
}

/// The names of `#sdy<manual_axes{"x", "y"}>`.
///
/// # Errors
/// It is malformed.
pub fn manual_axes(text: &str) -> Result<Vec<String>, Error> {
    let mut cx = Cursor { text, at: 0 };
    let mut names = Vec::new();
    cx.expect("#sdy<manual_axes{")?;
    cx.list("}", |cx| {
        names.push(cx.quoted()?.to_string());
        Ok(())
    })?;
    cx.expect(">")?;
    cx.end()?;
    Ok(names)
}

/// The value of an attribute of an instruction.
pub fn attribute<'a>(attributes: &'a [(String, String)], key: &str) -> Option<&'a str> {
    attributes.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
}

/// A place in the text.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&mut self) -> &'a str {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest
    }

    fn error(&mut self, expected: &str) -> Error {
        let rest = self.rest();
        let found = rest.chars().take(12).collect();
        Error { at: self.at, expected: expected.to_string(), found }
    }

    fn take(&mut self, token: &str) -> bool {
        let is_there = self.rest().starts_with(token);
        if is_there {
            self.at += token.len();
        }
        is_there
    }

    fn expect(&mut self, token: &str) -> Result<(), Error> {
        if self.take(token) { Ok(()) } else { Err(self.error(&format!("`{token}`"))) }
    }

    fn end(&mut self) -> Result<(), Error> {
        if self.rest().is_empty() { Ok(()) } else { Err(self.error("the end")) }
    }

    /// Entries with commas between them, up to `close`.
    fn list(&mut self, close: &str, mut entry: impl FnMut(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        if self.take(close) {
            return Ok(());
        }
        loop {
            entry(self)?;
            if self.take(close) {
                return Ok(());
            }
            self.expect(",")?;
        }
    }

    fn name(&mut self) -> Result<&'a str, Error> {
        let rest = self.rest();
        let n = rest.find(|c: char| !(c.is_alphanumeric() || "_.-$".contains(c))).unwrap_or(rest.len());
        if n == 0 {
            return Err(self.error("a name"));
        }
        self.at += n;
        Ok(&rest[..n])
    }

    fn quoted(&mut self) -> Result<&'a str, Error> {
        self.expect("\"")?;
        let rest = &self.text[self.at..];
        let Some(n) = rest.find('"') else { return Err(self.error("a closing `\"`")) };
        self.at += n + 1;
        Ok(&rest[..n])
    }

    fn integer(&mut self) -> Result<i64, Error> {
        let rest = self.rest();
        let n = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        match rest[..n].parse() {
            Ok(number) => {
                self.at += n;
                Ok(number)
            }
            Err(_) => Err(self.error("a number")),
        }
    }

    /// `["a"=2, "b"=4], device_ids=[1, 0]`.
    fn mesh(&mut self) -> Result<Mesh, Error> {
        let mut mesh = Mesh::default();
        self.expect("[")?;
        self.list("]", |cx| {
            let name = cx.quoted()?.to_string();
            cx.expect("=")?;
            mesh.axes.push((name, cx.integer()?));
            Ok(())
        })?;
        if self.take(",") {
            self.expect("device_ids")?;
            self.expect("=")?;
            self.expect("[")?;
            let mut ids = Vec::new();
            self.list("]", |cx| {
                ids.push(cx.integer()?);
                Ok(())
            })?;
            mesh.device_ids = MeshDevices::List(ids);
        }
        Ok(mesh)
    }

    /// `@mesh, [{"a", ?}p1, {}], replicated={"b"}, unreduced={"c"}>`.
    fn sharding(&mut self, meshes: &Meshes) -> Result<ShardySharding, Error> {
        let mesh = if self.take("@") {
            let name = self.name()?;
            match meshes.get(name) {
                Some(mesh) => mesh.clone(),
                None => return Err(self.error(&format!("a mesh of the module, not @{name}, before"))),
            }
        } else {
            self.expect("mesh<")?;
            let mesh = self.mesh()?;
            self.expect(">")?;
            mesh
        };
        let mut named = NamedSharding { mesh, ..NamedSharding::default() };
        let mut priorities = Vec::new();
        self.expect(",")?;
        self.expect("[")?;
        self.list("]", |cx| {
            let mut dim = NamedDim::default();
            cx.expect("{")?;
            cx.list("}", |cx| {
                if cx.take("?") {
                    dim.is_open = true;
                } else {
                    dim.axes.push(cx.axis()?);
                }
                Ok(())
            })?;
            let priority = if cx.take("p") { cx.integer()? } else { 0 };
            priorities.push(u32::try_from(priority).unwrap_or(u32::MAX));
            named.dims.push(dim);
            Ok(())
        })?;
        while !self.take(">") {
            self.expect(",")?;
            let axes = if self.take("replicated") {
                &mut named.replicated
            } else if self.take("unreduced") {
                &mut named.unreduced
            } else {
                return Err(self.error("`replicated`, `unreduced` or `>`"));
            };
            self.expect("=")?;
            self.expect("{")?;
            self.list("}", |cx| {
                axes.push(cx.axis()?);
                Ok(())
            })?;
        }
        Ok(ShardySharding { named, priorities })
    }

    /// `"a"`, or the part `"a":(2)4` of one.
    fn axis(&mut self) -> Result<AxisRef, Error> {
        let name = self.quoted()?.to_string();
        let sub = if self.take(":") {
            self.expect("(")?;
            let before = self.integer()?;
            self.expect(")")?;
            Some((before, self.integer()?))
        } else {
            None
        };
        Ok(AxisRef { name, sub })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Dims;

    fn meshes() -> Meshes {
        let text = r#"{empty_mesh = #sdy.mesh<[]>, mesh = #sdy.mesh<["x"=2, "y"=4]>, turned = #sdy.mesh<["x"=4], device_ids=[3, 2, 1, 0]>}"#;
        Meshes::parse(text).unwrap()
    }

    fn printed(text: &str) -> String {
        meshes().sharding(text).unwrap().as_leaf().to_string()
    }

    #[test]
    fn shardings_become_named_ones() {
        assert_eq!(printed(r#"#sdy.sharding<@mesh, [{"y"}, {}]>"#), "{mesh['x'=2,'y'=4], [{'y'}, {}]}");
        assert_eq!(
            printed(r#"#sdy.sharding<@mesh, [{"x", "y":(2)2, ?}p1]>"#),
            "{mesh['x'=2,'y'=4], [{'x', 'y':(2)2, ?}]}"
        );
        assert_eq!(
            printed(r#"#sdy.sharding<@turned, [{?}], replicated={"x"}>"#),
            "{mesh['x'=4], device_ids=(3,2,1,0), [{?}], replicated={'x'}}"
        );
        assert_eq!(printed(r#"#sdy.sharding<mesh<["a"=8]>, []>"#), "{mesh['a'=8], []}");
        let with_priority = meshes().sharding(r#"#sdy.sharding<@mesh, [{"x"}p2, {?}]>"#).unwrap();
        assert_eq!(with_priority.priorities, [2, 0]);
        assert!(with_priority.is_open());
    }

    #[test]
    fn several_values_and_manual_axes() {
        let all = meshes().shardings(r#"#sdy.sharding_per_value<[<@mesh, [{"x"}]>, <@mesh, []>]>"#).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(manual_axes(r#"#sdy<manual_axes{"x", "y"}>"#).unwrap(), ["x", "y"]);
        let only_y = meshes().sharding(r#"#sdy.sharding<@mesh, [{"x", "y"}]>"#).unwrap().along(|axis| axis == "y");
        assert_eq!(only_y.to_string(), "{mesh['x'=2,'y'=4], [{'y'}]}");
    }

    #[test]
    fn errors_say_where() {
        let error = |text: &str| meshes().sharding(text).unwrap_err().to_string();
        assert_eq!(
            error(r#"#sdy.sharding<@mesh, [{x}]>"#),
            "at byte 23 of the Shardy attribute: expected `\"`, found `x}]>`"
        );
        assert_eq!(
            error(r#"#sdy.sharding<@other, []>"#),
            "at byte 20 of the Shardy attribute: expected a mesh of the module, not @other, before, found `, []>`"
        );
        assert_eq!(error("#sdy"), "at byte 0 of the Shardy attribute: expected `#sdy.sharding<`, found `#sdy`");
    }

    #[test]
    fn tiles_of_devices() {
        let grid = |text: &str, rank| meshes().sharding(text).unwrap().as_leaf().tile_grid(rank, 8);
        let by_y = grid(r#"#sdy.sharding<@mesh, [{}, {"y"}]>"#, 2).unwrap();
        assert_eq!(by_y.tiles.as_slice(), [1, 4]);
        let along: Vec<i64> = by_y.of_device.iter().map(|at| at[1]).collect();
        assert_eq!(along, [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(by_y.copy_of_device, [0, 0, 0, 0, 1, 1, 1, 1]);
        // A dim of 10 in tiles of 3, 3, 3 and 1.
        assert_eq!(by_y.tile_of(&[5, 10], 3), (Dims::from_slice(&[0, 9]), Dims::from_slice(&[5, 1])));
        let both = grid(r#"#sdy.sharding<@mesh, [{"y", "x"}]>"#, 1).unwrap();
        let along: Vec<i64> = both.of_device.iter().map(|at| at[0]).collect();
        assert_eq!(along, [0, 2, 4, 6, 1, 3, 5, 7]);
        assert!(grid(r#"#sdy.sharding<@mesh, [{}]>"#, 2).is_none(), "another rank");
    }
}
