//! `sharding=` in its three generations of syntax.

use crate::cursor::Cursor;
use crate::error::{DUPLICATE, EXPECTED, Fallible, UNKNOWN, failure};
use crate::groups::{axes, axis, dims, iota_tail, mesh};
use hlo_ir::groups::{AxisRef, Mesh};
use hlo_ir::sharding::{
    LeafSharding, NamedDim, NamedSharding, Reduction, ShardGroup, Sharding, ShardingKind, SubgroupKind, TileDevices,
    Tiling, WholeMesh,
};

/// Takes a sharding: `{replicated}`, `{devices=…}`, `{mesh[…], …}`, or a tuple of them.
pub(crate) fn sharding(cur: &mut Cursor<'_>) -> Fallible<Sharding> {
    let start = cur.pos;
    cur.expect(b'{', "of the sharding")?;
    if !matches!(cur.peek(), Some(b'{' | b'}')) {
        cur.pos = start;
        return Ok(Sharding::Single(leaf(cur)?));
    }
    let mut leaves = Vec::new();
    cur.pos = start;
    cur.list((b'{', b'}'), "of the tuple sharding", &mut |cur| {
        leaves.push(leaf(cur)?);
        Ok(())
    })?;
    Ok(Sharding::Tuple(leaves))
}

/// What was read of a leaf so far.
#[derive(Default)]
struct LeafParts {
    kind: Option<ShardingKind>,
    group: Option<ShardGroup>,
    metadata: Vec<String>,
    /// Kinds of the last tile dims, and whether the short word for one replicated dim says so.
    last_dims: Option<(Vec<SubgroupKind>, bool)>,
}

/// Takes the sharding of one leaf.
fn leaf(cur: &mut Cursor<'_>) -> Fallible<LeafSharding> {
    cur.expect(b'{', "of the sharding")?;
    let start = cur.pos;
    let mut parts = LeafParts::default();
    while cur.peek() != Some(b'}') {
        let at = cur.pos;
        let word = cur.word("a sharding such as `replicated` or `devices=…`")?;
        if let Some(kind) = kind(cur, word)? {
            if parts.kind.replace(kind).is_some() {
                return Err(failure(DUPLICATE, at, cur.pos, "expected one kind of sharding, found a second one"));
            }
        } else if !leaf_mark(cur, word, &mut parts)? {
            let message =
                format!("expected a kind of sharding or a mark of one, found `{}`", word.get(..40).unwrap_or(word));
            return Err(failure(UNKNOWN, at, at + word.len(), message).with_help(
                "kinds are replicated, manual, unknown, unreduced, maximal device=N, devices=[…]…, mesh[…], maximal_mesh[…]",
            ).into());
        }
        let _ = cur.eat(b',');
    }
    cur.pos += 1;
    let Some(mut kind) = parts.kind else {
        return Err(failure(EXPECTED, start, cur.pos, "expected a kind of sharding, found none"));
    };
    // Only tiles have last dims; what is said of those of another kind means nothing, as in XLA.
    if let (ShardingKind::Tiled(tiling), Some((kinds, is_short))) = (&mut kind, parts.last_dims) {
        if kinds.len() > tiling.dims.len() {
            let message = format!("expected at most {} kinds of last dims, found {}", tiling.dims.len(), kinds.len());
            return Err(failure(EXPECTED, start, cur.pos, message));
        }
        tiling.last_dims = kinds;
        tiling.last_dim_short = is_short;
    }
    Ok(LeafSharding { kind, group: parts.group, metadata: parts.metadata })
}

