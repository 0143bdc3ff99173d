//! A computation layout: which axis of the mesh cuts which class of dims, whether that is legal, and what it says of every value.
//!
//! Legal (§5 of the paper) is a layout if an axis cuts at most one dim of each tensor and at most one dim of each op (for a product
//! `[a,b] * [b,c]` these are `a`, `b` and `c`), and if its size divides the dim's.

use super::classes::{DimPlace, DimProgram, OpDim};
use super::names::NamedClass;
use super::parts::PartId;
use super::path::path_text;
use super::text::NamedAxis;
use crate::error::PartitionError;
use crate::mesh::ModuleMesh;
use crate::propagate_shardings::ties::{FactorEffect, TieKind};
use crate::propagate_shardings::values::{CutId, bits};
use crate::sharding::{Atom, AtomList};
use hlo_ir::Module;
use hlo_ir::axes::primes;
use hlo_ir::diag::Entity;
use hlo_ir::names::FixedHash;
use indexmap::IndexMap;

/// A mesh with named axes. Device ids count through the axes in `order`, the first one slowest.
#[derive(Clone, Debug)]
pub(crate) struct NamedMesh {
    pub axes: Vec<NamedAxis>,
    /// The prime axes of each axis.
    pub atoms: Vec<AtomList>,
    pub mesh: ModuleMesh,
}

impl NamedMesh {
    /// A mesh whose axes lie in the order of `order` over the devices.
    ///
    /// # Errors
    /// More devices than there can be.
    pub(crate) fn new(axes: &[NamedAxis], order: &[usize]) -> Result<NamedMesh, PartitionError> {
        let (mut sizes, mut atoms) = (Vec::new(), vec![AtomList::new(); axes.len()]);
        for &axis in order {
            for size in primes(axes[axis].size) {
                atoms[axis].push(Atom(sizes.len().min(usize::from(u8::MAX)) as u8));
                sizes.push(size);
            }
        }
        Ok(NamedMesh { axes: axes.to_vec(), atoms, mesh: ModuleMesh::of_sizes(sizes)? })
    }
}

/// Which axis cuts which class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    /// The number of the axis, by part.
    pub axis_of: IndexMap<PartId, usize, FixedHash>,
}

impl Layout {
    /// The layout that names say; where uneven ones are allowed, an axis need not divide its dim.
    ///
    /// # Errors
    /// A name that no class has, or no axis; an axis that does not divide its dim.
    pub(crate) fn new(
        program: &DimProgram,
        classes: &[NamedClass],
        axes: &[NamedAxis],
        said: &[(String, String)],
        is_uneven_allowed: bool,
    ) -> Result<Layout, PartitionError> {
        let mut layout = Layout::default();
        for (dim, axis) in said {
            let Some(class) = classes.iter().find(|class| class.name == *dim) else {
                let known: Vec<&str> = classes.iter().map(|class| class.name.as_str()).take(12).collect();
                let text = format!("layout: expected the name of a dim (such as {}), found `{dim}`", known.join(", "));
                return Err(illegal(Entity::Module, text));
            };
            let Some(number) = axes.iter().position(|known| known.name == *axis) else {
                let known: Vec<&str> = axes.iter().map(|axis| axis.name.as_str()).collect();
                let text =
                    format!("layout: dim `{dim}`: expected an axis of the mesh ({}), found `{axis}`", known.join(", "));
                return Err(illegal(Entity::Module, text));
            };
            let (size, n_tiles) = (class.class.size, axes[number].size);
            if size % n_tiles != 0 && !is_uneven_allowed {
                let first = class.class.places.first().copied();
                let at = first.map_or(String::new(), |place| {
                    format!(" (dim {} of {})", place.dim, program.tensor_text(place.value))
                });
                let text = format!(
                    "dim `{dim}`{at}: expected a size that axis `{axis}` of {n_tiles} divides, found {size}; \
                     `even=false` pads it"
                );
                return Err(illegal(Entity::Module, text));
            }
            layout.axis_of.insert(class.class.part, number);
        }
        Ok(layout)
    }

    /// The axis of each dim of a value, with the part that it cuts. A dim of several parts is cut along its major part first; a part
    /// behind one that is not cut into single elements stays whole there.
    fn axes_of(&self, program: &DimProgram, value: CutId, axes: &[NamedAxis]) -> Vec<Vec<(PartId, usize)>> {
        let n_dims = program.graph.values[value].dims.len();
        (0..n_dims).map(|dim| self.axes_of_dim(program, &program.parts_of(value, dim), axes)).collect()
    }

