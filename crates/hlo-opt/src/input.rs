//! Reading, splitting, parsing and verifying, with errors placed in the file they come from. What a file holds is told by its
//! bytes: HLO text, or a proto, each packed with gzip or not.

use crate::Failure;
use crate::console::Console;
use crate::folder::choose;
use hlo_analysis::program_kind::{DumpStage, KnownProgram, ProgramDecision, decide};
use hlo_ir::diag::{Diagnostic, Entity, SourceMap, Span};
use hlo_ir::{CompId, InstId, Module};
use hlo_pass::pipeline::nearest;
use hlo_proto::Kept;
use hlo_text::Parsed;
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The line between two modules of one file.
pub(crate) const SEPARATOR: &str = "// -----";

/// The largest input: places in it have 32 bits, and the largest modules have a thousandth of this.
const MAX_BYTES: u64 = 1 << 31;

/// What there is to read, up to a byte more than [`MAX_BYTES`].
fn read_capped(from: &mut dyn Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Says so if one of the main job's files is not there. A first word that no file has may be a command, misspelled.
///
/// # Errors
/// A file that is missing, or a first word that is neither a file nor a command.
pub(crate) fn expect_files(paths: &[PathBuf]) -> Result<(), Failure> {
    let is_missing = |path: &&PathBuf| path.as_path() != Path::new("-") && std::fs::metadata(path).is_err();
    let missing: Vec<&PathBuf> = paths.iter().filter(is_missing).collect();
    let Some(first) = missing.first() else { return Ok(()) };
    let word = first.to_string_lossy();
    let is_word = word.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
    if is_word && paths.first() == Some(first) {
        let commands: Vec<String> = crate::arguments::command_names();
        let near = nearest(&word, commands.iter().map(String::as_str));
        let help = near.map_or_else(
            || format!("the commands are {}", commands.join(", ")),
            |near| format!("did you mean `{near}`?"),
        );
        return Err(Failure::Usage(format!("expected a file or a command, found `{word}`, which is neither; {help}")));
    }
    let failed = |path: &PathBuf| match std::fs::metadata(path) {
        Ok(_) => format!("cannot read `{}`", path.display()),
        Err(error) => format!("cannot read `{}`: {error}", path.display()),
    };
    Err(Failure::File(missing.into_iter().map(failed).collect::<Vec<_>>().join("; ")))
}

/// A file as read.
pub(crate) struct Source {
    /// Its name in messages.
    pub name: String,
    bytes: Vec<u8>,
}

/// A module's part of a file: the whole file, or what stands between two separators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'s> {
    start: usize,
    bytes: &'s [u8],
}

/// Where the lines of a file begin.
pub(crate) struct Lines<'s> {
    bytes: &'s [u8],
    starts: Vec<usize>,
}

/// A verified module and what is needed to say where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// The module.
    pub module: Module,
    /// What a proto said that the module cannot hold.
    pub kept: Kept,
    /// The module's kind, by the user's word, its file's name and its text; `None` until it is completed.
    pub program: Option<ProgramDecision>,
    sources: SourceMap,
    n_inst_slots: usize,
    n_comp_slots: usize,
}

impl Source {
    /// Reads a file, or stdin for `-`; of a folder, the module of the training step on that side of XLA's partitioner.
    ///
    /// # Errors
    /// The file cannot be read; no step or several are in the folder.
    pub(crate) fn read(path: &Path, side: DumpStage, console: &mut Console<'_>) -> Result<Source, Failure> {
        let stdin = Path::new("-");
        if path != stdin && path.is_dir() {
            return Source::read(&choose(&[path.to_path_buf()], side, console)?, side, console);
        }
        let (name, read) = match path == stdin {
            true => ("<stdin>".to_string(), read_capped(console.stdin)),
            false => (path.display().to_string(), File::open(path).and_then(|mut file| read_capped(&mut file))),
        };
        match read {
            Ok(bytes) => Source::of_bytes(name, bytes),
            Err(error) => Err(Failure::File(format!("cannot read `{name}`: {error}"))),
        }
    }

    /// Takes what is in memory, packed with gzip or not.
    ///
    /// # Errors
    /// More than [`MAX_BYTES`], or bytes that cannot be unpacked.
    pub(crate) fn of_bytes(name: String, bytes: Vec<u8>) -> Result<Source, Failure> {
        if bytes.len() as u64 > MAX_BYTES {
            return Err(Failure::File(format!("cannot read `{name}`: expected at most {MAX_BYTES} bytes, found more")));
        }
        match hlo_proto::unzip(bytes, MAX_BYTES) {
            Ok(bytes) => Ok(Source { name, bytes }),
            Err(error) => Err(Failure::File(format!("cannot read `{name}`: {error}"))),
        }
    }

