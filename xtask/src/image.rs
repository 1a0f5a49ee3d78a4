//! `cargo xtask image`: builds the file tree of the control plane's image.
//!
//! The binary is static, because no base image has the C library of every build machine. With static
//! glibc (2.34 or later), names are still resolved by /etc/hosts and DNS.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::console::{self, Outcome};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// User and group of the image; `manifests/Containerfile` and the chart have the same number.
const USER: u32 = 65532;
/// Program in the image.
const PROGRAM: &str = "usr/local/bin/rooflet";
/// Certificates of public authorities, for requests to model hubs.
const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Builds the tree in the release profile, and prints its path.
pub(crate) fn run() -> Result<Outcome> {
    if let Some(reason) = unsupported() {
        bail!("{reason}");
    }
    let root = build("release")?;
    println!("{}", root.display());
    Ok(Outcome::Passed)
}

/// Builds the tree in the profile `fast`, and runs its program as the image's user, without the
/// files of this machine.
pub(crate) fn check() -> Result<Outcome> {
    if let Some(reason) = unsupported() {
        return Ok(Outcome::Skipped(reason));
    }
    let root = build("fast")?;
    for arguments in [&["version"][..], &["server", "--help"]] {
        let mut isolated = isolated(&root);
        let printed = console::output(isolated.arg(format!("/{PROGRAM}")).args(arguments))?;
        if printed.trim().is_empty() {
            bail!("`rooflet {}` prints nothing in the image", arguments.join(" "));
        }
    }
    Ok(Outcome::Passed)
}

fn unsupported() -> Option<String> {
    let supported = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    (!supported).then(|| "the image is built on Linux x86-64".to_owned())
}

/// Builds the program and returns the directory of the tree.
fn build(profile: &str) -> Result<PathBuf> {
    let target = console::target_dir();
    let mut cargo = console::cargo();
    cargo.args(["build", "--locked", "--package", "rooflet"]);
    cargo.args(["--no-default-features", "--features", "otlp"]);
    cargo.args(["--profile", profile, "--target", TARGET]);
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
    if console::run(&mut cargo)? != Outcome::Passed {
        bail!("the build of the control plane failed");
    }
    let built = target.join(TARGET).join(profile).join("rooflet");
    let bytes = fs::read(&built).with_context(|| built.display().to_string())?;
    if has_interpreter(&bytes) {
        bail!("{} is not static: it names a dynamic loader", built.display());
    }
    let root = target.join("image");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| root.display().to_string())?;
    }
    let authorities = fs::read(Path::new("/").join(AUTHORITIES))
        .with_context(|| format!("/{AUTHORITIES}: install the package ca-certificates"))?;
    write(&root, PROGRAM, &bytes, 0o755)?;
    write(&root, AUTHORITIES, &authorities, 0o644)?;
    let user = format!("rooflet:x:{USER}:{USER}::/:/sbin/nologin\n");
    write(&root, "etc/passwd", user.as_bytes(), 0o644)?;
    let group = format!("rooflet:x:{USER}:\n");
    write(&root, "etc/group", group.as_bytes(), 0o644)?;
    let containerfile = fs::read_to_string(console::root().join("manifests/Containerfile"))?;
    for line in [
        format!("USER {USER}:{USER}"),
        format!("ENTRYPOINT [\"/{PROGRAM}\"]"),
    ] {
        if !containerfile.lines().any(|known| known == line) {
            bail!("manifests/Containerfile: the line `{line}` is missing");
        }
    }
    Ok(root)
}

fn write(root: &Path, name: &str, bytes: &[u8], mode: u32) -> Result<()> {
    let path = root.join(name);
    let parent = path.parent().unwrap_or(root);
    fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    fs::write(&path, bytes).with_context(|| path.display().to_string())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).with_context(|| path.display().to_string())
}

/// Returns whether a 64-bit little-endian ELF file has a program header PT_INTERP.
fn has_interpreter(elf: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, length: usize| {
        let bytes = elf.get(at..at + length)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0_usize, |value, byte| value << 8 | usize::from(*byte)),
        )
    };
    let (Some(table), Some(size), Some(count)) = (number(0x20, 8), number(0x36, 2), number(0x38, 2)) else {
        return false;
    };
    (0..count).any(|index| number(table + index * size, 4) == Some(PT_INTERP as usize))
}

/// Returns a command that runs a program with `root` as the root directory, as the image's user.
fn isolated(root: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        &format!("--map-user={USER}"),
        &format!("--map-group={USER}"),
    ]);
    command.arg("--root").arg(root);
    command
}