    fn axes_of_dim(&self, program: &DimProgram, parts: &[PartId], axes: &[NamedAxis]) -> Vec<(PartId, usize)> {
        let mut out = Vec::new();
        for &part in parts {
            let Some(&axis) = self.axis_of.get(&part) else { break };
            let (size, n_tiles) = (program.parts.size(part), axes[axis].size);
            if parts.len() > 1 && size % n_tiles != 0 {
                break;
            }
            out.push((part, axis));
            if n_tiles != size {
                break;
            }
        }
        out
    }

    /// Checks that no axis cuts two dims of a tensor or of an op.
    ///
    /// # Errors
    /// The tensor or the op, both dims, and the axis.
    pub(crate) fn check_legal(
        &self,
        program: &DimProgram,
        classes: &[NamedClass],
        axes: &[NamedAxis],
    ) -> Result<(), PartitionError> {
        let name = |part: PartId| {
            classes.iter().find(|class| class.class.part == part).map_or("?", |class| class.name.as_str())
        };
        for value in program.graph.values.keys() {
            let mut cut_by: Vec<Option<(usize, PartId)>> = vec![None; axes.len()];
            for (dim, of_dim) in self.axes_of(program, value, axes).into_iter().enumerate() {
                for (part, axis) in of_dim {
                    let Some((first, other)) = cut_by[axis].replace((dim, part)) else { continue };
                    let both = match other == part {
                        true => {
                            let place = |dim: usize| DimPlace { value, dim: dim as u32, part: 0 };
                            let path = path_text(program, part, place(first), place(dim));
                            format!("dims {first} and {dim} are both `{}` ({path})", name(part))
                        }
                        false => format!("dim {first} (`{}`) and dim {dim} (`{}`)", name(other), name(part)),
                    };
                    let text = format!(
                        "tensor {}: {both}: expected at most one dim over axis `{}`, found two; \
                         leave one of them whole or lay it out over another axis",
                        program.tensor_text(value),
                        axes[axis].name
                    );
                    return Err(illegal(program.entity(program.graph.values[value].inst), text));
                }
            }
        }
        for tie in program.graph.ties.values().filter(|tie| tie.kind != TieKind::Relabelling && tie.rule.is_some()) {
            let dims = program.op_dims(tie);
            let mut cut_by: Vec<Option<&OpDim>> = vec![None; axes.len()];
            for dim in dims.iter().filter(|dim| is_computed_in_tiles(dim.effect)) {
                for (part, axis) in self.axes_of_dim(program, &dim.parts, axes) {
                    let Some(other) = cut_by[axis].replace(dim) else { continue };
                    let of = |dim: &OpDim, part: PartId| {
                        format!("dim {} (`{}`) of {}", dim.dim, name(part), program.tensor_text(dim.value))
                    };
                    let first = self.axes_of_dim(program, &other.parts, axes);
                    let first = first.iter().find(|(_, known)| *known == axis).map_or(part, |(part, _)| *part);
                    let text = format!(
                        "op %{}: {} and {}: expected at most one dim of an op over axis `{}`, found two; \
                         leave one of them whole or lay it out over another axis",
                        program.module.inst_name(tie.inst),
                        of(other, first),
                        of(dim, part),
                        axes[axis].name
                    );
                    return Err(illegal(program.entity(tie.inst), text));
                }
            }
        }
        Ok(())
    }

    /// Gives every value the cut that the layout says.
    pub(crate) fn cut_values(&self, program: &mut DimProgram, mesh: &NamedMesh) {
        let values: Vec<CutId> = program.graph.values.keys().collect();
        for value in values {
            let cuts = self.axes_of(program, value, &mesh.axes);
            let value = &mut program.graph.values[value];
            for (dim, of_dim) in value.dims.iter_mut().zip(cuts) {
                dim.atoms = of_dim.iter().flat_map(|&(_, axis)| mesh.atoms[axis].iter().copied()).collect();
            }
            value.used = bits(value.dims.iter().flat_map(|dim| &dim.atoms));
        }
    }
}

/// Whether an op computes tiles of such a dim.
pub(super) fn is_computed_in_tiles(effect: FactorEffect) -> bool {
    match effect {
        FactorEffect::Pass | FactorEffect::Reduce | FactorEffect::Halo => true,
        FactorEffect::Move | FactorEffect::Whole => false,
    }
}

/// Makes the header say the number of devices where no sharding does: when nothing is laid out.
pub(crate) fn write_n_devices(module: &mut Module, mesh: &NamedMesh) {
    let n_devices = mesh.mesh.n_devices();
    if hlo_ir::devices::find_n_devices(module) != n_devices {
        module.header.num_partitions = n_devices as i64;
    }
}

fn illegal(entity: Entity, text: String) -> PartitionError {
    PartitionError::about("mesh-layout", entity, text)
}
