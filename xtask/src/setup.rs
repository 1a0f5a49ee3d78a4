//! `cargo xtask setup`: prepares MLX on Linux, and selects the target of the build on a Mac.
//!
//! On a Mac, the build script of mlx-sys builds MLX. That script supports only macOS. On Linux,
//! this task replaces the script: it prepares MLX's CPU build (a wheel), mlx-c and the Rust
//! declarations of mlx-c in a directory, the prefix. It also writes
//! `.cargo/mlx-linux.generated.toml`, which configures cargo to use the prefix.
//!
//! The prefix is in the user's cache directory, and all checkouts share it. Its name contains a
//! hash of all its inputs. The prefix is built in a temporary directory and renamed when complete.

mod bindings;
mod macos_target;
mod mlx_c;
mod prefix;
mod prerequisites;
mod versions;
mod wheels;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::console::{self, Progress};

pub(crate) use prefix::Prefix;

/// Supported Linux target. The pinned wheels are built for it.
const LINUX_TARGET: &str = "x86_64-unknown-linux-gnu";

pub(crate) fn run() -> Result<()> {
    let progress = Progress::new("setup");
    match (env::consts::OS, env::consts::ARCH) {
        ("linux", "x86_64") => prepare_linux(&progress),
        ("macos", _) => check_mac(&progress),
        (os, arch) => bail!(
            "MLX is supported on Linux x86_64 and on macOS, not on {os} {arch}; \
             build without the engine: cargo build --no-default-features"
        ),
    }
}

fn prepare_linux(progress: &Progress) -> Result<()> {
    versions::check_lock_file(&console::root())?;
    let prefix = Prefix::locate()?;
    if prefix.is_ready() {
        progress.print(format!(
            "MLX {} is ready in {}",
            versions::MLX,
            prefix.dir().display()
        ));
    } else {
        prerequisites::check(prerequisites::LINUX_MLX)?;
        prefix.build(progress, |dir| build_prefix(progress, dir))?;
    }
    write_cargo_config(
        progress,
        &console::root(),
        &cargo_config(LINUX_TARGET, prefix.dir()),
    )
}

/// Downloads libclang on the first call. Returns the directory of its Python package.
pub(crate) fn libclang() -> Result<PathBuf> {
    let prefix = Prefix::locate_libclang()?;
    if !prefix.is_ready() {
        let progress = Progress::new("setup");
        prerequisites::check(prerequisites::LINUX_MLX)?;
        progress.print(format!("downloading libclang {} with pip", versions::LIBCLANG));
        prefix.build(&progress, wheels::fetch_libclang)?;
    }
    Ok(wheels::clang_package(prefix.dir()))
}

fn build_prefix(progress: &Progress, dir: &Path) -> Result<()> {
    let shims = dir.join("shims");
    mlx_c::write_shims(&shims)?;

    progress.print("finding the mlx-sys crate (cargo downloads missing crates)");
    let mlx_sys = versions::find_mlx_sys()?;
    versions::check_crate(&mlx_sys)?;

    progress.print(format!(
        "downloading MLX {} and libclang {} with pip",
        versions::MLX,
        versions::LIBCLANG
    ));
    wheels::fetch(dir)?;
    versions::check_wheel(&wheels::mlx(dir))?;

    mlx_c::compile(progress, &mlx_sys, &shims, dir)?;

    progress.print("generating the Rust declarations of mlx-c (builds bindgen first)");
    bindings::generate(&mlx_sys, &shims, dir)
}

/// Returns the cargo configuration that overrides the build script of mlx-sys for `target`.
pub(crate) fn cargo_config(target: &str, prefix: &Path) -> String {
    let prefix = prefix.display();
    format!(
        r#"# Written by `cargo xtask setup`; do not edit.
[target.{target}.mlx]
rustc-link-search = ["native={prefix}", "native={prefix}/whl/mlx/lib"]
rustc-link-lib = ["static:-bundle=mlxc", "dylib=mlx", "dylib=stdc++"]
rustc-env = {{ OUT_DIR = "{prefix}" }}
libdir = "{prefix}/whl/mlx/lib"
"#
    )
}

fn write_cargo_config(progress: &Progress, root: &Path, text: &str) -> Result<()> {
    let name = ".cargo/mlx-linux.generated.toml";
    let path = root.join(name);
    if fs::read_to_string(&path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    let partial = path.with_file_name("partial.generated.toml");
    fs::write(&partial, text)
        .and_then(|()| fs::rename(&partial, &path))
        .with_context(|| format!("writing {name}"))?;
    progress.print(format!("wrote {name}"));
    Ok(())
}

fn check_mac(progress: &Progress) -> Result<()> {
    prerequisites::check(prerequisites::MACOS_BUILD)?;
    macos_target::select(progress)?;
    progress.print(
        "this Mac is ready: `cargo build` downloads MLX from github.com and developer.apple.com and builds it \
         (some minutes)",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_overrides_the_build_script_of_the_target() {
        let config = cargo_config(LINUX_TARGET, Path::new("/cache/mlx"));
        assert!(
            config.contains("[target.x86_64-unknown-linux-gnu.mlx]\n"),
            "{config}"
        );
        assert!(
            config.contains("rustc-env = { OUT_DIR = \"/cache/mlx\" }\n"),
            "{config}"
        );
        assert!(
            config.contains("libdir = \"/cache/mlx/whl/mlx/lib\"\n"),
            "{config}"
        );
    }
}
