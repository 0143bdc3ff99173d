//! `--output-format`: in which language a module is printed.

use crate::Failure;
use clap::ValueEnum;
use hlo_ir::Module;
use hlo_proto::Kept;

/// The language of a printed module: HLO text, HloModuleProto, or the text format of the latter.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OutputFormat {
    Text,
    Proto,
    ProtoText,
}

impl OutputFormat {
    /// What a file of this format is called.
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            OutputFormat::Text => "main.hlo",
            OutputFormat::Proto => "main.hlo.pb",
            OutputFormat::ProtoText => "main.hlo.txtpb",
        }
    }
}

/// Says so before any work if the output cannot have its format; `is_shown`: it goes to a terminal.
///
/// # Errors
/// A plan as a proto, several modules as one proto, or a proto for a terminal.
pub(crate) fn check(format: OutputFormat, is_hlo: bool, n_parts: usize, is_shown: bool) -> Result<(), Failure> {
    if format == OutputFormat::Text {
        return Ok(());
    }
    let usage = |text: &str| Err(Failure::Usage(format!("--output-format: {text}")));
    if !is_hlo {
        return usage("expected text for what --emit prints, found a format of protos");
    }
    if n_parts > 1 {
        return usage("expected one module for a proto, found several with --split-input-file");
    }
    if format == OutputFormat::Proto && is_shown {
        return usage("expected -o FILE for a proto, found a terminal");
    }
    Ok(())
}

/// Most levels of tuples in a proto: readers take messages that are nested 100 deep, and a shape stands in an instruction in a computation in a
/// module.
const MAX_LEVELS: usize = 95;

/// A module as a proto or its text format, and a line about what of the input is not in it. One that has changed is written for all
/// readers, another as it came.
///
/// # Errors
/// A tuple that readers of protos refuse, or what the text format cannot say; none of the latter is known.
pub(crate) fn proto(
    module: &Module,
    kept: &Kept,
    format: OutputFormat,
    has_changed: bool,
) -> Result<(Vec<u8>, Option<String>), String> {
    let insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    if let Some(&deep) = insts.into_iter().find(|&&inst| module.shape(inst).n_levels() > MAX_LEVELS) {
        let (name, found) = (module.inst_name(deep), module.shape(deep).n_levels());
        return Err(format!("%{name}: expected at most {MAX_LEVELS} levels of tuples in a proto, found {found}"));
    }
    let write = if has_changed { hlo_proto::write_for_old_readers } else { hlo_proto::write };
    let written = write(module, kept);
    let n = written.n_dropped;
    let note = (n > 0).then(|| {
        let (fields, belong) = if n == 1 { ("field", "belongs") } else { ("fields", "belong") };
        format!("{n} {fields} of the input that HLO text has no words for {belong} to what has changed, and got lost")
    });
    let bytes = match format {
        OutputFormat::Text | OutputFormat::Proto => written.bytes,
        OutputFormat::ProtoText => hlo_proto::text::print_module(&written.bytes)?.into_bytes(),
    };
    Ok((bytes, note))
}
