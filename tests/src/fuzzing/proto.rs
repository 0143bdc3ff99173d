//! Bytes as a proto: what is read and verified is written, and the bytes are read, verified and written as the same bytes. The text
//! need not be that of the first module: what has no layout is written with one.

use super::in_words;
use hlo_ir::verify::verify;

pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let Ok(parsed) = hlo_proto::read(bytes) else { return Ok(()) };
    if verify(&parsed.module).is_err() {
        return Ok(());
    }
    let written = hlo_proto::write(&parsed.module, &parsed.kept);
    let again =
        hlo_proto::read(&written.bytes).map_err(|diag| format!("what was written is refused: {}", diag.message))?;
    verify(&again.module).map_err(|diags| format!("what was written does not verify: {}", in_words(&diags)))?;
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
