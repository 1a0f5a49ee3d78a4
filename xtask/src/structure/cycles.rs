//! Import cycles of files.
//!
//! File A imports file B if A contains the path of an item that B defines, directly or through
//! re-exports. Exceptions: test code, and imports of a module from its own descendants. A parent
//! composes its children, and they may use its items.

use std::collections::{BTreeMap, BTreeSet};

use super::krate::Crate;
use super::tokens::{Token, closing, without_tests};

/// Maximum number of files in a cycle.
const MAX_CYCLE: usize = 2;

/// Segments of a module's path; empty for the crate root.
type Path = Vec<String>;

#[derive(Default)]
struct Module {
    /// Index of the file.
    file: usize,
    children: BTreeSet<String>,
    items: BTreeSet<String>,
    /// Name in this module, and the imported path.
    imports: Vec<(String, Path)>,
    /// Paths in code.
    paths: Vec<Path>,
}

pub(super) fn faults(krate: &Crate) -> Vec<String> {
    let modules = modules(krate);
    let below: BTreeMap<usize, &Path> = modules.iter().map(|(path, module)| (module.file, path)).collect();
    let mut edges = vec![BTreeSet::new(); krate.files.len()];
    for (own, module) in &modules {
        let imported = module.imports.iter().map(|(_, path)| path);
        for path in imported.chain(&module.paths) {
            let target = file_of(&modules, own, path, 0).filter(|target| *target != module.file);
            let is_below = |target: &usize| below.get(target).is_some_and(|path| path.starts_with(own));
            if let Some(target) = target.filter(|target| !is_below(target)) {
                edges[module.file].insert(target);
            }
        }
    }
    let cycles = components(&edges)
        .into_iter()
        .filter(|cycle| cycle.len() > MAX_CYCLE);
    cycles
        .map(|cycle| {
            let names: Vec<_> = cycle
                .iter()
                .map(|file| krate.files[*file].path.display().to_string())
                .collect();
            format!(
                "import cycle of {} files, and the maximum is {MAX_CYCLE}: {}",
                names.len(),
                names.join(", ")
            )
        })
        .collect()
}

fn modules(krate: &Crate) -> BTreeMap<Path, Module> {
    let mut modules = BTreeMap::new();
    for (index, file) in krate.files.iter().enumerate() {
        let relative = file.path.strip_prefix(format!("src/{}/src", krate.name));
        let Ok(relative) = relative.map(|path| path.with_extension("")) else {
            continue;
        };
        let mut path: Path = relative
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        if path.last().is_some_and(|last| last == "lib" || last == "main") && path.len() == 1 {
            path.clear();
        }
        if path
            .iter()
            .any(|part| part == "tests" || part.ends_with("_tests"))
        {
            continue;
        }
        modules.insert(
            path,
            Module {
                file: index,
                ..read(&without_tests(&file.tokens))
            },
        );
    }
    modules
}

fn read(tokens: &[Token]) -> Module {
    const KINDS: [&str; 9] = [
        "fn", "struct", "enum", "trait", "union", "const", "static", "type", "mod",
    ];
    let mut module = Module::default();
    let mut depth = 0usize;
    let mut at = 0;
    while at < tokens.len() {
        let token = &tokens[at];
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            // `use<'a>` in a type is not an import.
            "use" if !tokens.get(at + 1).is_some_and(|next| next.is("<")) => {
                let end = at + tokens[at..].iter().position(|token| token.is(";")).unwrap_or(0);
                use_tree(&tokens[at + 1..end], &[], &mut module.imports);
                at = end;
            }
            kind if depth == 0 && KINDS.contains(&kind) => {
                if let Some(name) = tokens.get(at + 1).filter(|name| name.is_word()) {
                    let into = if kind == "mod" {
                        &mut module.children
                    } else {
                        &mut module.items
                    };
                    into.insert(name.text.clone());
                }
            }
            _ => {}
        }
        if token.is_word()
            && tokens.get(at + 1).is_some_and(|next| next.is("::"))
            && !follows_colons(tokens, at)
        {
            let mut path = vec![token.text.clone()];
            while tokens.get(at + 1).is_some_and(|next| next.is("::"))
                && tokens.get(at + 2).is_some_and(Token::is_word)
            {
                path.push(tokens[at + 2].text.clone());
                at += 2;
            }
            module.paths.push(path);
        }
        at += 1;
    }
    module
}

fn follows_colons(tokens: &[Token], at: usize) -> bool {
    at > 0 && tokens[at - 1].is("::")
}

