//! Download of MLX's CPU build and of libclang from the Python package index.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::versions::{LIBCLANG, MLX};
use crate::console;

const MLX_SHA256: &str = "fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878";
const LIBCLANG_SHA256: &str = "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b";

/// Returns the inputs of this step, except for the versions.
pub(super) fn recipe() -> impl Iterator<Item = &'static str> {
    [MLX_SHA256, LIBCLANG_SHA256].into_iter()
}

/// Returns the directory of the package `mlx` in the unpacked wheel.
pub(super) fn mlx(prefix: &Path) -> PathBuf {
    prefix.join("whl/mlx")
}

/// Returns the directory with libclang.so.
pub(super) fn libclang(prefix: &Path) -> PathBuf {
    prefix.join(format!("libclang/libclang-{LIBCLANG}.data/platlib/clang/native"))
}

/// Returns the directory with the Python package `clang`.
pub(super) fn clang_package(prefix: &Path) -> PathBuf {
    prefix.join(format!("libclang/libclang-{LIBCLANG}.data/platlib"))
}

/// Downloads both wheels, checks their digests and unpacks them.
pub(super) fn fetch(prefix: &Path) -> Result<()> {
    let downloads = prefix.join("downloads");
    download(&downloads, &[&mlx_requirement(), &libclang_requirement()])?;
    unpack(&downloads, &format!("mlx_cpu-{MLX}-"), &prefix.join("whl"))?;
    ensure!(
        mlx(prefix).join("lib/libmlx.so").is_file(),
        "the wheel of MLX {MLX} does not contain mlx/lib/libmlx.so"
    );
    unpack_libclang(&downloads, prefix)
}

/// Downloads libclang alone.
pub(super) fn fetch_libclang(prefix: &Path) -> Result<()> {
    let downloads = prefix.join("downloads");
    download(&downloads, &[&libclang_requirement()])?;
    unpack_libclang(&downloads, prefix)
}

fn mlx_requirement() -> String {
    format!("mlx-cpu=={MLX} --hash=sha256:{MLX_SHA256}\n")
}

fn libclang_requirement() -> String {
    format!("libclang=={LIBCLANG} --hash=sha256:{LIBCLANG_SHA256}\n")
}

fn download(downloads: &Path, wheels: &[&str]) -> Result<()> {
    fs::create_dir(downloads).context("creating the download directory")?;
    let requirements = downloads.join("requirements.txt");
    fs::write(&requirements, wheels.concat()).context("writing requirements.txt")?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"]);
    pip.args(["--no-deps", "--only-binary=:all:", "--require-hashes"]);
    pip.arg("--dest")
        .arg(downloads)
        .arg("--requirement")
        .arg(&requirements);
    console::output(&mut pip).context(
        "downloading wheels with pip (requires glibc 2.35 or later, and the package index or a mirror in pip's \
         configuration)",
    )?;
    Ok(())
}

fn unpack_libclang(downloads: &Path, prefix: &Path) -> Result<()> {
    unpack(
        downloads,
        &format!("libclang-{LIBCLANG}-"),
        &prefix.join("libclang"),
    )?;
    ensure!(
        libclang(prefix).is_dir(),
        "the wheel of libclang {LIBCLANG} does not contain clang/native"
    );
    fs::remove_dir_all(downloads).context("removing the downloads")
}

fn unpack(downloads: &Path, prefix: &str, to: &Path) -> Result<()> {
    let wheel = fs::read_dir(downloads)
        .context("listing the downloads")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        })
        .with_context(|| format!("pip did not download {prefix}*.whl"))?;
    // A wheel is a zip file. Python is available, because pip requires it.
    console::output(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(&wheel)
            .arg(to),
    )
    .with_context(|| format!("unpacking {}", wheel.display()))?;
    Ok(())
}
