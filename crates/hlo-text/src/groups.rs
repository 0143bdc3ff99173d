//! `replica_groups=` in its three syntaxes, and the iota tiles and meshes that shardings use as well.

use crate::cursor::Cursor;
use crate::error::{EXPECTED, Fallible, UNKNOWN, failure};
use hlo_ir::Dims;
use hlo_ir::diag::Diagnostic;
use hlo_ir::groups::{AxisRef, IotaTile, Mesh, MeshDevices, MeshGroups, ReplicaGroups};

/// Takes replica groups: `{{0,1},{2,3}}`, `[2,2]<=[4]T(1,0)` or `mesh['a'=2] {'a'}`.
pub(crate) fn replica_groups(cur: &mut Cursor<'_>) -> Fallible<ReplicaGroups> {
    match cur.peek() {
        Some(b'{') => {
            let mut groups = Vec::new();
            cur.list((b'{', b'}'), "of the replica groups", &mut |cur| {
                groups.push(ids(cur, (b'{', b'}'), "of a replica group")?);
                Ok(())
            })?;
            Ok(ReplicaGroups::List(groups))
        }
        Some(b'[') => {
            let start = cur.pos;
            let dims = dims(cur, (b'[', b']'), "of the group counts")?;
            if dims.len() != 2 {
                let message = format!("expected 2 numbers, how many groups and how large, found {}", dims.len());
                return Err(failure(EXPECTED, start, cur.pos, message));
            }
            cur.expect_str("<=", "after the group counts")?;
            let start = cur.pos;
            let tile = iota_tail(cur, dims)?;
            check_same_product(&tile, start, cur.pos)?;
            Ok(ReplicaGroups::Iota(tile))
        }
        _ if cur.eat_word("mesh") => {
            let mesh = mesh(cur)?;
            let axes = axes(cur, &mesh, "of the group axes")?;
            Ok(ReplicaGroups::Mesh(MeshGroups { mesh, axes }))
        }
        _ => Err(cur.expected("replica groups: `{{0,1},…}`, `[2,2]<=[4]` or `mesh[…] {…}`")),
    }
}

/// Takes ids between brackets.
pub(crate) fn ids(cur: &mut Cursor<'_>, brackets: (u8, u8), place: &str) -> Fallible<Vec<i64>> {
    let mut out = Vec::new();
    cur.list(brackets, place, &mut |cur| {
        out.push(cur.int("a number")?);
        Ok(())
    })?;
    Ok(out)
}

/// Takes dims between brackets.
pub(crate) fn dims(cur: &mut Cursor<'_>, brackets: (u8, u8), place: &str) -> Fallible<Dims> {
    let mut out = Dims::new();
    cur.list(brackets, place, &mut |cur| {
        out.push(cur.int("a number")?);
        Ok(())
    })?;
    Ok(out)
}

/// Takes `[reshape dims]T(perm)` after `dims<=`. As in XLA, several dims need `T(…)` and a single one cannot have it.
pub(crate) fn iota_tail(cur: &mut Cursor<'_>, dims: Dims) -> Fallible<IotaTile> {
    cur.skip_blanks();
    let start = cur.pos;
    let reshape_dims = self::dims(cur, (b'[', b']'), "of the iota dims")?;
    let perm = match reshape_dims.len() {
        0 => return Err(failure(EXPECTED, start, cur.pos, "expected at least 1 iota dim, found none")),
        1 if cur.peek_word() == "T" => return Err(cur.expected("no transpose after a single iota dim")),
        1 => Dims::from_slice(&[0]),
        _ if cur.eat_word("T") => self::dims(cur, (b'(', b')'), "of the transpose")?,
        n => return Err(cur.expected(&format!("`T(…)`, the order of the {n} iota dims"))),
    };
    let mut sorted = perm.clone();
    sorted.sort();
    if !sorted.iter().copied().eq(0..reshape_dims.len() as i64) {
        let message = format!("expected a permutation of {} dims, found another", reshape_dims.len());
        return Err(failure(EXPECTED, start, cur.pos, message));
    }
    Ok(IotaTile { dims, reshape_dims, perm })
}

