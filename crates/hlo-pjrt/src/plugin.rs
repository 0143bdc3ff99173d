//! The entry of the shared object, and the plugin behind it.
#![allow(unsafe_code)] // Loads a shared object and calls its entry.

use crate::bounded::panic_text;
use crate::c_api::PjrtApi;
use crate::log::{Level, Log};
use crate::rewrite::Optimizer;
use crate::settings::{PLUGIN, Settings};
use crate::table::wrap;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::ptr::{NonNull, null};
use std::sync::OnceLock;

/// What frameworks look up in a plugin: the table of its functions, or null. A line on stderr says why it is null.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The name is part of the interface.
pub extern "C" fn GetPjrtApi() -> *const PjrtApi {
    // An address: pointers cannot be shared between threads.
    static API: OnceLock<usize> = OnceLock::new();
    let address = API.get_or_init(|| {
        let loaded = catch_unwind(load);
        let loaded = loaded.unwrap_or_else(|panic| Err(format!("internal error: {}", panic_text(&*panic))));
        match loaded {
            Ok(api) => api.as_ptr().expose_provenance(),
            Err(why) => {
                Log::to_stderr(Level::Warning).say(Level::Warning, &format!("no PJRT plugin: {why}"));
                0
            }
        }
    });
    if *address == 0 { null() } else { std::ptr::with_exposed_provenance(*address) }
}

/// The table for the framework.
///
/// # Errors
/// There is no plugin to wrap, or it cannot be loaded.
fn load() -> Result<NonNull<PjrtApi>, String> {
    let (settings, plugin) = Settings::from_environment();
    let path: PathBuf = plugin.ok_or(format!("expected the plugin to wrap in {PLUGIN}, found nothing"))?;
    let failed = |why: String| format!("{PLUGIN}={}: {why}", path.display());
    // SAFETY: the user names a PJRT plugin, whose initializers the framework would run as well.
    let library = unsafe { libloading::Library::new(&path) }.map_err(|error| failed(error.to_string()))?;
    // SAFETY: in a plugin this symbol has this type. A library without it is refused here.
    let entry = unsafe { library.get::<unsafe extern "C" fn() -> *mut PjrtApi>(b"GetPjrtApi\0") };
    let entry = *entry.map_err(|error| failed(format!("expected a PJRT plugin, found no entry: {error}")))?;
    if std::ptr::fn_addr_eq(entry, GetPjrtApi as extern "C" fn() -> *const PjrtApi) {
        // Its entry would wait for this one.
        return Err(failed("expected another plugin, found this one".into()));
    }
    // SAFETY: the entry takes nothing.
    let real = NonNull::new(unsafe { entry() }).ok_or_else(|| failed("its GetPjrtApi gives null".into()))?;
    // Its table is used until the process ends.
    std::mem::forget(library);
    // SAFETY: the library is never unloaded, so its table stays.
    Ok(unsafe { wrap(real, Optimizer::new(settings)) })
}
