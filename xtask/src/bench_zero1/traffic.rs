//! What a module's collectives move.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use hlo_analysis::Analyses;
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::code::code_computations;
use hlo_ir::op::Effects;

/// For each kind of collective: executions in one run of the module, and bytes of the whole tensors over these.
#[derive(PartialEq, Debug, Default)]
pub(super) struct Traffic {
    by_kind: BTreeMap<&'static str, (u64, u64)>,
}

impl Traffic {
    /// The traffic of a file's module.
    pub(super) fn of_file(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let parsed = hlo_text::parse_module(&text).map_err(|diagnostics| {
            let first = diagnostics.first().map_or("no message", |d| &d.message);
            format!("{}: {first}", file.display())
        })?;
        let module = parsed.module;
        let frequencies = Analyses::new(ParamFacts::default()).frequencies(&module);
        let mut traffic = Self::default();
        for comp in code_computations(&module) {
            let n_runs = frequencies.of(comp).round() as u64;
            for &inst in &module.comp(comp).insts {
                let instruction = module.inst(inst);
                if instruction.opcode.row().effects != Effects::Communicates {
                    continue;
                }
                let operands = instruction.operands.iter().map(|&o| module.shape(o).size_bytes());
                let whole_bytes = operands.sum::<u64>().max(module.shape(inst).size_bytes());
                let entry = traffic.by_kind.entry(instruction.opcode.name()).or_default();
                *entry = (entry.0 + n_runs, entry.1 + n_runs * whole_bytes);
            }
        }
        Ok(traffic)
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.by_kind.iter().map(|(kind, (n, bytes))| format!("{n} {kind} of {:.1} MiB", mib(*bytes)));
        f.write_str(&parts.collect::<Vec<_>>().join(", "))
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 20) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOP: &str = "HloModule m, replica_count=2

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

body {
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[4] all-reduce(x), replica_groups={{0,1}}, to_apply=add
  ROOT t = (s32[], f32[4]) tuple(j, y)
}

condition {
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(7)
  ROOT lt = pred[] compare(i, n), direction=LT
}

ENTRY main {
  x = f32[4] parameter(0)
  i = s32[] constant(0)
  t = (s32[], f32[4]) tuple(i, x)
  w = (s32[], f32[4]) while(t), condition=condition, body=body
  y = f32[4] get-tuple-element(w), index=1
  ROOT g = f32[8] all-gather(y), replica_groups={{0,1}}, dimensions={0}
}
";

    #[test]
    fn collectives_in_a_loop_count_for_every_trip() {
        let file = std::env::temp_dir().join(format!("xtask-traffic-{}.hlo", std::process::id()));
        std::fs::write(&file, LOOP).expect("written");
        let traffic = Traffic::of_file(&file).expect("a valid module");
        std::fs::remove_file(&file).expect("removed");
        let expected = [("all-gather", (1, 32)), ("all-reduce", (7, 7 * 16))].into_iter().collect();
        assert_eq!(traffic, Traffic { by_kind: expected });
    }
}
