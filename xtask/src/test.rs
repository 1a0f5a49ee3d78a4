//! `cargo xtask test`: runs all checks of the repository.

use std::{
    env,
    fmt::Write as _,
    fs::{self, File, TryLockError},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    browser, check_chart, check_macos,
    console::{self, Outcome, Stopwatch},
    faults, fuzz, image, libtest, monitoring, setup, structure, test_kubernetes, web,
};

struct Check {
    name: &'static str,
    run: fn() -> Result<Outcome>,
}

/// Checks that run only with `--all` or by name, because they take minutes and rarely fail alone.
const SLOW: [&str; 6] = ["browser", "kubernetes", "monitoring", "image", "faults", "macos"];

/// Checks to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selection<'a> {
    /// All but the slow ones.
    Standard,
    All,
    Named(Vec<&'a str>),
}

/// Checks in the order of execution: fast checks first, and prerequisites before their users.
const CHECKS: &[Check] = &[
    Check {
        name: "setup",
        run: || setup::run().map(|()| Outcome::Passed),
    },
    Check {
        name: "fmt",
        run: || cargo("fmt --all --check"),
    },
    Check {
        name: "structure",
        run: structure::run,
    },
    Check {
        name: "workflows",
        run: workflows,
    },
    Check {
        name: "chart",
        run: check_chart::run,
    },
    Check {
        name: "web",
        run: web::check,
    },
    Check {
        name: "clippy",
        run: || cargo("clippy --workspace --all-targets -- -D warnings"),
    },
    Check {
        name: "no-mlx",
        run: || cargo("clippy --all-targets --no-default-features -- -D warnings"),
    },
    Check {
        name: "doc",
        run: doc,
    },
    Check {
        name: "unit",
        run: unit,
    },
    Check {
        name: "fuzz",
        run: || fuzz::run(&["--seconds", "30"]),
    },
    Check {
        name: "e2e",
        run: e2e,
    },
    Check {
        name: "browser",
        run: browser::run,
    },
    Check {
        name: "kubernetes",
        run: test_kubernetes::check,
    },
    Check {
        name: "monitoring",
        run: monitoring::check,
    },
    Check {
        name: "image",
        run: image::check,
    },
    Check {
        name: "faults",
        run: || faults::run(&["--seeds", "100"]),
    },
    Check {
        name: "macos",
        run: check_macos::run,
    },
    Check {
        name: "deny",
        run: deny,
    },
];

/// Runs the selected checks. Returns true if none failed.
pub(crate) fn run(selection: &Selection<'_>) -> Result<bool> {
    let checks = select(selection)?;
    let _lock = lock()?;
    let mut summary = String::new();
    let mut failed = Vec::new();
    for check in checks {
        println!("\n== {}", check.name);
        let since = Stopwatch::start();
        let outcome = (check.run)().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        let elapsed = since.elapsed();
        println!("== {}", line(check.name, &outcome, elapsed));
        writeln!(summary, "  {}", line(check.name, &outcome, elapsed))
            .expect("writing to a String does not fail");
        if matches!(outcome, Outcome::Failed(_)) {
            failed.push(check.name);
            // Without MLX, all other checks fail for the same reason.
            if check.name == "setup" {
                break;
            }
        }
    }
    println!("\n== summary\n{summary}");
    if *selection == Selection::Standard {
        println!(
            "not run: {}; `cargo xtask test --all` runs them too",
            SLOW.join(", ")
        );
    }
    for name in &failed {
        println!("to repeat: cargo xtask test --only {name}");
    }
    Ok(failed.is_empty())
}

fn select(selection: &Selection<'_>) -> Result<Vec<&'static Check>> {
    if let Selection::Named(named) = selection
        && let Some(unknown) = named
            .iter()
            .find(|name| CHECKS.iter().all(|check| check.name != **name))
    {
        let names: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
        bail!("unknown check `{unknown}`: use one of {}", names.join(", "));
    }
    let is_selected = |check: &&Check| match selection {
        Selection::Standard => !SLOW.contains(&check.name),
        Selection::All => true,
        Selection::Named(named) => named.contains(&check.name),
    };
    Ok(CHECKS.iter().filter(is_selected).collect())
}

fn line(name: &str, outcome: &Outcome, elapsed: Duration) -> String {
    let (word, detail) = match outcome {
        Outcome::Passed => ("ok", ""),
        Outcome::Unsteady(reason) => ("UNSTEADY", reason.as_str()),
        Outcome::Skipped(reason) => ("skipped", reason.as_str()),
        Outcome::Failed(reason) => ("FAILED", reason.as_str()),
    };
    format!("{name:<10} {word:<8} {:>6.1}s  {detail}", elapsed.as_secs_f64())
        .trim_end()
        .to_owned()
}

/// Locks the target directory. Checkouts that share it would overwrite each other's binaries.
fn lock() -> Result<File> {
    let path = env::current_exe()
        .context("finding the target directory")?
        .with_extension("test-lock");
    let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            println!("waiting for another test run to release {}", path.display());
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("locking {}", path.display()));
        }
    }
    file.lock()
        .with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

