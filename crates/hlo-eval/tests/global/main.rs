//! Global programs in the evaluator: manual regions in both forms, in calls, loops and branches, along some axes or all; and the tiles that per-device
//! programs take of their values.

mod regions;
mod tiles;

use hlo_eval::global::{GlobalProgram, WholeOutputs};
use hlo_eval::{EvalError, EvalOptions, Inputs, entry_leaves};
use hlo_ir::{Literal, Module, Scalar};
use std::sync::Arc;

/// Reducers that the programs call.
pub(crate) const REDUCERS: &str = "%add (x: f32[], y: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n  \
                        ROOT %s = f32[] add(%x, %y)\n}\n";
/// Groups of all four devices.
const ALL: &str = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add";

pub(crate) fn parsed(text: &str) -> Module {
    let module = hlo_text::parse_module(text).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module;
    hlo_ir::verify::verify(&module).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    module
}

/// A module with these lines in its entry, and these computations before it. `ALL` is all devices, `SHARDINGS(…)` and `AXES(…)` are Shardy's attributes.
pub(crate) fn module(header: &str, computations: &str, lines: &str) -> Module {
    let text = format!("HloModule m{header}\n\n{REDUCERS}\n{computations}\nENTRY %main {{\n{lines}\n}}\n");
    parsed(&shardy(&text).replace("ALL", ALL))
}

/// The short forms of Shardy's attributes written out.
fn shardy(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("SHARDY(") {
        out.push_str(&rest[..at]);
        let (short, after) = rest[at + "SHARDY(".len()..].split_once(')').unwrap();
        let [key, values, axes] = short.split('|').map(str::trim).collect::<Vec<_>>()[..] else { panic!("{short}") };
        let values: Vec<String> = values.split(';').map(|dims| format!("<@mesh, [{}]>", quoted(dims))).collect();
        out.push_str(&format!(
            "custom_call_has_side_effect=true, frontend_attributes={{xla.sdy.{key}=\"#sdy.sharding_per_value<[{}]>\",\
             xla.sdy.manual_axes=\"#sdy<manual_axes{{{}}}>\"}}",
            values.join(", "),
            quoted(axes)
        ));
        rest = after;
    }
    out + rest
}

/// Names of axes as they stand within an attribute.
fn quoted(text: &str) -> String {
    text.replace('\'', "\\\"")
}

/// The header of a module with a mesh.
pub(crate) fn mesh(axes: &str) -> String {
    let axes: Vec<String> =
        axes.split(' ').map(|axis| axis.replacen("=", "\"=", 1)).map(|a| format!("\"{a}")).collect();
    format!(", frontend_attributes={{xla.sdy.meshes={{mesh = #sdy.mesh<[{}]>}}}}", axes.join(", "))
}

/// The elements 1, 2, 3 and so on in the type and dims of each input.
pub(crate) fn counted(module: &Module) -> Inputs {
    let leaves = entry_leaves(module).into_iter().map(|leaf| {
        let mut array = Literal::zeros(leaf.shape.dtype, &leaf.shape.dims).unwrap();
        for i in 0..array.n_elems() {
            let number = i as i64 + 1;
            array.set(i, if leaf.shape.dtype.is_float() { Scalar::Float(number as f64) } else { Scalar::Int(number) });
        }
        vec![Arc::new(array)]
    });
    Inputs { leaves: leaves.collect() }
}

pub(crate) fn try_outputs(module: &Module) -> Result<WholeOutputs, EvalError> {
    GlobalProgram::of(module)?.run(&counted(module), &EvalOptions::default())
}

/// The elements of the first output.
pub(crate) fn outputs(module: &Module) -> Vec<f32> {
    elems(&try_outputs(module).unwrap().agreed().unwrap().leaves[0][0])
}

pub(crate) fn elems(array: &Literal) -> Vec<f32> {
    array.elems::<f32>().unwrap().to_vec()
}
