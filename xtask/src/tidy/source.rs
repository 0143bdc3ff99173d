//! The tree's text files, and its Rust files parsed.

use std::fs;
use std::path::{Path, PathBuf};

use super::Finding;

/// Names that are not part of the sources (`.git` is a file in a linked worktree).
const SKIPPED: [&str; 5] = ["target", ".git", ".venv", "__pycache__", "node_modules"];

/// All text files of the workspace.
pub(super) struct Tree {
    root: PathBuf,
    /// Sorted by path.
    pub files: Vec<TextFile>,
}

/// One text file.
pub(super) struct TextFile {
    /// Relative to the root, with `/`.
    pub path: String,
    /// The whole text.
    pub text: String,
    /// The syntax tree, if this is a Rust file that parses.
    pub rust: Option<syn::File>,
}

impl Tree {
    /// Reads every UTF-8 file below the root.
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let mut tree = Self { root: root.to_path_buf(), files: Vec::new() };
        tree.read_folder(root)?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// A tree of these files alone.
    #[cfg(test)]
    pub(super) fn of(files: Vec<TextFile>) -> Self {
        Self { root: PathBuf::new(), files }
    }

    fn read_folder(&mut self, folder: &Path) -> Result<(), String> {
        let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for entry in entries {
            let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if SKIPPED.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                self.read_folder(&path)?;
            } else if let Ok(text) = fs::read_to_string(&path) {
                let relative = path.strip_prefix(&self.root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
                let rust = if name.ends_with(".rs") { syn::parse_file(&text).ok() } else { None };
                self.files.push(TextFile { path: relative, text, rust });
            }
        }
        Ok(())
    }

    /// Whether a file or folder exists.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// The text of a file.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|f| f.path == path).map(|f| f.text.as_str())
    }

    /// The files below a folder.
    pub(super) fn below<'t>(&'t self, folder: &'t str) -> impl Iterator<Item = &'t TextFile> {
        self.files.iter().filter(move |f| f.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
    }

    /// The Rust files with their syntax trees.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&TextFile, &syn::File)> {
        self.files.iter().filter_map(|f| f.rust.as_ref().map(|rust| (f, rust)))
    }

    /// Whether a Rust file, or a module that it is part of, is declared by `#[cfg(test)] mod name;`.
    pub(super) fn is_only_tests(&self, file: &TextFile) -> bool {
        let parts: Vec<&str> = file.path.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
        (1..parts.len()).any(|n| {
            let (folder, name) = (parts[..n].join("/"), parts[n]);
            let declarers = [format!("{folder}/lib.rs"), format!("{folder}/mod.rs"), format!("{folder}.rs")];
            self.rust().any(|(f, rust)| declarers.contains(&f.path) && declares_tests(rust, name))
        })
    }

    /// Rust files that do not parse.
    pub(super) fn broken(&self) -> Vec<Finding> {
        let broken = self.files.iter().filter(|f| f.path.ends_with(".rs") && f.rust.is_none());
        broken.map(|f| Finding::new("rust-syntax", f.path.as_str(), "expected a Rust file that parses")).collect()
    }
}

/// Whether a file declares a module in a file of its own for tests alone.
fn declares_tests(rust: &syn::File, name: &str) -> bool {
    let is_for_tests = |attribute: &syn::Attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("cfg") && list.is_ok_and(|list| list.tokens.to_string() == "test")
    };
    let is_it = |item: &syn::Item| match item {
        syn::Item::Mod(module) => {
            module.content.is_none() && module.ident == name && module.attrs.iter().any(is_for_tests)
        }
        _ => false,
    };
    rust.items.iter().any(is_it)
}

impl TextFile {
    /// Lines before the first `#[cfg(test)]`, counted from 1.
    pub(super) fn lines_before_tests(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(i, line)| (i + 1, line));
        lines.take_while(|(_, line)| line.trim() != "#[cfg(test)]")
    }

    /// A place in this file.
    pub(super) fn at(&self, line: usize) -> String {
        format!("{}:{line}", self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_tests_are_found_by_their_declaration() {
        let file = |path: &str, text: &str| TextFile {
            path: path.to_string(),
            text: text.to_string(),
            rust: syn::parse_file(text).ok(),
        };
        let files = vec![
            file("crates/a/src/lib.rs", "mod x;\n#[cfg(test)]\nmod y;\n"),
            file("crates/a/src/x/mod.rs", "#[cfg(test)]\nmod tests;\nmod z;\n"),
            file("crates/a/src/x/tests.rs", ""),
            file("crates/a/src/x/z.rs", "#[cfg(test)]\nmod tests {}\n"),
            file("crates/a/src/y/mod.rs", "mod deep;\n"),
            file("crates/a/src/y/deep.rs", ""),
        ];
        let tree = Tree::of(files);
        let only_tests: Vec<bool> = tree.files.iter().map(|f| tree.is_only_tests(f)).collect();
        assert_eq!(only_tests, [false, false, true, false, true, true]);
    }
}
