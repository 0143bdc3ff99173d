//! Shardings in Shardy's words, for the borders of manual regions and for people.

use super::calls::front_end;
use crate::mesh::ModuleMesh;
use crate::sharding::{ArraySharding, Atom};
use hlo_ir::groups::Mesh;
use hlo_ir::shardy::{self, Meshes};
use hlo_ir::{InstId, Module};

/// Writes the shardings at the ends of manual regions.
pub(super) struct ShardyWriter<'a> {
    pub mesh: &'a ModuleMesh,
    pub meshes: &'a Meshes,
}

impl ShardyWriter<'_> {
    /// Writes the shardings of the whole values at an end of a region, closed. Returns whether the text is another one.
    pub(super) fn close(&self, module: &mut Module, inst: InstId, shardings: &[Option<ArraySharding>]) -> bool {
        for key in [shardy::IN_SHARDINGS, shardy::OUT_SHARDINGS] {
            let Some(text) = shardy::attribute(front_end(module, inst), key) else { continue };
            let Some(new) = self.closed(text, shardings).filter(|new| new != text) else { continue };
            let attributes = &mut module.marks_mut(inst).frontend_attributes;
            attributes.iter_mut().filter(|(known, _)| known == key).for_each(|(_, value)| value.clone_from(&new));
            return true;
        }
        false
    }

    /// The text with all shardings said anew; `None` if it is none of shardings, or names no mesh of the module.
    fn closed(&self, text: &str, shardings: &[Option<ArraySharding>]) -> Option<String> {
        let rest = text.trim().strip_prefix("#sdy.sharding_per_value<[")?.strip_suffix("]>")?;
        let name = rest.trim_start().strip_prefix("<@")?.split(',').next()?;
        let mesh = self.meshes.get(name)?;
        let all: Option<Vec<String>> = shardings.iter().map(|one| self.one(name, mesh, one.as_ref()?)).collect();
        Some(format!("#sdy.sharding_per_value<[{}]>", all?.join(", ")))
    }

    fn one(&self, name: &str, mesh: &Mesh, sharding: &ArraySharding) -> Option<String> {
        let dims: Option<Vec<String>> =
            sharding.dims.iter().map(|atoms| Some(format!("{{{}}}", self.axes(mesh, atoms)?))).collect();
        let partial = match sharding.partial.is_empty() {
            true => String::new(),
            false => format!(", unreduced={{{}}}", self.axes(mesh, &sharding.partial)?),
        };
        Some(format!("<@{name}, [{}]{partial}>", dims?.join(", ")))
    }

    /// Atoms as a person knows them: as axes of the module's mesh, or else by their sizes and the distance of the devices along them.
    pub(super) fn describe(&self, atoms: &[Atom]) -> String {
        let is_whole = |mesh: &&Mesh| mesh.n_devices() == Some(self.mesh.n_devices() as i64);
        if let Some(axes) = self.meshes.iter().find(is_whole).and_then(|mesh| self.axes(mesh, atoms)) {
            return format!("{{{axes}}}");
        }
        let one = |&atom: &Atom| {
            let stride: i64 =
                self.mesh.atoms().filter(|other| other.0 > atom.0).map(|other| self.mesh.size(other)).product();
            format!("{} devices {stride} apart", self.mesh.size(atom))
        };
        atoms.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Atoms as axes of a mesh and parts of them.
    fn axes(&self, mesh: &Mesh, atoms: &[Atom]) -> Option<String> {
        // Axis, and where the part begins and ends, as numbers of positions that are equal before it.
        let mut parts: Vec<(usize, i64, i64)> = Vec::new();
        for &atom in atoms {
            let (axis, pre) = self.place(mesh, atom)?;
            let size = self.mesh.size(atom);
            match parts.last_mut() {
                Some(last) if last.0 == axis && last.1 * last.2 == pre => last.2 *= size,
                Some(_) | None => parts.push((axis, pre, size)),
            }
        }
        let text = |&(axis, pre, size): &(usize, i64, i64)| {
            let (name, whole) = &mesh.axes[axis];
            if size == *whole { format!("\"{name}\"") } else { format!("\"{name}\":({pre}){size}") }
        };
        Some(parts.iter().map(text).collect::<Vec<_>>().join(", "))
    }

    /// The axis that an atom is a part of, and how many places of it come before.
    fn place(&self, mesh: &Mesh, atom: Atom) -> Option<(usize, i64)> {
        let stride: i64 =
            self.mesh.atoms().filter(|other| other.0 > atom.0).map(|other| self.mesh.size(other)).product();
        let end = stride * self.mesh.size(atom);
        let mut inner = 1;
        for (axis, (_, size)) in mesh.axes.iter().enumerate().rev() {
            if inner <= stride && end <= inner * size {
                return Some((axis, inner * size / end));
            }
            inner *= size;
        }
        None
    }
}
