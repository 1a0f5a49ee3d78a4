//! Target of a build on a Mac: the oldest macOS on which the binary runs. MLX compiles kernels for
//! matrix units only for targets from macOS 26.2 on.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::prerequisites::{MATRIX_UNITS_SDK, numbers};
use crate::console::{self, Progress};

/// Cargo configuration for a Mac with matrix units. `.cargo/macos.toml` has the default values.
const CONFIG: &str = ".cargo/mlx-macos.generated.toml";

/// First generation of Apple's M chips with matrix units.
const FIRST_GENERATION: u32 = 5;

/// Target for a Mac with matrix units.
const MATRIX_UNITS_TARGET: &str = "26.2";

/// Target and its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// The default: macOS 14.
    Compatible,
    /// The oldest macOS that uses matrix units.
    MatrixUnits,
    /// The chip has matrix units, but macOS or the SDK are too old.
    TooOld,
}

impl Target {
    /// Returns the target for a chip's brand string, such as `Apple M5 Pro`, and the versions of
    /// macOS and of the SDK.
    fn of(brand: &str, macos: &str, sdk: &str) -> Self {
        let generation = brand.trim().strip_prefix("Apple M").map(numbers);
        let generation = generation.and_then(|numbers| numbers.first().copied());
        // A virtual machine has no matrix units.
        if brand.contains("Virtual") || generation.is_none_or(|generation| generation < FIRST_GENERATION) {
            return Self::Compatible;
        }
        let is_new = |version: &str| numbers(version).as_slice() >= MATRIX_UNITS_SDK;
        match is_new(macos) && is_new(sdk) {
            true => Self::MatrixUnits,
            false => Self::TooOld,
        }
    }

    /// Returns the content of the configuration; `None` for the default.
    fn config(self) -> Option<String> {
        match self {
            Self::Compatible | Self::TooOld => None,
            Self::MatrixUnits => Some(format!(
                r#"# Written by `cargo xtask setup`; do not edit. This Mac has matrix units.
[env]
MACOSX_DEPLOYMENT_TARGET = {{ value = "{MATRIX_UNITS_TARGET}", force = false }}
MLX_RS_METAL_PATH = {{ value = "target/metal-{MATRIX_UNITS_TARGET}", relative = true, force = false }}
"#
            )),
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Compatible => "builds run on macOS 14 and later",
            Self::MatrixUnits => {
                "builds use this Mac's matrix units, and run on macOS 26.2 and later \
                 (MACOSX_DEPLOYMENT_TARGET=14.0 builds for older ones)"
            }
            Self::TooOld => {
                "builds run on macOS 14 and later, and do not use this Mac's matrix units: \
                 these need macOS 26.2 and Xcode 26.2"
            }
        }
    }
}

/// Selects the target for this Mac and writes the configuration.
pub(super) fn select(progress: &Progress) -> Result<()> {
    let answer = |program: &str, arguments: &[&str]| {
        console::output(Command::new(program).args(arguments)).unwrap_or_default()
    };
    let target = Target::of(
        &answer("sysctl", &["-n", "machdep.cpu.brand_string"]),
        &answer("sw_vers", &["-productVersion"]),
        &answer("xcrun", &["--sdk", "macosx", "--show-sdk-version"]),
    );
    progress.print(target.message());
    if write(&console::root().join(CONFIG), target.config().as_deref())? {
        progress.print("the target has changed: deleting the previous build of MLX");
        delete_mlx()?;
    }
    Ok(())
}

/// Writes or deletes the file. Returns true if it has changed.
fn write(path: &Path, text: Option<&str>) -> Result<bool> {
    let found = fs::read_to_string(path).ok();
    if found.as_deref() == text {
        return Ok(false);
    }
    let partial: PathBuf = path.with_file_name("partial.generated.toml");
    match text {
        Some(text) => fs::write(&partial, text).and_then(|()| fs::rename(&partial, path)),
        None => fs::remove_file(path),
    }
    .with_context(|| format!("writing {}", path.display()))?;
    Ok(true)
}

/// Deletes the previous builds of MLX. CMake keeps the target of the first build in its directory,
/// so a new target needs a new directory.
fn delete_mlx() -> Result<()> {
    for profile in ["dev", "release"] {
        let mut clean = console::cargo();
        clean.args(["clean", "--package", "mlx-sys", "--profile", profile]);
        console::output(&mut clean)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_units_need_chip_system_and_sdk() {
        use Target::{Compatible, MatrixUnits, TooOld};
        for (brand, macos, sdk, expect) in [
            ("Apple M5", "26.2", "26.2", MatrixUnits),
            ("Apple M5 Max\n", "26.5.1\n", "26.4\n", MatrixUnits),
            ("Apple M10 Ultra", "29.0", "29.0", MatrixUnits),
            ("Apple M5", "26.1", "26.2", TooOld),
            ("Apple M5 Pro", "26.4", "15.5", TooOld),
            ("Apple M4 Max", "26.4", "26.4", Compatible),
            ("Apple M1", "15.7", "26.2", Compatible),
            ("Apple M5 (Virtual)", "26.4", "26.4", Compatible),
            ("Apple A18 Pro", "26.4", "26.4", Compatible),
            ("", "", "", Compatible),
        ] {
            assert_eq!(Target::of(brand, macos, sdk), expect, "{brand} {macos} {sdk}");
        }
    }

    #[test]
    fn only_a_changed_target_rebuilds_mlx() {
        let path = std::env::temp_dir().join(format!("rooflet-target-{}.toml", std::process::id()));
        drop(fs::remove_file(&path));
        let config = Target::MatrixUnits.config();
        assert_eq!(Target::Compatible.config(), None);
        let mut changes = Vec::new();
        for text in [None, config.as_deref(), config.as_deref(), None, None] {
            changes.push(write(&path, text).expect("a writable directory"));
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), text);
        }
        assert_eq!(changes, [false, true, false, true, false]);
    }
}
