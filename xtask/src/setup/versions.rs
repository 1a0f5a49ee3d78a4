//! Pinned versions, and checks that crate, wheel and headers have them.
//!
//! A binary works only with the exact MLX version that it was built with, including the patch
//! release.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use crate::console;

/// MLX version that mlx-sys builds on a Mac. The wheel must have the same version.
pub(super) const MLX: &str = "0.32.2";
pub(super) const MLX_SYS: &str = "0.7.0";
pub(super) const LIBCLANG: &str = "18.1.1";

/// Checks that the lock file has the mlx-sys version that the shims are made for.
pub(super) fn check_lock_file(root: &Path) -> Result<()> {
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("reading Cargo.lock")?;
    let found = locked_version(&lock, "mlx-sys").context("Cargo.lock has no package mlx-sys")?;
    ensure!(
        found == MLX_SYS,
        "Cargo.lock has mlx-sys {found}, and setup prepares {MLX_SYS}: update the versions in \
         xtask/src/setup/versions.rs and xtask/src/setup/wheels.rs together with Cargo.toml"
    );
    Ok(())
}

fn locked_version<'a>(lock: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = lock.split_once(&format!("[[package]]\nname = \"{name}\"\nversion = \""))?;
    rest.split('"').next()
}

/// Returns the directory of the unpacked crate, in the registry or vendored.
pub(super) fn find_mlx_sys() -> Result<PathBuf> {
    let metadata = console::output(console::cargo().args(["metadata", "--format-version=1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata).context("reading `cargo metadata`")?;
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "mlx-sys" && package["version"] == MLX_SYS)
        .and_then(|package| package["manifest_path"].as_str())
        .with_context(|| format!("`cargo metadata` lists no mlx-sys {MLX_SYS}"))?;
    let dir = Path::new(manifest)
        .parent()
        .context("the manifest of mlx-sys has no directory")?;
    Ok(dir.to_path_buf())
}

/// Checks that mlx-sys is made for the pinned MLX version.
pub(super) fn check_crate(mlx_sys: &Path) -> Result<()> {
    let path = mlx_sys.join("src/mlx-c/CMakeLists.txt");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let found =
        cmake_mlx_version(&text).with_context(|| format!("{} contains no MLX version", path.display()))?;
    ensure!(
        found == MLX,
        "mlx-sys {MLX_SYS} is made for MLX {found}, and setup pins {MLX}"
    );
    Ok(())
}

fn cmake_mlx_version(text: &str) -> Option<&str> {
    let tag = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("GIT_TAG v"))?;
    Some(tag.trim_end_matches(')'))
}

/// Checks that the headers of the wheel have the pinned MLX version.
pub(super) fn check_wheel(mlx: &Path) -> Result<()> {
    let path = mlx.join("include/mlx/version.h");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let Some(found) = header_mlx_version(&text) else {
        bail!(
            "{} does not define MLX_VERSION_MAJOR, _MINOR and _PATCH",
            path.display()
        );
    };
    ensure!(
        found == MLX,
        "the wheel has headers of MLX {found}, and setup pins {MLX}"
    );
    Ok(())
}

fn header_mlx_version(text: &str) -> Option<String> {
    let number = |name: &str| {
        let define = format!("#define MLX_VERSION_{name} ");
        text.lines()
            .find_map(|line| line.strip_prefix(&define))
            .map(str::trim)
    };
    Some(format!(
        "{}.{}.{}",
        number("MAJOR")?,
        number("MINOR")?,
        number("PATCH")?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_file_of_the_repository_has_the_pinned_versions() {
        check_lock_file(&console::root()).expect("versions agree");
    }

    #[test]
    fn reads_version_from_lock_file() {
        let lock = "[[package]]\nname = \"mlx-rs\"\nversion = \"1\"\n\n[[package]]\nname = \"mlx-sys\"\nversion = \"2.0\"\n";
        assert_eq!(locked_version(lock, "mlx-sys"), Some("2.0"));
        assert_eq!(locked_version(lock, "mlx"), None);
    }

    #[test]
    fn reads_version_from_cmake_file() {
        assert_eq!(cmake_mlx_version("  mlx\n    GIT_TAG v0.32.2)\n"), Some("0.32.2"));
        assert_eq!(cmake_mlx_version("GIT_REPOSITORY x"), None);
    }

    #[test]
    fn reads_version_from_header() {
        let header =
            "#define MLX_VERSION_MAJOR 0\n#define MLX_VERSION_MINOR 32\n#define MLX_VERSION_PATCH 2\n";
        assert_eq!(header_mlx_version(header).as_deref(), Some("0.32.2"));
        assert_eq!(header_mlx_version("#define MLX_VERSION_MAJOR 0\n"), None);
    }
}
