//! Where the paths of a crate's source lead: from a file to the files that define what its `use` items and paths name.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::source::TextFile;

/// Re-exports of re-exports that are followed.
const MOST_HOPS: usize = 8;

/// One file of a crate as a module.
pub(super) struct SourceModule<'t> {
    /// The file.
    pub file: &'t TextFile,
    /// Its place in the tree of modules; empty for the root.
    pub path: Vec<String>,
    names: Names,
}

/// All modules of a crate.
pub(super) struct Modules<'t> {
    files: Vec<SourceModule<'t>>,
    by_path: BTreeMap<Vec<String>, usize>,
}

/// What a file defines, imports and names.
#[derive(Default)]
struct Names {
    defined: BTreeSet<String>,
    /// Name here, and the path that it stands for.
    imports: BTreeMap<String, Vec<String>>,
    /// Modules whose names are all imported.
    globs: Vec<Vec<String>>,
    /// Paths of at least two segments.
    paths: BTreeSet<Vec<String>>,
}

impl<'t> SourceModule<'t> {
    /// A file whose path below `src` is `rest`.
    pub(super) fn new(file: &'t TextFile, rest: &str, rust: &syn::File) -> Self {
        let parts: Vec<&str> = rest.trim_end_matches(".rs").split('/').collect();
        let path = match parts.split_last() {
            Some((&("lib" | "main" | "mod"), folders)) => folders.to_vec(),
            _ => parts,
        };
        let mut names = Names::default();
        names.visit_file(rust);
        Self { file, path: path.into_iter().map(String::from).collect(), names }
    }
}

impl<'t> Modules<'t> {
    /// The modules of one crate.
    pub(super) fn new(files: Vec<SourceModule<'t>>) -> Self {
        let by_path = files.iter().enumerate().map(|(i, file)| (file.path.clone(), i)).collect();
        Self { files, by_path }
    }

    /// In the order of their numbers.
    pub(super) fn files(&self) -> &[SourceModule<'t>] {
        &self.files
    }

    /// The numbers of the files that a file uses.
    pub(super) fn targets(&self, from: usize) -> BTreeSet<usize> {
        let names = &self.files[from].names;
        let mut found = BTreeSet::new();
        // A name of a module is no use of it; the paths that begin with the name are.
        let imported = names.imports.values().filter_map(|path| self.item(from, path, MOST_HOPS));
        found.extend(imported);
        found.extend(names.paths.iter().filter_map(|path| self.item(from, path, MOST_HOPS)));
        found.extend(names.globs.iter().filter_map(|path| self.module(from, path).map(|(module, _)| module)));
        found
    }

    /// The file that defines the item at a path; none if the path leads out of the crate, or is that of a module.
    fn item(&self, from: usize, path: &[String], hops: usize) -> Option<usize> {
        let (module, used) = self.module(from, path).or_else(|| self.through_import(from, path))?;
        let name = path.get(used)?;
        self.definer(module, name, hops)
    }

    /// The deepest module along a path, and the number of segments that lead there.
    fn module(&self, from: usize, path: &[String]) -> Option<(usize, usize)> {
        let mut at = self.files[from].path.clone();
        let mut used = 0;
        for segment in path {
            match segment.as_str() {
                "crate" if used == 0 => at.clear(),
                "self" if used == 0 => {}
                "super" => drop(at.pop()?),
                name => {
                    at.push(name.to_string());
                    if !self.by_path.contains_key(&at) {
                        at.pop();
                        break;
                    }
                }
            }
            used += 1;
        }
        // A path whose first segment is no module here begins with an import, or in another crate.
        (used > 0).then(|| self.by_path.get(&at).map(|&module| (module, used))).flatten()
    }

    /// The module along a path that begins with an imported module.
    fn through_import(&self, from: usize, path: &[String]) -> Option<(usize, usize)> {
        let import = self.files[from].names.imports.get(path.first()?)?;
        let whole: Vec<String> = import.iter().chain(&path[1..]).cloned().collect();
        let (module, used) = self.module(from, &whole)?;
        // Only a module stands before `::` and an item; of an imported type, the import itself is what counts.
        (used >= import.len()).then(|| (module, used + 1 - import.len()))
    }

    /// The file that defines a name of a module, through re-exports.
    fn definer(&self, module: usize, name: &str, hops: usize) -> Option<usize> {
        let names = &self.files[module].names;
        if hops == 0 || names.defined.contains(name) {
            return Some(module);
        }
        if let Some(path) = names.imports.get(name) {
            return self.item(module, path, hops - 1);
        }
        let globbed = names.globs.iter().filter_map(|path| self.module(module, path));
        let definers = globbed.filter(|(target, _)| self.files[*target].names.defined.contains(name));
        Some(definers.map(|(target, _)| target).next().unwrap_or(module))
    }
}

/// Whether an item is compiled for tests alone.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        a.path().is_ident("test")
            || a.path().is_ident("cfg") && a.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

impl Names {
    fn add_use(&mut self, prefix: &[String], tree: &syn::UseTree) {
        let with = |name: String| prefix.iter().cloned().chain([name]).collect::<Vec<String>>();
        match tree {
            syn::UseTree::Path(path) => self.add_use(&with(path.ident.to_string()), &path.tree),
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.imports.extend(prefix.last().map(|last| (last.clone(), prefix.to_vec())));
            }
            syn::UseTree::Name(name) => {
                self.imports.insert(name.ident.to_string(), with(name.ident.to_string()));
            }
            syn::UseTree::Rename(rename) => {
                self.imports.insert(rename.rename.to_string(), with(rename.ident.to_string()));
            }
            syn::UseTree::Glob(_) => self.globs.push(prefix.to_vec()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.add_use(prefix, item)),
        }
    }

    /// Paths that begin with `crate` or `super` in the tokens of a macro's call.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut ends_open = false;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if path.is_empty() || ends_open => {
                    path.push(ident.to_string());
                    ends_open = false;
                    continue;
                }
                TokenTree::Ident(ident) => {
                    self.add_path(std::mem::take(&mut path));
                    path.push(ident.to_string());
                    continue;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {
                    ends_open = true;
                    continue;
                }
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            self.add_path(std::mem::take(&mut path));
            ends_open = false;
        }
        self.add_path(path);
    }

    fn add_path(&mut self, path: Vec<String>) {
        if path.len() > 1 {
            self.paths.insert(path);
        }
    }

    fn define(&mut self, item: &syn::Item) {
        let name = match item {
            syn::Item::Fn(item) => &item.sig.ident,
            syn::Item::Struct(item) => &item.ident,
            syn::Item::Enum(item) => &item.ident,
            syn::Item::Trait(item) => &item.ident,
            syn::Item::Type(item) => &item.ident,
            syn::Item::Const(item) => &item.ident,
            syn::Item::Static(item) => &item.ident,
            syn::Item::Union(item) => &item.ident,
            _ => return,
        };
        self.defined.insert(name.to_string());
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            self.define(item);
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.add_path(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.add_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}