fn cargo(args: &str) -> Result<Outcome> {
    console::run(console::cargo().args(args.split_whitespace()))
}

fn doc() -> Result<Outcome> {
    let mut doc = console::cargo();
    doc.args(["doc", "--workspace", "--no-deps", "--document-private-items"]);
    // Private items are documented, so links to them resolve.
    console::run(doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"))
}

/// Runs the unit tests, and the integration tests of the library crates.
fn unit() -> Result<Outcome> {
    let names = integration_tests()?;
    let mut args = vec!["--workspace", "--no-fail-fast", "--lib", "--bins"];
    for name in &names {
        args.extend(["--test", name]);
    }
    libtest::run(&args, &[], |_| {})
}

/// Returns the names of the files `src/CRATE/tests/NAME.rs`.
fn integration_tests() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for krate in fs::read_dir(console::root().join("src"))? {
        let tests = krate?.path().join("tests");
        if !tests.is_dir() {
            continue;
        }
        for file in fs::read_dir(&tests).with_context(|| tests.display().to_string())? {
            let file = file?.path();
            if file.extension().is_some_and(|extension| extension == "rs") {
                names.extend(file.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            }
        }
    }
    names.sort();
    Ok(names)
}

fn e2e() -> Result<Outcome> {
    match find_kubectl() {
        Some(path) => println!("kubectl: {}", path.display()),
        None => println!("kubectl: not found on PATH, and KUBECTL is not set"),
    }
    libtest::run(&["--workspace", "--test", "e2e"], &[], |_| {})
}

fn find_kubectl() -> Option<PathBuf> {
    if let Some(path) = env::var_os("KUBECTL").filter(|value| !value.is_empty()) {
        return Some(path.into());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join("kubectl"))
        .find(|file| file.is_file())
}

/// actionlint, pinned, for machines that have Go but not actionlint.
const ACTIONLINT: &str = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12";

/// Lints the workflows below .github.
fn workflows() -> Result<Outcome> {
    let mut actionlint = if console::is_installed("actionlint") {
        Command::new("actionlint")
    } else if console::is_installed("go") {
        let mut go = Command::new("go");
        go.args(["run", ACTIONLINT]);
        go
    } else {
        return Ok(Outcome::Skipped("neither actionlint nor go is installed".into()));
    };
    console::run(actionlint.current_dir(console::root()))
}

fn deny() -> Result<Outcome> {
    if !console::is_installed("cargo-deny") {
        return Ok(Outcome::Skipped(
            "cargo-deny is not installed: cargo install --locked cargo-deny".into(),
        ));
    }
    // Advisories are not checked: they change independently of the repository.
    cargo("deny --all-features --config .cargo/deny.toml check licenses bans sources")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_by_speed_and_by_name() {
        let names = |selection| {
            let selected = select(&selection).expect("known checks");
            selected.iter().map(|check| check.name).collect::<Vec<_>>()
        };
        assert_eq!(names(Selection::All).len(), CHECKS.len());
        let standard = names(Selection::Standard);
        assert_eq!(standard.len() + SLOW.len(), CHECKS.len());
        assert!(!standard.contains(&"faults"));
        assert_eq!(names(Selection::Named(vec!["macos", "fmt"])), ["fmt", "macos"]);
    }

    #[test]
    fn error_of_an_unknown_check_lists_the_valid_names() {
        let error = select(&Selection::Named(vec!["lint"]))
            .err()
            .expect("an unknown check")
            .to_string();
        assert!(error.contains("`lint`") && error.contains("clippy"), "{error}");
    }

    #[test]
    fn summary_line_contains_the_reason() {
        let skipped = Outcome::Skipped("no target".into());
        assert_eq!(
            line("macos", &skipped, Duration::from_millis(1250)),
            "macos      skipped     1.2s  no target"
        );
        assert_eq!(
            line("fmt", &Outcome::Passed, Duration::ZERO),
            "fmt        ok          0.0s"
        );
    }
}
