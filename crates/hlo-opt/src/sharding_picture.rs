//! `--emit sharding-svg --around %NAME`: the mesh, and the tiles of a value with the devices that hold them.
//!
//! A tile has one colour in both parts. Where several devices hold copies of a tile, all of them stand in it; tiles of uneven dims that
//! hold nothing are dashed.

use crate::Failure;
use crate::shardings::{Said, Shardings};
use hlo_ir::axes::AxisSharding;
use hlo_ir::infer::ShapeText;
use hlo_ir::shape::Dims;
use hlo_ir::{ArrayShape, InstId, Module};
use std::collections::BTreeMap;
use std::fmt::Write;

const LEFT: f64 = 24.0;
const CELL: f64 = 44.0;
const TILE_HEIGHT: f64 = 46.0;
const CHARACTER: f64 = 6.6;
/// More tiles than a person can look at.
const MAX_TILES: i64 = 1024;
/// Pale colours, on which dark text reads well whatever is around them.
const COLOURS: [&str; 12] = [
    "#a6cee3", "#fdbf6f", "#b2df8a", "#cab2d6", "#fb9a99", "#ffff99", "#8dd3c7", "#d9d9d9", "#fccde5", "#bebada",
    "#e5c494", "#ccebc5",
];
const STYLE: &str = "<style>text{font-family:sans-serif;font-size:12px;fill:#222}.in{fill:#111}.b{fill:#fff}.t{font-size:14px}\
                     .l{stroke:#555;stroke-width:1}@media(prefers-color-scheme:dark){text{fill:#ddd}.in{fill:#111}.b{fill:#1b1b1b}\
                     .l{stroke:#aaa}}</style>";

/// The picture of the value of an instruction; of a tuple, of its first array.
///
/// # Errors
/// No instruction has this name, its value has no sharding, or there are too many tiles.
pub(crate) fn svg(module: &Module, around: Option<&str>) -> Result<String, Failure> {
    let Some(name) = around.map(|name| name.trim_start_matches('%')) else {
        return Err(Failure::Usage("--emit sharding-svg: expected --around %NAME, the value to draw".into()));
    };
    let mut all = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let Some(&inst) = all.find(|&&inst| module.inst_name(inst) == name) else {
        return Err(Failure::Usage(format!("--around: expected an instruction of the module, found `{name}`")));
    };
    let shardings = Shardings::of(module);
    let Some((leaf_idx, shape)) = first_array(module, inst) else {
        return Err(Failure::Usage(format!("--around: expected an array, found `{name}`, which has none")));
    };
    let Some(sharding) = shardings.leaf(inst, leaf_idx) else {
        return Err(Failure::Usage(format!("--around: expected a value with a sharding, found `{name}` without one")));
    };
    let title = format!("%{name} {}", ShapeText(module.shape(inst)));
    let said = shardings.read(&sharding, &shape);
    let (Said::Placed(_), Some((axes, names))) = (&said, shardings.axes(&sharding, &shape)) else {
        return Ok(Picture::default().finish(&title, &said.words()));
    };
    let n_tiles: i64 = axes.tiles().iter().product();
    if n_tiles > MAX_TILES {
        return Err(Failure::Usage(format!(
            "--emit sharding-svg: expected at most {MAX_TILES} tiles, found {n_tiles}"
        )));
    }
    let mut picture = Picture { y: 76.0, ..Picture::default() };
    let tiles = Tiles::of(&axes);
    picture.mesh(&axes, &names, &tiles);
    picture.value(&shape, &axes, &tiles);
    Ok(picture.finish(&title, &said.words()))
}

/// The first array of a value, with its number among the leaves.
fn first_array(module: &Module, inst: InstId) -> Option<(usize, ArrayShape)> {
    let (mut found, mut leaf_idx) = (None, 0);
    module.shape(inst).for_each_leaf(&mut |_, shape| {
        if let (None, Some(array)) = (&found, shape.as_array()) {
            found = Some((leaf_idx, array.clone()));
        }
        leaf_idx += 1;
    });
    found
}

/// The tile of each device, and the devices of each tile.
struct Tiles {
    of_device: Vec<Dims>,
    devices: BTreeMap<Dims, Vec<usize>>,
    numbers: BTreeMap<Dims, usize>,
}