    /// What stands behind a module that a pass made: nothing.
    pub(crate) fn made() -> Source {
        Source { name: "<made by a pass>".into(), bytes: Vec::new() }
    }

    /// Reads the one file of several that holds the step; of one, that file.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub(crate) fn of(paths: &[PathBuf], side: DumpStage, console: &mut Console<'_>) -> Result<Source, Failure> {
        let place = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let mut seen = HashSet::new();
        let distinct: Vec<PathBuf> = paths.iter().filter(|path| seen.insert(place(path))).cloned().collect();
        match distinct.as_slice() {
            [only] => Source::read(only, side, console),
            several => Source::read(&choose(several, side, console)?, side, console),
        }
    }

    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The whole file as one part.
    pub(crate) fn whole(&self) -> Part<'_> {
        Part { start: 0, bytes: &self.bytes }
    }

    /// The parts between separator lines, without blank ones.
    pub(crate) fn parts(&self) -> Vec<Part<'_>> {
        if hlo_proto::is_binary(&self.bytes) {
            return vec![self.whole()];
        }
        let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
        for line in self.bytes.split_inclusive(|&b| b == b'\n') {
            if line.trim_ascii_end() == SEPARATOR.as_bytes() {
                parts.push(Part { start, bytes: &self.bytes[start..at] });
                start = at + line.len();
            }
            at += line.len();
        }
        parts.push(Part { start, bytes: &self.bytes[start..] });
        parts.retain(|part| !part.bytes.trim_ascii().is_empty());
        if parts.is_empty() { vec![self.whole()] } else { parts }
    }

    /// Parses and verifies a part.
    ///
    /// # Errors
    /// The rendered diagnostics.
    pub(crate) fn load(&self, part: Part<'_>, has_color: bool) -> Result<Loaded, Failure> {
        if let Some(sentence) = other_language(part.bytes) {
            return Err(Failure::File(format!("`{}`: {sentence}", self.name)));
        }
        let failure = |diags| Failure::Diagnostics(self.render(part, None, diags, has_color));
        let loaded = if hlo_proto::is_binary(part.bytes) {
            let hlo_proto::Parsed { module, kept } = hlo_proto::read(part.bytes).map_err(|diag| failure(vec![diag]))?;
            // A proto has no lines to point to: messages name instructions.
            Loaded { kept, ..Loaded::made(module) }
        } else {
            let Parsed { module, sources } = hlo_text::parse_bytes(part.bytes).map_err(failure)?;
            let (n_inst_slots, n_comp_slots) = (module.n_inst_slots(), module.n_comp_slots());
            Loaded { module, kept: Kept::default(), program: None, sources, n_inst_slots, n_comp_slots }
        };
        self.verify(part, &loaded, has_color).map(|()| loaded)
    }

    /// Verifies a module that was read from a part.
    ///
    /// # Errors
    /// The rendered diagnostics.
    pub(crate) fn verify(&self, part: Part<'_>, loaded: &Loaded, has_color: bool) -> Result<(), Failure> {
        let found = hlo_ir::verify::verify(&loaded.module);
        found.map_err(|diags| Failure::Diagnostics(self.render(part, Some(loaded), diags, has_color)))
    }

    /// The lines of the file, to place many entities.
    pub(crate) fn lines(&self) -> Lines<'_> {
        let ends = self.bytes.iter().enumerate().filter(|(_, b)| **b == b'\n');
        Lines { bytes: &self.bytes, starts: std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect() }
    }

    /// Diagnostics about a part as text, placed in the whole file. Entities get the place of their names.
    pub(crate) fn render(
        &self,
        part: Part<'_>,
        loaded: Option<&Loaded>,
        mut diags: Vec<Diagnostic>,
        has_color: bool,
    ) -> String {
        for diag in &mut diags {
            let span = diag.span.or_else(|| loaded?.place(diag.entity));
            let shift = |at: u32| u32::try_from(part.start).map_or(u32::MAX, |start| at.saturating_add(start));
            diag.span = span.map(|span| Span { start: shift(span.start), end: shift(span.end) });
        }
        let (has_place, has_none): (Vec<_>, Vec<_>) = diags.into_iter().partition(|d| d.span.is_some());
        let text = if has_place.is_empty() { "".into() } else { String::from_utf8_lossy(&self.bytes) };
        let mut out = hlo_text::render(&has_place, &self.name, &text, has_color);
        for diag in has_none {
            let named = Diagnostic { message: format!("{}: {}", self.name, diag.message), ..diag };
            out.push_str(&hlo_text::render(&[named], &self.name, "", has_color));
        }
        out
    }
}