/// Adds each leaf of a `use` tree with its local name.
fn use_tree(tokens: &[Token], prefix: &[String], into: &mut Vec<(String, Path)>) {
    let mut path = prefix.to_vec();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].is("{") {
            let end = closing(tokens, at);
            let mut start = at + 1;
            let mut inner = start;
            while inner <= end {
                if tokens[inner].is("{") {
                    inner = closing(tokens, inner);
                }
                if inner == end || tokens[inner].is(",") {
                    use_tree(&tokens[start..inner], &path, into);
                    start = inner + 1;
                }
                inner += 1;
            }
            return;
        }
        if tokens[at].is("as") {
            let name = tokens
                .get(at + 1)
                .map_or_else(String::new, |token| token.text.clone());
            into.push((name, path));
            return;
        }
        if tokens[at].is_word() && (path.is_empty() || !tokens[at].is("self")) {
            path.push(tokens[at].text.clone());
        } else if tokens[at].is("*") {
            path.push("*".to_owned());
        }
        at += 1;
    }
    if let Some(name) = path.last().cloned() {
        into.push((name, path));
    }
}

/// Returns the file that defines the item with the path `path` in the module `own`.
fn file_of(modules: &BTreeMap<Path, Module>, own: &Path, path: &[String], hops: usize) -> Option<usize> {
    // Re-exports can be cyclic.
    if hops > 8 {
        return None;
    }
    let mut here = own.clone();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => {
            here.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|first| first == "super") {
                here.pop()?;
                rest = &rest[1..];
            }
        }
        _ => {}
    }
    loop {
        let module = modules.get(&here)?;
        let Some(first) = rest.first() else {
            return Some(module.file);
        };
        if module.children.contains(first) {
            here.push(first.clone());
            rest = &rest[1..];
            // The child exists only in test builds.
            if !modules.contains_key(&here) {
                return None;
            }
            continue;
        }
        if first == "*" || module.items.contains(first) {
            return Some(module.file);
        }
        let (_, import) = module
            .imports
            .iter()
            .find(|(name, path)| name == first && path.as_slice() != rest)?;
        let mut next = import.clone();
        next.extend_from_slice(&rest[1..]);
        return file_of(modules, &here, &next, hops + 1);
    }
}

/// Returns the strongly connected components (Tarjan, 1972).
fn components(edges: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    struct Search<'e> {
        edges: &'e [BTreeSet<usize>],
        order: Vec<Option<usize>>,
        low: Vec<usize>,
        stack: Vec<usize>,
        found: Vec<Vec<usize>>,
        next: usize,
    }
    impl Search<'_> {
        fn visit(&mut self, node: usize) {
            self.order[node] = Some(self.next);
            self.low[node] = self.next;
            self.next += 1;
            self.stack.push(node);
            let edges = self.edges;
            for &other in &edges[node] {
                match self.order[other] {
                    None => {
                        self.visit(other);
                        self.low[node] = self.low[node].min(self.low[other]);
                    }
                    Some(order) if self.stack.contains(&other) => {
                        self.low[node] = self.low[node].min(order);
                    }
                    Some(_) => {}
                }
            }
            if Some(self.low[node]) == self.order[node] {
                let at = self
                    .stack
                    .iter()
                    .position(|on| *on == node)
                    .expect("the node was pushed");
                let mut cycle = self.stack.split_off(at);
                cycle.sort_unstable();
                self.found.push(cycle);
            }
        }
    }
    let mut search = Search {
        edges,
        order: vec![None; edges.len()],
        low: vec![0; edges.len()],
        stack: Vec::new(),
        found: Vec::new(),
        next: 0,
    };
    for node in 0..edges.len() {
        if search.order[node].is_none() {
            search.visit(node);
        }
    }
    search.found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)]) -> Vec<String> {
        faults(&Crate::of_texts("it", "", files))
    }

    #[test]
    fn rejects_cycle_of_three_files_through_re_exports_and_inline_paths() {
        let cycle = [
            ("lib.rs", "mod a; mod b; mod c; pub use b::B;"),
            ("a.rs", "use crate::{B, Other}; pub struct A;"),
            ("b.rs", "use super::c::C; pub struct B;"),
            ("c.rs", "fn c() { crate::a::A::new() } pub struct C;"),
        ];
        assert_eq!(
            check(&cycle),
            [
                "import cycle of 3 files, and the maximum is 2: src/it/src/a.rs, src/it/src/b.rs, src/it/src/c.rs"
            ]
        );
    }

    #[test]
    fn accepts_cycle_of_two_files_and_imports_of_tests() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use super::b::B; pub struct A;"),
            ("b.rs", "use super::a::A; pub struct B;"),
            ("c.rs", "use super::a::A; pub struct C;"),
        ];
        assert_eq!(check(&files), [""; 0]);
        let with_test = (
            "a.rs",
            "use super::b::B; pub struct A; #[cfg(test)] mod tests { use crate::c::C; }",
        );
        assert_eq!(check(&[files[0], with_test, files[2], files[3]]), [""; 0]);
    }
}
