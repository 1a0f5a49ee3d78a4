//! A test that no module imports upward, and one that comments cite pages that there are.
//!
//! Rust lets modules of one crate import one another freely, so the direction is held by the table of layers in
//! ARCHITECTURE.md, which the test reads.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    use regex::Regex;

    /// A row of the table.
    struct Layer {
        modules: Vec<String>,
        /// A module may import those before it.
        in_order: bool,
    }

    /// Lowest first.
    fn layers() -> Vec<Layer> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let map = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the map");
        let (_, table) = map
            .split_once("| layer | modules | rule |\n")
            .expect("a table of layers");
        let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
        let layer = |row: &str| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            Layer {
                modules: cells[2].trim_matches('`').split(' ').map(str::to_owned).collect(),
                in_order: cells[3].starts_with("in order"),
            }
        };
        rows.map(layer).collect()
    }

    fn may_import(layers: &[Layer], from: &str, to: &str) -> Result<bool, String> {
        let place = |module: &str| {
            let places = layers.iter().enumerate().find_map(|(layer, row)| {
                let index = row.modules.iter().position(|name| *name == module)?;
                Some((layer, index))
            });
            places.ok_or(format!(
                "`{module}` is in no layer: add it to the table in ARCHITECTURE.md"
            ))
        };
        let (from_place, to_place) = (place(from)?, place(to)?);
        Ok(from == to
            || to_place.0 < from_place.0
            || (to_place.0 == from_place.0 && layers[from_place.0].in_order && to_place.1 < from_place.1))
    }

    fn rust_files(directory: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("src/ is readable") {
            let path = entry.expect("src/ is readable").path();
            if path.is_dir() {
                rust_files(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push(path);
            }
        }
    }

    /// The modules that `crate::…` paths in a file lead to, `crate::{a, b::c}` included.
    fn imports(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        for (at, _) in text.match_indices("crate::") {
            // `$crate::` and `my_crate::` are other things.
            if text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
                continue;
            }
            let rest = &text[at + "crate::".len()..];
            if let Some(group) = rest.strip_prefix('{') {
                let mut depth = 0usize;
                let mut name = String::new();
                let mut naming = true;
                for c in group.chars() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => {
                            found.push(std::mem::take(&mut name));
                            naming = true;
                        }
                        c if depth == 0 && naming && (c.is_alphanumeric() || c == '_') => name.push(c),
                        c if depth == 0 && naming && !c.is_whitespace() => naming = false,
                        _ => {}
                    }
                }
                found.push(name);
            } else {
                found.push(
                    rest.chars()
                        .take_while(|c| c.is_alphanumeric() || *c == '_')
                        .collect(),
                );
            }
        }
        found.retain(|name| !name.is_empty());
        found
    }

    #[test]
    fn no_module_imports_upward() {
        let layers = layers();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = Vec::new();
        rust_files(&root, &mut files);
        let mut wrong = BTreeMap::new();
        for file in files {
            let relative = file.strip_prefix(&root).expect("below src/");
            let first = relative
                .components()
                .next()
                .expect("not empty")
                .as_os_str()
                .to_string_lossy();
            let module = first.trim_end_matches(".rs").to_owned();
            if matches!(module.as_str(), "main" | "lib" | "layers") {
                continue;
            }
            let text = fs::read_to_string(&file).expect("readable");
            for import in imports(&text) {
                match may_import(&layers, &module, &import) {
                    Ok(true) => {}
                    Ok(false) => drop(wrong.insert(
                        format!("{}: crate::{import}", relative.display()),
                        "upward or sideways",
                    )),
                    Err(why) => drop(wrong.insert(format!("{}: {why}", relative.display()), "unknown")),
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn grouped_imports_are_seen() {
        assert_eq!(
            imports("use crate::{api::{a, b}, yaml};\nlet x = crate::units::Bytes(1);"),
            ["api", "yaml", "units"]
        );
    }

    #[test]
    fn layers_are_those_of_the_table() {
        let layers = layers();
        let may_import = |from, to| may_import(&layers, from, to);
        assert_eq!(may_import("units", "api"), Ok(false));
        assert_eq!(may_import("units", "trace"), Ok(false));
        assert_eq!(may_import("trace", "units"), Ok(true));
        assert_eq!(may_import("agent", "gateway"), Ok(false));
        assert_eq!(may_import("agent", "api"), Ok(true));
        assert!(may_import("agent", "helper").is_err());
    }

    #[test]
    fn pages_that_comments_cite_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let page = Regex::new(r"[\w./:-]+\.md\b").expect("a pattern");
        let mut files = Vec::new();
        rust_files(&root.join("src"), &mut files);
        let mut missing = Vec::new();
        for file in files {
            let text = fs::read_to_string(&file).expect("readable");
            let cited = page.find_iter(&text).map(|cited| cited.as_str());
            // What has a scheme is somewhere else.
            let cited = cited.filter(|cited| !cited.contains("://"));
            missing.extend(
                cited
                    .filter(|cited| !root.join(cited).is_file())
                    .map(|cited| format!("{}: {cited}", file.display())),
            );
        }
        assert_eq!(missing, [""; 0]);
    }
}