impl Lines<'_> {
    /// 1-based line and column, in characters, of an instruction's name; `None` for what was not read.
    pub(crate) fn place(&self, part: Part<'_>, loaded: &Loaded, inst: InstId) -> Option<(usize, usize)> {
        let at = part.start + loaded.place_of_inst(inst)?.0 as usize;
        let line_idx = self.starts.partition_point(|&start| start <= at).checked_sub(1)?;
        let before = String::from_utf8_lossy(self.bytes.get(self.starts[line_idx]..at)?);
        Some((line_idx + 1, before.chars().count() + 1))
    }
}

impl Loaded {
    /// A module that a pass made; no text has its instructions.
    pub(crate) fn made(module: Module) -> Loaded {
        let (kept, sources) = (Kept::default(), SourceMap::default());
        Loaded { module, kept, program: None, sources, n_inst_slots: 0, n_comp_slots: 0 }
    }

    /// The module's kind.
    pub(crate) fn decision(&self) -> ProgramDecision {
        self.program.unwrap_or_else(|| decide(&self.module, None, None))
    }

    /// The facts about the module that its text does not say.
    pub(crate) fn known_program(&self) -> Option<KnownProgram> {
        self.program.and_then(|decision| KnownProgram::of(decision, &self.module))
    }

    /// Where an entity's name stands in its part; `None` for the module and for what passes added.
    fn place(&self, entity: Entity) -> Option<Span> {
        let (start, len) = match entity {
            Entity::Module => return None,
            Entity::Comp(comp) => self.place_of_comp(comp)?,
            Entity::Inst(inst) => self.place_of_inst(inst)?,
        };
        Some(Span { start, end: start.saturating_add(len as u32) })
    }

    fn place_of_comp(&self, comp: CompId) -> Option<(u32, usize)> {
        let is_read = (comp.as_u32() as usize) < self.n_comp_slots;
        let start = self.sources.comps[comp];
        (is_read && start != u32::MAX).then(|| (start, self.module.comp_name(comp).len()))
    }

    fn place_of_inst(&self, inst: InstId) -> Option<(u32, usize)> {
        let is_read = (inst.as_u32() as usize) < self.n_inst_slots;
        let start = self.sources.insts[inst];
        (is_read && start != u32::MAX).then(|| (start, self.module.inst_name(inst).len()))
    }
}

/// What to say of a file in MLIR, as text or as bytecode, of a proto's text format, and of text that is not UTF-8.
fn other_language(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Some(
            "expected UTF-8, found UTF-16, as PowerShell's `>` writes it; there `| Out-File -Encoding utf8` writes UTF-8",
        );
    }
    let text = bytes.trim_ascii_start();
    // The first field that a module or what wraps it has.
    if [&b"name: \""[..], b"hlo_module {", b"entry_computation_name: \"", b"computations {"]
        .iter()
        .any(|start| text.starts_with(start))
    {
        return Some(
            "expected HLO text or an HloModuleProto, found a proto's text format, which is written and not read; --output-format proto or text writes what is read",
        );
    }
    let starts = [&b"module @"[..], b"module {", b"module attributes", b"#loc", b"builtin.module", b"ML\xefR"];
    starts.iter().any(|start| text.starts_with(start)).then_some(
        "expected HLO text or an HloModuleProto, found MLIR such as StableHLO; convert it: in JAX \
         `jax.jit(f).lower(...).compiler_ir('hlo').as_hlo_text()`, elsewhere \
         `stablehlo-translate --stablehlo-to-hlo-text`",
    )
}

/// Reads, parses and verifies one module.
///
/// # Errors
/// The file cannot be read or is no valid module.
pub(crate) fn load_one(path: &Path, console: &mut Console<'_>) -> Result<Module, Failure> {
    let source = Source::read(path, DumpStage::AfterPartitioner, console)?;
    source.load(source.whole(), console.has_color).map(|loaded| loaded.module)
}
