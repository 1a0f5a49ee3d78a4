//! `cargo xtask setup`: what cargo cannot build by itself.
//!
//! On a Mac that is nothing: mlx-sys builds MLX. Its build script knows only macOS, so on Linux the
//! script is overridden: this task prepares MLX's CPU build (a wheel), mlx-c and its Rust
//! declarations in a prefix, and writes `.cargo/mlx-linux.generated.toml`, which points cargo at
//! it.
//!
//! The prefix is named after everything that went into it, is built aside and renamed into place,
//! and lies in the user's cache: all checkouts share it, and a half-built one is never seen.

mod bindings;
mod mlx_c;
mod prefix;
mod versions;
mod wheels;

use std::{env, fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::console::{self, Progress};

pub(crate) use prefix::Prefix;

/// The only Linux that is prepared for: the pinned wheels are built for it.
const LINUX_TARGET: &str = "x86_64-unknown-linux-gnu";

pub(crate) fn run() -> Result<()> {
    let progress = Progress::new("setup");
    match (env::consts::OS, env::consts::ARCH) {
        ("linux", "x86_64") => prepare_linux(&progress),
        ("macos", _) => check_mac(&progress),
        (os, arch) => bail!(
            "MLX can be prepared on Linux x86_64 and is built by cargo on macOS; this is {os} {arch}. \
             A controller-only build needs none of it: cargo build --no-default-features"
        ),
    }
}

fn prepare_linux(progress: &Progress) -> Result<()> {
    versions::check_lock_file(&console::root())?;
    let prefix = Prefix::locate()?;
    if prefix.is_ready() {
        progress.say(format!(
            "MLX {} is ready in {}",
            versions::MLX,
            prefix.dir().display()
        ));
    } else {
        check_tools()?;
        prefix.build(progress, |dir| build_prefix(progress, dir))?;
    }
    write_cargo_config(
        progress,
        &console::root(),
        &cargo_config(LINUX_TARGET, prefix.dir()),
    )
}

fn build_prefix(progress: &Progress, dir: &Path) -> Result<()> {
    let shims = dir.join("shims");
    mlx_c::write_shims(&shims)?;

    progress.say("finding the mlx-sys crate (cargo downloads what is missing)");
    let mlx_sys = versions::find_mlx_sys()?;
    versions::check_crate(&mlx_sys)?;

    progress.say(format!(
        "downloading MLX {} and libclang {} with pip",
        versions::MLX,
        versions::LIBCLANG
    ));
    wheels::fetch(dir)?;
    versions::check_wheel(&wheels::mlx(dir))?;

    mlx_c::compile(progress, &mlx_sys, &shims, dir)?;

    progress.say("generating the Rust declarations of mlx-c (builds bindgen first)");
    bindings::generate(&mlx_sys, &shims, dir)
}

/// The override of mlx-sys's build script for `target`.
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
    progress.say(format!("wrote {name}"));
    Ok(())
}

fn check_tools() -> Result<()> {
    let cxx = mlx_c::compiler();
    if !console::is_installed(&cxx) {
        bail!(
            "no C++ compiler `{}`: apt install g++ (or set CXX)",
            cxx.display()
        );
    }
    if !console::is_installed("ar") {
        bail!("no `ar`: apt install binutils");
    }
    wheels::check_tools()
}

fn check_mac(progress: &Progress) -> Result<()> {
    if !console::is_installed("xcrun") {
        bail!("no `xcrun`: install Xcode from the App Store (MLX's Metal kernels are compiled by it)");
    }
    // Not `--find`: Xcode 26 has a stub there that only says what to download.
    let version = ["-sdk", "macosx", "metal", "--version"];
    console::output(Command::new("xcrun").args(version)).context(
        "no Metal compiler: install Xcode (its command line tools have none), choose it with `sudo xcode-select --switch \
         /Applications/Xcode.app`, and from Xcode 26 on run `xcodebuild -downloadComponent MetalToolchain`",
    )?;
    if !console::is_installed("cmake") {
        bail!("no `cmake`, which builds MLX: brew install cmake");
    }
    progress.say("nothing to prepare on a Mac: cargo builds MLX itself (the first time takes minutes)");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_overrides_the_build_script_of_one_target() {
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
