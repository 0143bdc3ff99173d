//! Where compiled kernels lie: a folder of this user's alone, or one for this run.
//!
//! A shared object is code that runs in this process. It is loaded only from a folder, and as a file, that belong to this user and
//! that nobody else can write to, and only if it has the bytes that were written. Anything else is compiled anew.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, io};

/// Whether compiled kernels are kept for the next run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KernelCache {
    /// In `hlo-opt` below `XDG_CACHE_HOME`, or `.cache` of `HOME`; as [`KernelCache::Off`] where that is no safe folder.
    #[default]
    OfUser,
    /// In a folder of this run, which goes with it.
    Off,
}

/// A folder that nobody but this user can write to.
#[derive(Debug)]
pub(super) struct Folder {
    /// Where it is.
    pub(super) path: PathBuf,
    /// It is gone with this value.
    is_temporary: bool,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_temporary {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Folder {
    /// The folder for compiled kernels.
    ///
    /// # Errors
    /// No folder of this run's own can be made either.
    pub(super) fn find(cache: KernelCache) -> io::Result<Folder> {
        let kept = match cache {
            KernelCache::OfUser => cache_home(&|name| env::var_os(name)).and_then(|home| kept(&home.join("hlo-opt"))),
            KernelCache::Off => None,
        };
        match kept {
            Some(path) => Ok(Folder { path, is_temporary: false }),
            None => Folder::temporary(&env::temp_dir()),
        }
    }

    /// A new folder, under a name that nobody could know before.
    fn temporary(parent: &Path) -> io::Result<Folder> {
        static N_MADE: AtomicU64 = AtomicU64::new(0);
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let n = N_MADE.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("hlo-opt-{}-{time:x}-{n}", std::process::id()));
        // Fails where something of that name is there: nothing of somebody else is taken.
        make(&path, false)?;
        Ok(Folder { path, is_temporary: true })
    }
}

/// The parent of the cache. Empty and relative paths say nothing (XDG Base Directory Specification).
fn cache_home(environment: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| environment(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
}

/// The folder, made if need be; `None` where it cannot be made, or is not this user's alone.
fn kept(path: &Path) -> Option<PathBuf> {
    if !path.exists() {
        make(path, true).ok()?;
    }
    is_own_folder(path).then(|| path.to_owned())
}

/// Makes a folder that only this user can open.
fn make(path: &Path, with_parents: bool) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(with_parents);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Whether a path is a folder that belongs to this user and that nobody else can write to; no link.
fn is_own_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && belongs_to_user(&found) && is_closed(&found))
}

/// Whether a path is a regular file of this user; no link. Who can write to it is up to its folder.
pub(super) fn is_own_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && belongs_to_user(&found))
}

#[cfg(unix)]
fn belongs_to_user(found: &fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::uid(found) == rustix::process::geteuid().as_raw()
}

/// Whether nobody but its owner can write to it.
#[cfg(unix)]
fn is_closed(found: &fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::mode(found) & 0o022 == 0
}

#[cfg(not(unix))]
fn belongs_to_user(_found: &fs::Metadata) -> bool {
    true
}

#[cfg(not(unix))]
fn is_closed(_found: &fs::Metadata) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_name_the_cache() {
        let home = |xdg: Option<&str>, home: Option<&str>| {
            let (xdg, home) = (xdg.map(OsString::from), home.map(OsString::from));
            let known = move |name: &str| if name == "HOME" { home.clone() } else { xdg.clone() };
            cache_home(&known).map(|path| path.to_string_lossy().into_owned())
        };
        assert_eq!(home(Some("/x"), Some("/h")).as_deref(), Some("/x"));
        assert_eq!(home(Some(""), Some("/h")).as_deref(), Some("/h/.cache"));
        assert_eq!(home(Some("cache"), Some("/h")).as_deref(), Some("/h/.cache"));
        assert_eq!(home(None, None), None);
        assert_eq!(home(None, Some("")), None);
        assert_eq!(kept(Path::new("/dev/null/.cache/hlo-opt")), None);
    }

    #[cfg(unix)]
    #[test]
    fn folders_that_others_can_write_to_and_links_are_not_taken() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = Folder::temporary(&env::temp_dir()).expect("a folder");
        let own = folder.path.join("own");
        assert_eq!(kept(&own), Some(own.clone()));
        let mode = |path: &Path| fs::metadata(path).expect("the folder").permissions().mode() & 0o777;
        assert_eq!((mode(&own), mode(&folder.path)), (0o700, 0o700));
        symlink(&own, folder.path.join("link")).expect("a link");
        assert_eq!(kept(&folder.path.join("link")), None);
        for open in [0o770, 0o707, 0o777] {
            fs::set_permissions(&own, fs::Permissions::from_mode(open)).expect("the owner may");
            assert_eq!(kept(&own), None, "{open:o}");
        }
        let path = folder.path.clone();
        drop(folder);
        assert!(!path.exists());
    }
}
