//! The shardings of a module's values in words, for `analyze sharding` and `--emit sharding-svg`.
//!
//! Shardy's attributes win over the `sharding=` beside them, which stands in for what they leave open.

use hlo_ir::axes::{AxisSharding, SubAxis};
use hlo_ir::devices::find_n_devices;
use hlo_ir::sharding::{LeafSharding, ShardingKind, WholeMesh};
use hlo_ir::shardy::{self, Meshes, attribute};
use hlo_ir::{ArrayShape, InstId, Module};

/// What reads the shardings of one module.
pub(crate) struct Shardings<'m> {
    module: &'m Module,
    meshes: Meshes,
    pub(crate) n_devices: usize,
}

/// How one dim of a value is cut.
pub(crate) struct DimCut {
    pub(crate) n_tiles: i64,
    /// Elements of a tile; the last ones hold less if this does not divide the dim.
    pub(crate) tile_size: i64,
    /// The axes that cut it, major ones first.
    pub(crate) axes: Vec<String>,
    /// Whether propagation may cut it further.
    pub(crate) is_open: bool,
}

/// How a value lies on the devices.
pub(crate) struct Placement {
    pub(crate) dims: Vec<DimCut>,
    /// Axes along which devices hold copies.
    pub(crate) replicated: Vec<String>,
    pub(crate) manual: Vec<String>,
    /// Axes along which devices hold partial results.
    pub(crate) unreduced: Vec<String>,
    /// On how many devices each tile lies.
    pub(crate) n_copies: i64,
}

/// What an annotation says of a value.
pub(crate) enum Said {
    /// Tiles.
    Placed(Placement),
    /// Something else, as words: one device holds it all, it is not known.
    Other(String),
}

