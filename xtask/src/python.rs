//! Python environments (the oracle's, NVRTC's): made once under the build folder, and again when their requirements change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace;

/// The folder of the oracle's Python files.
pub(crate) fn oracle_dir() -> PathBuf {
    workspace::root().join("xtask/oracle")
}

/// The Python of the oracle's environment, which is made if need be.
pub(crate) fn interpreter() -> Result<PathBuf, String> {
    environment("xla-venv", &oracle_dir().join("requirements.txt"))
}

/// The Python of an environment that has the requirements of a file, which is made if need be.
pub(crate) fn environment(name: &str, requirements: &Path) -> Result<PathBuf, String> {
    let wanted = fs::read_to_string(requirements).map_err(|e| format!("{}: {e}", requirements.display()))?;
    environment_of(name, Path::new("python3"), &wanted)
}

/// A Python 3 of this minor version or a newer one that can make environments: on the path, or one of pyenv's.
fn at_least(minor: u32) -> Option<PathBuf> {
    let on_path = std::iter::once("python3".to_string()).chain((minor..minor + 4).map(|m| format!("python3.{m}")));
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")));
    let versions = pyenv.and_then(|root| fs::read_dir(root.join("versions")).ok());
    let mut own: Vec<PathBuf> =
        versions.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path().join("bin/python3"))).collect();
    own.sort();
    let works = |python: &PathBuf| {
        let asked = format!("import ensurepip, sys, venv; sys.exit(sys.version_info[:2] < (3, {minor}))");
        let silent = Command::new(python).args(["-c", &asked]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        silent.is_ok_and(|status| status.success())
    };
    on_path.map(PathBuf::from).chain(own).find(works)
}

/// A Python with this version of JAX, made if need be; `None` where no Python 3 of this minor version or a newer one is found. The
/// oracle's own version has its environment already.
pub(crate) fn with_jax(version: &str, minor: u32) -> Result<Option<PathBuf>, String> {
    let requirements = format!("jax=={version}\nnumpy\nml_dtypes\n");
    if fs::read_to_string(oracle_dir().join("requirements.txt")).is_ok_and(|own| own == requirements) {
        return interpreter().map(Some);
    }
    let base = at_least(minor);
    base.map(|base| environment_of(&format!("jax-{version}-venv"), &base, &requirements)).transpose()
}

/// A Python with this version of JAX and the packages that the tests of the Python package need, made if need be; `None` as in
/// [`with_jax`].
pub(crate) fn with_package_tests(version: &str, minor: u32) -> Result<Option<PathBuf>, String> {
    with_tests_and("package", version, minor, "")
}

/// As [`with_package_tests`], and XLA's compiler for NVIDIA's GPUs too.
pub(crate) fn with_gpu_compiler(version: &str, minor: u32) -> Result<Option<PathBuf>, String> {
    let plugins = format!("jax-cuda13-plugin=={version}\njax-cuda13-pjrt=={version}\n");
    let tools = "nvidia-cuda-nvcc>=13,<14\nnvidia-nvvm>=13,<14\n";
    with_tests_and("gpu-compile", version, minor, &(plugins + tools))
}

fn with_tests_and(name: &str, version: &str, minor: u32, more: &str) -> Result<Option<PathBuf>, String> {
    let file = workspace::root().join("crates/hlo-jax/tests/requirements.txt");
    let packages = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let wanted = format!("jax=={version}\n{packages}{more}");
    let make = |base: PathBuf| environment_of(&format!("{name}-{version}-venv"), &base, &wanted);
    at_least(minor).map(make).transpose()
}

/// The Python of an environment that has these requirements, which is made with `base` if need be.
fn environment_of(name: &str, base: &Path, wanted: &str) -> Result<PathBuf, String> {
    let venv = workspace::target_dir().join(name);
    let python = venv.join("bin/python");
    let stamp = venv.join("requirements.installed");
    // Checks that run beside each other ask for the same environment: one makes it. The lock goes with the file.
    let lock_file = workspace::target_dir().join(format!("{name}.lock"));
    let lock = fs::File::create(&lock_file).map_err(|e| format!("{}: {e}", lock_file.display()))?;
    lock.lock().map_err(|e| format!("{}: {e}", lock_file.display()))?;
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) && python.exists() {
        return Ok(python);
    }
    eprintln!("making a Python environment in {}", venv.display());
    let make = Command::new(base).args(["-m", "venv", "--clear"]).arg(&venv).stdout(Stdio::null()).status();
    if !make.map_err(|e| format!("{}: {e}", base.display()))?.success() {
        return Err("python3 -m venv failed (on Debian and Ubuntu: apt-get install python3-venv)".into());
    }
    let requirements = venv.join("requirements.txt");
    fs::write(&requirements, wanted).map_err(|e| format!("{}: {e}", requirements.display()))?;
    let install = Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
        .arg(&requirements)
        .status();
    if !install.map_err(|e| format!("pip: {e}"))?.success() {
        return Err(format!("pip could not install {}", wanted.split_whitespace().collect::<Vec<_>>().join(", ")));
    }
    fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))?;
    Ok(python)
}
