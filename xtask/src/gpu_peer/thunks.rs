//! XLA's launches: the entries of its thunk sequence, except those that only hold or order others.

use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_ir::{CompId, Module, Opcode};

/// Entries that launch nothing themselves.
const CONTAINERS: [&str; 6] =
    ["kCommandBuffer", "kAsyncStart", "kAsyncDone", "kConditional", "kDynamicSliceFusion", "kSequential"];

/// How often a program launches something: entries of its thunk sequence, those of a loop as often as the final module says that it runs.
pub(super) fn n_launches(thunks: &str, module: &Module) -> Result<u64, String> {
    let mut trips = trip_counts(module)?.into_iter();
    // The loops around a line: their indent, their trips, and whether their condition is what is listed.
    let mut loops: Vec<(usize, u64, bool)> = Vec::new();
    let mut n = 0;
    for line in thunks.lines().filter(|line| !line.trim().is_empty()) {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if let Some(part) = ["condition:", "body:"].into_iter().find(|part| text.starts_with(part)) {
            let inner = loops.last_mut().ok_or("the thunk sequence: expected a loop around a body, found none")?;
            inner.2 = part == "condition:";
            continue;
        }
        let Some((_, entry)) = text.split_once(": ") else { continue };
        let kind = entry.split_whitespace().next().unwrap_or_default();
        while loops.last().is_some_and(|inner| indent <= inner.0) {
            loops.pop();
        }
        let n_runs: u64 = loops.iter().map(|&(_, n_trips, is_condition)| n_trips + u64::from(is_condition)).product();
        if kind == "kWhile" {
            let n_trips =
                trips.next().ok_or("the thunk sequence: expected as many loops as the module has, found more")?;
            loops.push((indent, n_trips, true));
        } else if !CONTAINERS.contains(&kind) {
            n += n_runs;
        }
    }
    Ok(n)
}

/// How often each loop of a scheduled module runs, in the order in which they are met.
fn trip_counts(module: &Module) -> Result<Vec<u64>, String> {
    let entry = module.entry().ok_or("the final module: expected an ENTRY computation, found none")?;
    let frequencies = Frequencies::compute(module, FrequencyOptions::default());
    let mut trips = Vec::new();
    add_loops_of(module, entry, &frequencies, &mut trips);
    Ok(trips)
}

fn add_loops_of(module: &Module, comp: CompId, frequencies: &Frequencies, trips: &mut Vec<u64>) {
    for &inst in &module.comp(comp).insts {
        let opcode = module.inst(inst).opcode;
        if opcode == Opcode::While {
            trips.push(frequencies.trip_count(inst).map_or(1, |trips| trips.count));
        }
        if [Opcode::While, Opcode::Call, Opcode::Conditional].contains(&opcode) {
            module.called(inst).into_iter().for_each(|called| add_loops_of(module, called, frequencies, trips));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "
HloModule m, is_scheduled=true

%body (s: (s32[], f32[4])) -> (s32[], f32[4]) {
  %s = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[4] get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %y = f32[4] negate(%x)
  ROOT %t = (s32[], f32[4]) tuple(%next, %y)
}

%condition (c: (s32[], f32[4])) -> pred[] {
  %c = (s32[], f32[4]) parameter(0)
  %k = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(3)
  ROOT %less = pred[] compare(%k, %n), direction=LT
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4] parameter(0)
  %zero = s32[] constant(0)
  %init = (s32[], f32[4]) tuple(%zero, %p)
  %loop = (s32[], f32[4]) while(%init), condition=%condition, body=%body
  ROOT %r = f32[4] get-tuple-element(%loop), index=1
}
";

    const THUNKS: &str = "
000: kCommandBuffer [source | next=001 (1)]
    001: kCustomKernel [source | sink] loop_fusion grid: [1, 1, 1]
    002: kCopy [source | sink] kCopy
003: kWhile [prev=000 (1) | next=000 (1)]
condition:
    004: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1]
  body:
    005: kAsyncStart [source | sink] stream=computation_stream[0], async_id=5
        006: kDynamicSliceFusion [source | sink] params=1, results=1
            007: kCopy [source | sink] kCopy
    008: kAsyncDone [source | sink] async_id=5
    009: kCublasLtMatmul [source | sink] gemm
010: kCustomKernel [source | sink] loop_fusion_1 grid: [1, 1, 1]
";

    fn module(text: &str) -> Module {
        hlo_text::parse_module(text).expect("a module").module
    }

    #[test]
    fn a_loop_counts_as_often_as_it_runs_and_containers_do_not_count() {
        // Two before the loop, its condition four times, two of its body three times, one behind it.
        assert_eq!(n_launches(THUNKS, &module(MODULE)), Ok(2 + 4 + 2 * 3 + 1));
    }

    #[test]
    fn a_loop_that_the_module_does_not_have_is_an_error() {
        let without = "HloModule m\n\nENTRY %main {\n  ROOT %p = f32[4] parameter(0)\n}\n";
        assert!(n_launches(THUNKS, &module(without)).is_err());
    }
}
