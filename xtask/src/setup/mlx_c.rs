//! Compilation of mlx-c from the sources in the mlx-sys crate with the headers of the wheel.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context, Result, ensure};

use super::wheels;
use crate::console::{self, Progress};

const FLAGS: &[&str] = &["-std=c++20", "-O2", "-fPIC", "-DNDEBUG", "-w"];

/// Files that mlx-c requires and that exist only on a Mac. Each file explains why it is required.
/// The ARM headers are empty, because mlx-c uses no item of them.
const SHIMS: &[(&str, &str)] = &[
    ("format.h", include_str!("../../shims/format.h")),
    ("half.h", include_str!("../../shims/half.h")),
    ("mach_time.cpp", include_str!("../../shims/mach_time.cpp")),
    ("arm_fp16.h", ""),
    ("arm_bf16.h", ""),
];

/// Returns the inputs of this step, except for the versions.
pub(super) fn recipe() -> impl Iterator<Item = &'static str> {
    FLAGS
        .iter()
        .copied()
        .chain(SHIMS.iter().flat_map(|&(name, text)| [name, text]))
}

/// Returns `$CXX`; `c++` if unset.
pub(super) fn compiler() -> OsString {
    std::env::var_os("CXX")
        .filter(|value| !value.is_empty())
        .unwrap_or_else(|| "c++".into())
}

pub(super) fn write_shims(dir: &Path) -> Result<()> {
    fs::create_dir(dir).with_context(|| format!("creating {}", dir.display()))?;
    for (name, text) in SHIMS {
        fs::write(dir.join(name), text).with_context(|| format!("writing {name}"))?;
    }
    Ok(())
}

/// Writes `libmlxc.a` to `prefix`.
pub(super) fn compile(progress: &Progress, mlx_sys: &Path, shims: &Path, prefix: &Path) -> Result<()> {
    let mlx_c = mlx_sys.join("src/mlx-c");
    let mut sources = cpp_files(&mlx_c.join("mlx/c"))?;
    ensure!(!sources.is_empty(), "{} has no C++ files", mlx_c.display());
    sources.push(shims.join("mach_time.cpp"));
    let objects = prefix.join("objects");
    fs::create_dir(&objects).context("creating the object directory")?;

    let jobs = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(sources.len());
    progress.print(format!(
        "compiling mlx-c: {} files, {jobs} at a time",
        sources.len()
    ));
    let mut common: Vec<OsString> = FLAGS.iter().map(OsString::from).collect();
    for header in ["format.h", "half.h"] {
        common.extend(["-include".into(), shims.join(header).into()]);
    }
    for dir in [&wheels::mlx(prefix).join("include"), &mlx_c] {
        common.extend(["-I".into(), dir.into()]);
    }
    compile_all(&sources, &objects, &common, jobs)?;

    let archive = prefix.join("libmlxc.a");
    console::output(
        Command::new("ar")
            .arg("crs")
            .arg(&archive)
            .args(sources.iter().map(|s| object(&objects, s))),
    )?;
    fs::remove_dir_all(&objects).context("removing the object files")
}

fn compile_all(sources: &[PathBuf], objects: &Path, common: &[OsString], jobs: usize) -> Result<()> {
    let next = AtomicUsize::new(0);
    let worker = || -> Result<()> {
        while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut command = Command::new(compiler());
            command
                .args(common)
                .arg("-c")
                .arg(source)
                .arg("-o")
                .arg(object(objects, source));
            if let Err(error) = console::output(&mut command) {
                // The other threads stop after their current file.
                next.store(sources.len(), Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

fn cpp_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new("cpp")) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn object(objects: &Path, source: &Path) -> PathBuf {
    objects
        .join(source.file_name().expect("a source file has a name"))
        .with_extension("o")
}