/// The kind that begins with `word`; `None` if none does.
fn kind(cur: &mut Cursor<'_>, word: &str) -> Fallible<Option<ShardingKind>> {
    Ok(Some(match word {
        "replicated" => ShardingKind::Replicated,
        "manual" => ShardingKind::Manual,
        "unknown" => ShardingKind::Unknown,
        "unreduced" => ShardingKind::Unreduced,
        "maximal" => {
            if !cur.eat_word("device") {
                return Err(cur.expected("`device=` after `maximal`"));
            }
            cur.expect(b'=', "after `device`")?;
            ShardingKind::Maximal(cur.count("a device id")?)
        }
        "devices" => ShardingKind::Tiled(Box::new(tiling(cur)?)),
        "mesh" => ShardingKind::Named(Box::new(named(cur)?)),
        "maximal_mesh" => {
            cur.expect(b'[', "after `maximal_mesh`")?;
            if !cur.eat_word("device_id") {
                return Err(cur.expected("`device_id=`"));
            }
            cur.expect(b'=', "after `device_id`")?;
            let id = cur.count("a device id")?;
            cur.expect(b']', "after the device id")?;
            ShardingKind::MaximalMesh(id)
        }
        _ => return Ok(None),
    }))
}

/// Takes the rest of `last_tile_dim_replicate`, `last_tile_dims=`, `metadata=`, `shard_as N`, `shard_like N`; false if
/// `word` begins none of them.
fn leaf_mark(cur: &mut Cursor<'_>, word: &str, parts: &mut LeafParts) -> Fallible<bool> {
    match word {
        "last_tile_dim_replicate" => set_last_dims(cur, parts, vec![SubgroupKind::Replicated], true)?,
        "last_tile_dims" => {
            cur.expect(b'=', "after `last_tile_dims`")?;
            let mut kinds = Vec::new();
            cur.list((b'{', b'}'), "of the subgroup kinds", &mut |cur| {
                let word = cur.peek_word();
                let kind = SubgroupKind::from_name(word)
                    .ok_or_else(|| cur.expected("`replicated`, `manual`, `unreduced`, `maximal` or `unknown`"))?;
                cur.pos += word.len();
                kinds.push(kind);
                Ok(())
            })?;
            set_last_dims(cur, parts, kinds, false)?;
        }
        "metadata" => {
            cur.expect(b'=', "after `metadata`")?;
            metadata(cur, &mut parts.metadata)?;
        }
        "shard_as" | "shard_like" => {
            parts.group = Some(ShardGroup { is_as: word == "shard_as", id: cur.count("a group number")? });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn set_last_dims(cur: &Cursor<'_>, parts: &mut LeafParts, kinds: Vec<SubgroupKind>, is_short: bool) -> Fallible<()> {
    match parts.last_dims.replace((kinds, is_short)) {
        None => Ok(()),
        Some(_) => Err(failure(DUPLICATE, cur.pos, cur.pos, "expected the kinds of last dims once, found them twice")),
    }
}

/// Takes `{op_name="a"}` or `{{op_name="a"}, {op_name="b"}}` as raw entries.
fn metadata(cur: &mut Cursor<'_>, out: &mut Vec<String>) -> Fallible<()> {
    let start = cur.pos;
    cur.expect(b'{', "of the metadata")?;
    let is_list = matches!(cur.peek(), Some(b'{' | b'}'));
    cur.pos = start;
    let inner = |raw: &str| raw.get(1..raw.len().saturating_sub(1)).unwrap_or("").to_string();
    if !is_list {
        out.push(inner(cur.braces("metadata")?));
        return Ok(());
    }
    cur.list((b'{', b'}'), "of the metadata", &mut |cur| {
        out.push(inner(cur.braces("metadata")?));
        Ok(())
    })
}

/// Takes what follows `devices`: `=[2,1]<=[2]`, `=[2,1]0,1`.
fn tiling(cur: &mut Cursor<'_>) -> Fallible<Tiling> {
    cur.expect(b'=', "after `devices`")?;
    let dims = dims(cur, (b'[', b']'), "of the tile counts")?;
    let devices = if cur.eat_str("<=") {
        TileDevices::Iota(iota_tail(cur, dims.clone())?)
    } else {
        let mut ids = Vec::new();
        while cur.peek().is_some_and(|b| b.is_ascii_digit()) {
            ids.push(cur.count("a device id")?);
            // A comma may also separate the last id from the next mark.
            if !cur.eat(b',') {
                break;
            }
        }
        TileDevices::List(ids)
    };
    Ok(Tiling { dims, devices, last_dims: Vec::new(), last_dim_short: false })
}

/// Takes what follows `mesh`: axes, device ids, and either `replicated`, `manual`, `unreduced`, or `[{…}, …]` and the lists of
/// further axes.
fn named(cur: &mut Cursor<'_>) -> Fallible<NamedSharding> {
    let mut named = NamedSharding { mesh: mesh(cur)?, ..NamedSharding::default() };
    // XLA prints the comma and asks for none.
    let _ = cur.eat(b',');
    if let Some(whole) = whole_mesh(cur)? {
        if whole == WholeMesh::Unreduced && cur.eat(b'=') {
            named.reduction = reduction(cur)?;
        }
        if whole == WholeMesh::Unreduced && cur.peek() == Some(b'{') {
            // Some of the axes, or all of them by name.
            named.unreduced = axes(cur, &named.mesh, "of the axes")?;
            let is_whole = |name: &String| named.unreduced.iter().any(|axis| axis.name == *name && axis.sub.is_none());
            if !named.mesh.axes.iter().all(|(name, _)| is_whole(name)) {
                return Ok(named);
            }
            named.unreduced.clear();
        }
        named.whole = Some(whole);
        return Ok(named);
    }
    cur.list((b'[', b']'), "of the dims", &mut |cur| {
        named.dims.push(named_dim(cur, &named.mesh)?);
        Ok(())
    })?;
    loop {
        let before = cur.pos;
        let key = if cur.eat(b',') { cur.peek_word() } else { "" };
        let slot: &mut Vec<AxisRef> = match key {
            "replicated" => &mut named.replicated,
            "unreduced" => &mut named.unreduced,
            "manual" => &mut named.manual,
            _ => {
                cur.pos = before;
                return Ok(named);
            }
        };
        cur.pos += key.len();
        cur.expect(b'=', "after the kind of axes")?;
        if key == "unreduced" && cur.peek() != Some(b'{') {
            named.reduction = reduction(cur)?;
        }
        *slot = axes(cur, &named.mesh, "of the axes")?;
    }
}

/// Takes what holds over the whole mesh, if that is next.
fn whole_mesh(cur: &mut Cursor<'_>) -> Fallible<Option<WholeMesh>> {
    if cur.peek() == Some(b'[') {
        return Ok(None);
    }
    let word = cur.peek_word();
    let known = [WholeMesh::Replicated, WholeMesh::Manual, WholeMesh::Unreduced];
    let whole = known.into_iter().find(|whole| whole.name() == word);
    if whole.is_none() {
        return Err(cur.expected("`[` of the dims, `replicated`, `manual` or `unreduced`"));
    }
    cur.pos += word.len();
    Ok(whole)
}

/// Takes `sum`, `max` or `min`.
fn reduction(cur: &mut Cursor<'_>) -> Fallible<Reduction> {
    let word = cur.peek_word();
    let found = Reduction::from_name(word).ok_or_else(|| cur.expected("`sum`, `max` or `min`"))?;
    cur.pos += word.len();
    Ok(found)
}

/// Takes `{'a','b',?}`.
fn named_dim(cur: &mut Cursor<'_>, mesh: &Mesh) -> Fallible<NamedDim> {
    let mut dim = NamedDim::default();
    cur.list((b'{', b'}'), "of the dim's axes", &mut |cur| {
        if cur.eat(b'?') {
            dim.is_open = true;
        } else {
            dim.axes.push(axis(cur, mesh)?);
        }
        Ok(())
    })?;
    Ok(dim)
}
