//! The layers of the crate, and a test that no module imports upward.
//!
//! Rust lets modules of one crate import one another freely, so the direction is held by this table. A module may
//! name itself, its own layer where `inside` says so, and every lower layer.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Modules by layer, lowest first. Within a layer marked `true` modules may import the ones before them.
    const LAYERS: &[(&str, bool, &[&str])] = &[
        (
            "base",
            true,
            &[
                "units",
                "quantity",
                "clock",
                "error",
                "yaml",
                "task",
                "latest",
                "loopback",
                "telemetry",
                "metrics",
                "meter",
                "trace",
            ],
        ),
        ("vocabulary", true, &["api", "wire", "openai", "anthropic"]),
        (
            "core",
            true,
            &[
                "jsonpath",
                "schema",
                "selector",
                "patch",
                "table",
                "roofline",
                "text",
                "scheduler",
                "capacity",
                "benchmark",
            ],
        ),
        (
            "adapters",
            false,
            &[
                "store",
                "pki",
                "client",
                "connection",
                "host",
                "artifact",
                "process",
                "proxy",
                "model_dir",
                "mlx",
                "otlp",
            ],
        ),
        (
            "services",
            false,
            &["apiserver", "controller", "agent", "worker", "gateway"],
        ),
        ("simulation", false, &["simulation"]),
        ("composition", false, &["node"]),
        ("cli", false, &["cli"]),
    ];

    fn may_import(from: &str, to: &str) -> Result<bool, String> {
        let place = |module: &str| {
            LAYERS.iter().enumerate().find_map(|(layer, (_, _, modules))| {
                modules
                    .iter()
                    .position(|name| *name == module)
                    .map(|index| (layer, index))
            })
        };
        let from_place = place(from).ok_or(format!("`{from}` is in no layer: add it to src/layers.rs"))?;
        let to_place = place(to).ok_or(format!("`{to}` is in no layer: add it to src/layers.rs"))?;
        Ok(from == to
            || to_place.0 < from_place.0
            || (to_place.0 == from_place.0 && LAYERS[from_place.0].1 && to_place.1 < from_place.1))
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
                match may_import(&module, &import) {
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
        assert_eq!(may_import("units", "api"), Ok(false));
        assert_eq!(may_import("agent", "gateway"), Ok(false));
        assert_eq!(may_import("agent", "api"), Ok(true));
        assert!(may_import("agent", "helper").is_err());
    }
}