impl<'m> Shardings<'m> {
    /// Of a module; meshes that cannot be read are taken for none.
    pub(crate) fn of(module: &'m Module) -> Shardings<'m> {
        let meshes = Meshes::of(&module.header).unwrap_or_default();
        Shardings { module, meshes, n_devices: find_n_devices(module) }
    }

    /// The meshes that the header names, as `x=2, y=4`.
    pub(crate) fn meshes(&self) -> Vec<String> {
        let text = |mesh: &hlo_ir::groups::Mesh| {
            mesh.axes.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(", ")
        };
        self.meshes.iter().map(text).collect()
    }

    /// The annotation of one leaf of a value.
    pub(crate) fn leaf(&self, inst: InstId, leaf_idx: usize) -> Option<LeafSharding> {
        let attributes = self.module.inst(inst).marks.as_deref().map_or(&[][..], |marks| &marks.frontend_attributes);
        let text = attribute(attributes, shardy::SHARDING).or_else(|| attribute(attributes, shardy::OUT_SHARDINGS));
        if let Some(all) = text.and_then(|text| self.meshes.shardings(text).ok()) {
            return all.get(leaf_idx).or(if all.len() == 1 { all.first() } else { None }).map(|s| s.as_leaf());
        }
        self.module.sharding(inst).and_then(|sharding| sharding.leaf(leaf_idx)).cloned()
    }

    /// What an annotation says of an array.
    pub(crate) fn read(&self, sharding: &LeafSharding, shape: &ArrayShape) -> Said {
        match &sharding.kind {
            ShardingKind::Maximal(device) | ShardingKind::MaximalMesh(device) => {
                return Said::Other(format!("on device {device} alone"));
            }
            ShardingKind::Unknown => return Said::Other("not known".into()),
            ShardingKind::Manual => return Said::Other("manual: each device's own value".into()),
            ShardingKind::Named(named) if named.whole == Some(WholeMesh::Manual) => {
                return Said::Other("manual: each device's own value".into());
            }
            ShardingKind::Replicated | ShardingKind::Unreduced | ShardingKind::Tiled(_) | ShardingKind::Named(_) => {}
        }
        match sharding.axes(shape.rank(), self.n_devices) {
            Ok(axes) => Said::Placed(self.placement(sharding, &axes, shape)),
            Err(error) => Said::Other(format!("cannot be read: {error}")),
        }
    }

    /// A sharding as axes, and the name and size of each axis of its mesh; `None` where it says nothing of tiles.
    pub(crate) fn axes(
        &self,
        sharding: &LeafSharding,
        shape: &ArrayShape,
    ) -> Option<(AxisSharding, Vec<(String, i64)>)> {
        let axes = sharding.axes(shape.rank(), self.n_devices).ok()?;
        let whole = |(axis, &size): (usize, &i64)| {
            let name = self.name(sharding, &axes, SubAxis { axis, pre: 1, size });
            (name, size)
        };
        let names = axes.mesh.sizes.iter().enumerate().map(whole).collect();
        Some((axes, names))
    }

    fn placement(&self, sharding: &LeafSharding, axes: &AxisSharding, shape: &ArrayShape) -> Placement {
        let names = |parts: &[SubAxis]| parts.iter().map(|&part| self.name(sharding, axes, part)).collect::<Vec<_>>();
        let open = |dim: usize| match &sharding.kind {
            ShardingKind::Named(named) => named.dims.get(dim).is_some_and(|dim| dim.is_open),
            ShardingKind::Replicated
            | ShardingKind::Maximal(_)
            | ShardingKind::Manual
            | ShardingKind::Unknown
            | ShardingKind::Unreduced
            | ShardingKind::Tiled(_)
            | ShardingKind::MaximalMesh(_) => false,
        };
        let dims = axes.tiles().into_iter().zip(&shape.dims).zip(&axes.dims).enumerate();
        let dims: Vec<DimCut> = dims
            .map(|(dim, ((n_tiles, &size), parts))| DimCut {
                n_tiles,
                tile_size: size / n_tiles.max(1) + i64::from(size % n_tiles.max(1) != 0),
                axes: names(parts),
                is_open: open(dim),
            })
            .collect();
        let n_used: i64 = axes.parts().map(|part| part.size).product();
        let n_copies = self.n_devices as i64 / n_used.max(1);
        let rest = if n_copies > 1 { self.unnamed(sharding, axes) } else { Vec::new() };
        Placement { dims, replicated: rest, manual: names(&axes.manual), unreduced: names(&axes.unreduced), n_copies }
    }

    /// The axes, and parts of them, that a sharding does not name, where whole axes are left.
    fn unnamed(&self, sharding: &LeafSharding, axes: &AxisSharding) -> Vec<String> {
        let named: Vec<SubAxis> = axes.parts().collect();
        let mut out = Vec::new();
        for (axis, &size) in axes.mesh.sizes.iter().enumerate() {
            // The parts of the axis that nothing names, from the outermost on.
            let mut parts: Vec<SubAxis> = named.iter().copied().filter(|part| part.axis == axis).collect();
            parts.sort_by_key(|part| part.pre);
            let mut pre = 1;
            for part in parts {
                if part.pre > pre {
                    out.push(self.name(sharding, axes, SubAxis { axis, pre, size: part.pre / pre }));
                }
                pre = part.pre * part.size;
            }
            if pre < size {
                out.push(self.name(sharding, axes, SubAxis { axis, pre, size: size / pre }));
            }
        }
        out
    }

    /// A part of an axis by its name, or by how many devices lie along it and how far apart.
    fn name(&self, sharding: &LeafSharding, axes: &AxisSharding, part: SubAxis) -> String {
        let whole = axes.mesh.sizes.get(part.axis).copied().unwrap_or(part.size);
        if let ShardingKind::Named(named) = &sharding.kind {
            let mut named = named.mesh.axes.iter().filter(|(_, size)| *size > 1);
            if let Some((name, _)) = named.nth(part.axis) {
                return if part.size == whole { name.clone() } else { format!("{name}:({}){}", part.pre, part.size) };
            }
        }
        let stride = axes.mesh.stride(part);
        if !axes.mesh.is_iota() {
            return format!("{} devices {stride} apart in a list of its own", part.size);
        }
        let of_module = self.meshes.iter().find_map(|mesh| {
            let mut inner = 1;
            let mut found = None;
            for (name, size) in mesh.axes.iter().rev() {
                if inner == stride && *size == part.size {
                    found = Some(name.clone());
                }
                inner *= size;
            }
            found.filter(|_| inner == self.n_devices as i64)
        });
        of_module.unwrap_or_else(|| format!("{} devices {stride} apart", part.size))
    }
}

impl Said {
    /// In words.
    pub(crate) fn words(&self) -> String {
        match self {
            Said::Placed(placement) => placement.words(),
            Said::Other(text) => text.clone(),
        }
    }
}

impl Placement {
    /// Whether some dim is cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.dims.iter().any(|dim| dim.n_tiles > 1)
    }

    fn words(&self) -> String {
        let mut parts = Vec::new();
        let list = |axes: &[String]| axes.join(", ");
        for (dim, cut) in self.dims.iter().enumerate().filter(|(_, cut)| cut.n_tiles > 1) {
            let DimCut { n_tiles, tile_size, axes, .. } = cut;
            parts.push(format!("dim {dim} in {n_tiles} tiles of {tile_size} over {{{}}}", list(axes)));
        }
        let is_whole = parts.is_empty();
        if is_whole && self.manual.is_empty() && self.unreduced.is_empty() {
            parts.push("whole on every device".into());
        } else if self.n_copies > 1 {
            parts.push(format!("replicated over {{{}}}", list(&self.replicated)));
        }
        if !self.manual.is_empty() {
            parts.push(format!("manual over {{{}}}", list(&self.manual)));
        }
        if !self.unreduced.is_empty() {
            parts.push(format!("partial over {{{}}}", list(&self.unreduced)));
        }
        let open: Vec<String> =
            self.dims.iter().enumerate().filter(|(_, cut)| cut.is_open).map(|(dim, _)| dim.to_string()).collect();
        if !open.is_empty() {
            parts.push(format!("open: dim {}", open.join(", ")));
        }
        parts.join("; ")
    }
}
