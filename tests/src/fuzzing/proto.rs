//! Bytes as a proto: what is read and verified is written, and the bytes are read and written as the same bytes.

use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::verify::verify;

pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let Ok(parsed) = hlo_proto::read(bytes) else { return Ok(()) };
    if verify(&parsed.module).is_err() {
        return Ok(());
    }
    let written = hlo_proto::write(&parsed.module, &parsed.kept);
    let again =
        hlo_proto::read(&written.bytes).map_err(|diag| format!("what was written is refused: {}", diag.message))?;
    let print = |module: &Module| print_module(module, &PrintOptions::default());
    let (text, text_again) = (print(&parsed.module), print(&again.module));
    if text != text_again {
        return Err(format!("read again: {}", crate::first_difference(&text_again, &text)));
    }
    let rewritten = hlo_proto::write(&again.module, &again.kept);
    match rewritten.bytes == written.bytes {
        true => Ok(()),
        false => {
            let at = written.bytes.iter().zip(&rewritten.bytes).take_while(|(a, b)| a == b).count();
            let (found, expected) = (rewritten.bytes.len(), written.bytes.len());
            Err(format!("written again: byte {at} is the first that differs; expected {expected} bytes, found {found}"))
        }
    }
}