impl Tiles {
    fn of(axes: &AxisSharding) -> Tiles {
        let of_device = axes.tile_of_device();
        let mut devices: BTreeMap<Dims, Vec<usize>> = BTreeMap::new();
        for (device, tile) in of_device.iter().enumerate() {
            devices.entry(tile.clone()).or_default().push(device);
        }
        let numbers = devices.keys().cloned().enumerate().map(|(number, tile)| (tile, number)).collect();
        Tiles { of_device, devices, numbers }
    }

    fn colour(&self, tile: &Dims) -> &'static str {
        COLOURS[self.numbers.get(tile).copied().unwrap_or(0) % COLOURS.len()]
    }
}

/// A picture under construction: what is drawn, how far it goes to the right, and where the next part begins.
#[derive(Default)]
struct Picture {
    body: String,
    width: f64,
    y: f64,
}

impl Picture {
    fn text(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let _ = writeln!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\"{class}>{}</text>", escaped(text));
        self.width = self.width.max(x + text.chars().count() as f64 * CHARACTER + LEFT);
    }

    fn cell(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: Option<&str>) {
        let (fill, dashes) = match fill {
            Some(fill) => (fill, ""),
            None => ("none", " stroke-dasharray=\"4 3\""),
        };
        let _ = writeln!(
            self.body,
            "<rect class=\"l\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"{dashes}/>"
        );
        self.width = self.width.max(x + width + LEFT);
    }

    /// The devices of the mesh: the last axis to the right, all others down.
    fn mesh(&mut self, axes: &AxisSharding, names: &[(String, i64)], tiles: &Tiles) {
        let list: Vec<String> = names.iter().map(|(name, size)| format!("{name} ({size})")).collect();
        self.text((LEFT, self.y), "t", &format!("mesh: {}", list.join(" \u{d7} ")));
        let n_columns = axes.mesh.sizes.last().copied().unwrap_or(1).max(1) as usize;
        let top = self.y + 28.0;
        if let Some((name, _)) = names.last() {
            self.text((LEFT + 60.0, top - 6.0), "", &format!("{name} \u{2192}"));
        }
        let outer = names.split_last().map_or(&[][..], |(_, outer)| outer);
        for (row, devices) in axes.mesh.devices.chunks(n_columns).enumerate() {
            let y = top + CELL * row as f64;
            let mut rest = row as i64;
            let mut places: Vec<String> = outer
                .iter()
                .rev()
                .map(|(_, size)| {
                    let place = rest % size.max(&1);
                    rest /= size.max(&1);
                    place.to_string()
                })
                .collect();
            places.reverse();
            self.text((LEFT, y + CELL / 2.0 + 4.0), "", &places.join(","));
            for (column, &device) in devices.iter().enumerate() {
                let x = LEFT + 60.0 + CELL * column as f64;
                let fill = tiles.of_device.get(device as usize).map(|tile| tiles.colour(tile));
                self.cell((x, y), (CELL, CELL), fill);
                self.text((x + CELL / 2.0 - 7.0, y + CELL / 2.0 + 4.0), "in", &device.to_string());
            }
        }
        self.y = top + CELL * axes.mesh.devices.chunks(n_columns).len() as f64 + 36.0;
    }

    /// The tiles of the value: one dim down, one to the right, and a part of the picture for each place along further dims that are cut.
    fn value(&mut self, shape: &ArrayShape, axes: &AxisSharding, tiles: &Tiles) {
        let counts = axes.tiles();
        let mut shown: Vec<usize> = (0..counts.len()).filter(|&dim| counts[dim] > 1).collect();
        let others = (0..counts.len()).filter(|&dim| counts[dim] <= 1);
        shown.extend(others);
        let mut pair = [shown.first().copied(), shown.get(1).copied()];
        pair.sort_by_key(|dim| dim.unwrap_or(usize::MAX));
        let [down, right] = pair;
        let count = |dim: Option<usize>| dim.and_then(|dim| counts.get(dim)).copied().unwrap_or(1);
        let size_of =
            |dim: usize| shape.dims[dim] / counts[dim].max(1) + i64::from(shape.dims[dim] % counts[dim].max(1) != 0);
        let range_of = |tile: &Dims, dim: usize| {
            let (start, size) = (tile[dim] * size_of(dim), shape.dims[dim]);
            format!("{}:{}", start.min(size), (start + size_of(dim)).min(size))
        };
        let range = |tile: &Dims| {
            let ranges: Vec<String> = [down, right].into_iter().flatten().map(|dim| range_of(tile, dim)).collect();
            format!("[{}]", ranges.join(", "))
        };
        let characters =
            |(tile, list): (&Dims, &Vec<usize>)| devices_text(list).chars().count().max(range(tile).chars().count());
        let most = tiles.devices.iter().map(characters).max().unwrap_or(1);
        let width = (most as f64 * (CHARACTER + 0.4) + 14.0).max(72.0);
        let mut slabs: BTreeMap<Vec<(usize, i64)>, Vec<&Dims>> = BTreeMap::new();
        for tile in tiles.devices.keys() {
            let is_shown = |dim: &usize| Some(*dim) == down || Some(*dim) == right;
            let slab = (0..counts.len()).filter(|dim| counts[*dim] > 1 && !is_shown(dim)).map(|dim| (dim, tile[dim]));
            slabs.entry(slab.collect()).or_default().push(tile);
        }
        let dim_text = |dim: Option<usize>| dim.map_or(String::new(), |dim| format!("dim {dim} ({})", shape.dims[dim]));
        self.text(
            (LEFT, self.y),
            "t",
            &format!("tiles of {}", shape_text(&(0..counts.len()).map(size_of).collect::<Vec<_>>())),
        );
        for (slab, members) in slabs {
            self.y += 26.0;
            let place: Vec<String> = slab.iter().map(|(dim, k)| format!("dim {dim}: tile {k}")).collect();
            let arrows = match (down, right) {
                (Some(_), Some(_)) => {
                    format!("{} \u{2193}   {} \u{2192}   {}", dim_text(down), dim_text(right), place.join(", "))
                }
                (Some(_), None) => format!("{} \u{2193}", dim_text(down)),
                (None, _) => String::new(),
            };
            self.text((LEFT, self.y), "", &arrows);
            self.y += 8.0;
            for tile in members {
                let at = |dim: Option<usize>| dim.map_or(0, |dim| tile[dim]);
                let corner = (LEFT + width * at(right) as f64, self.y + TILE_HEIGHT * at(down) as f64);
                let is_empty = (0..counts.len()).any(|dim| tile[dim] * size_of(dim) >= shape.dims[dim]);
                self.cell(corner, (width, TILE_HEIGHT), (!is_empty).then(|| tiles.colour(tile)));
                let class = if is_empty { "" } else { "in" };
                let devices = tiles.devices.get(tile).map(|list| devices_text(list)).unwrap_or_default();
                self.text((corner.0 + 6.0, corner.1 + 18.0), class, &devices);
                self.text((corner.0 + 6.0, corner.1 + 36.0), class, &range(tile));
            }
            self.y += TILE_HEIGHT * count(down) as f64;
        }
        self.y += 16.0;
    }

    fn finish(mut self, title: &str, words: &str) -> String {
        self.text((LEFT, 26.0), "t", title);
        self.text((LEFT, 48.0), "", words);
        let (width, height) = (self.width, self.y.max(64.0));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\">\n{STYLE}\n\
             <rect class=\"b\" width=\"100%\" height=\"100%\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// `0 1 2 3`, or where they follow one another at one distance `0, 2 … 14`.
fn devices_text(devices: &[usize]) -> String {
    let step = devices.get(1).map_or(1, |second| second - devices[0]);
    let is_row = devices.windows(2).all(|pair| pair[1] - pair[0] == step);
    match devices {
        [first, second, .., last] if is_row && devices.len() > 4 => {
            format!("{first}, {second} \u{2026} {last} ({} devices)", devices.len())
        }
        _ => devices.iter().map(usize::to_string).collect::<Vec<_>>().join(" "),
    }
}

fn shape_text(dims: &[i64]) -> String {
    let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
    format!("[{}]", dims.join(","))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
