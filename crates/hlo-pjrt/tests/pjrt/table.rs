//! Which table the framework gets.
#![allow(unsafe_code)] // Wraps tables that the tests made.

use crate::fake::{FILLER, TABLE_BYTES, only_line, set_word, settings, table, word};
use hlo_pjrt::c_api::{CLIENT_COMPILE, ExtensionBase, FIRST_FUNCTION, PjrtApi};
use hlo_pjrt::{Level, Optimizer, Settings, wrap};
use std::ptr::{NonNull, null_mut};

fn wrapped(api: NonNull<PjrtApi>, settings: Settings) -> NonNull<PjrtApi> {
    // SAFETY: the table is never freed.
    unsafe { wrap(api, Optimizer::new(settings)) }
}

#[test]
fn a_copy_differs_in_one_function_whatever_its_size() {
    // The smallest that has the function, 0.81's, one that nobody knows yet, one that ends in the middle of a word.
    for n_bytes in [CLIENT_COMPILE + 8, TABLE_BYTES, 4096, CLIENT_COMPILE + 13] {
        let real = table(n_bytes, 0, null_mut());
        let before: Vec<usize> = (0..n_bytes / 8).map(|i| word(real, i * 8)).collect();
        let copy = wrapped(real, settings().0);
        assert_ne!(copy, real, "{n_bytes}");
        for (i, &was) in before.iter().enumerate() {
            let now = word(copy, i * 8);
            assert_eq!(now == was, i * 8 != CLIENT_COMPILE, "{n_bytes} bytes, word {i}: {was:#x} {now:#x}");
            assert_eq!(word(real, i * 8), was, "the plugin's own table stays");
        }
    }
}

#[test]
fn tables_that_nobody_knows_stay_as_they_are() {
    let null_compile = table(TABLE_BYTES, 0, null_mut());
    set_word(null_compile, CLIENT_COMPILE, 0);
    for (real, why) in [
        (table(CLIENT_COMPILE, 0, null_mut()), "PJRT_Client_Compile"),
        (table(CLIENT_COMPILE + 7, 0, null_mut()), "PJRT_Client_Compile"),
        (null_compile, "PJRT_Client_Compile"),
        (table(FIRST_FUNCTION - 1, 0, null_mut()), "39"),
        (table(0, 0, null_mut()), "found 0"),
        (table(TABLE_BYTES, 1, null_mut()), "1.81"),
        (table(1 << 20, 0, null_mut()), "1048576"),
    ] {
        let (settings, lines) = settings();
        assert_eq!(wrapped(real, settings), real, "{why}");
        let line = only_line(&lines, Level::Warning);
        assert!(line.starts_with("nothing is optimized: ") && line.contains(why), "expected `{why}`, found `{line}`");
    }
}

#[test]
fn off_is_the_plugin_itself() {
    let real = table(TABLE_BYTES, 0, null_mut());
    let (settings, lines) = settings();
    assert_eq!(wrapped(real, Settings { is_off: true, ..settings }), real);
    assert!(lines.lock().expect("no panic").is_empty());
}

#[test]
fn a_chain_of_other_extensions_is_walked_to_its_end() {
    let chain = |links: &[(usize, i32)]| {
        let mut next = null_mut();
        for &(struct_size, kind) in links.iter().rev() {
            next = Box::leak(Box::new([
                ExtensionBase { struct_size, kind, next },
                ExtensionBase { struct_size: FILLER, kind: 0, next: null_mut() },
            ]))
            .as_mut_ptr();
        }
        next
    };
    // Kinds that are not ours; ours, too small to have a function; a link too small to lead on.
    for links in [&[(24, 5), (40, 99), (24, -1)][..], &[(24, 24)], &[(31, 24)], &[(16, 3), (40, 24)]] {
        let real = table(TABLE_BYTES, 0, chain(links));
        let copy = wrapped(real, settings().0);
        assert_ne!(copy, real, "{links:?}: intercepted");
    }
}

#[test]
fn a_chain_that_leads_back_into_itself_ends() {
    let link = Box::leak(Box::new(ExtensionBase { struct_size: 24, kind: 3, next: null_mut() }));
    link.next = &raw mut *link;
    let real = table(TABLE_BYTES, 0, &raw mut *link);
    assert_ne!(wrapped(real, settings().0), real);
}