/// Fails unless both sides of `<=` count the same ids.
fn check_same_product(tile: &IotaTile, start: usize, end: usize) -> Fallible<()> {
    let product = |dims: &Dims| dims.iter().try_fold(1i64, |n, &d| if d > 0 { n.checked_mul(d) } else { None });
    if product(&tile.dims).is_some() && product(&tile.dims) == product(&tile.reshape_dims) {
        return Ok(());
    }
    let message = "expected positive dims with the same product on both sides of `<=`, found others";
    Err(failure(EXPECTED, start, end, message))
}

/// Takes `['a'=2,'b'=4]` and `, device_ids=(…)` after the word `mesh`.
pub(crate) fn mesh(cur: &mut Cursor<'_>) -> Fallible<Mesh> {
    let mut mesh = Mesh::default();
    cur.list((b'[', b']'), "of the mesh axes", &mut |cur| {
        let name = axis_name(cur)?;
        cur.expect(b'=', "after the axis name")?;
        mesh.axes.push((name, cur.count("the axis size")?));
        Ok(())
    })?;
    let before = cur.pos;
    if cur.eat(b',') && cur.eat_word("device_ids") {
        cur.expect(b'=', "after `device_ids`")?;
        mesh.device_ids = device_ids(cur, &mesh)?;
    } else {
        cur.pos = before;
    }
    Ok(mesh)
}

/// Takes `(0,1,3,2)` or `([4,2]T(1,0))`.
fn device_ids(cur: &mut Cursor<'_>, mesh: &Mesh) -> Fallible<MeshDevices> {
    let start = cur.pos;
    cur.expect(b'(', "of the device ids")?;
    if cur.peek() != Some(b'[') {
        cur.pos = start;
        return Ok(MeshDevices::List(ids(cur, (b'(', b')'), "of the device ids")?));
    }
    let tile = iota_tail(cur, mesh.axes.iter().map(|&(_, size)| size).collect())?;
    cur.expect(b')', "after the device ids")?;
    Ok(MeshDevices::Tile(tile))
}

/// Takes `{'a','b':(2)2}`.
pub(crate) fn axes(cur: &mut Cursor<'_>, mesh: &Mesh, place: &str) -> Fallible<Vec<AxisRef>> {
    let mut out = Vec::new();
    cur.list((b'{', b'}'), place, &mut |cur| {
        out.push(axis(cur, mesh)?);
        Ok(())
    })?;
    Ok(out)
}

/// Takes a quoted axis name; no printed form can hold other than plain characters.
fn axis_name(cur: &mut Cursor<'_>) -> Fallible<String> {
    cur.skip_blanks();
    let start = cur.pos;
    let name = cur.string("a quoted axis name")?.into_owned();
    if name.bytes().all(|b| (0x20..0x7f).contains(&b) && !matches!(b, b'"' | b'\'' | b'\\')) {
        return Ok(name);
    }
    Err(failure(EXPECTED, start, cur.pos, "expected an axis name of printable ASCII without quotes, found another"))
}

/// Takes `'a'` or `'a':(pre_size)size`.
pub(crate) fn axis(cur: &mut Cursor<'_>, mesh: &Mesh) -> Fallible<AxisRef> {
    cur.skip_blanks();
    let start = cur.pos;
    let mut name = axis_name(cur)?;
    if !mesh.axes.iter().any(|(known, _)| *known == name) {
        // XLA takes the place of an axis for its name.
        match name.parse::<usize>().ok().and_then(|place| mesh.axes.get(place)) {
            Some((known, _)) => name.clone_from(known),
            None => return Err(unknown_axis(cur, start, &name)),
        }
    }
    if !cur.eat(b':') {
        return Ok(AxisRef { name, sub: None });
    }
    cur.expect(b'(', "before the size of the outer part")?;
    let pre_size = cur.count("the size of the outer part")?;
    cur.expect(b')', "after the size of the outer part")?;
    Ok(AxisRef { name, sub: Some((pre_size, cur.count("the size of the part")?)) })
}

fn unknown_axis(cur: &Cursor<'_>, start: usize, name: &str) -> Box<Diagnostic> {
    let message = format!("`{name}`: expected an axis of the mesh, found none of that name");
    failure(UNKNOWN, start, cur.pos, message)
}
