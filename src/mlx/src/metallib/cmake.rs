//! Facts about MLX's build, from the files that CMake wrote. The build script uses this file on a
//! Mac; elsewhere, only tests use it.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::fingerprint::Fingerprint;

/// Part of the name of each kernel for matrix units.
const MATRIX_UNIT_KERNEL: &[u8] = b"_nax";
/// Bytes of the beginning of `mlx.metallib` that contain the names of its functions.
const NAMES: u64 = 8 << 20;

/// Build of MLX for Metal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MetalBuild {
    /// Oldest macOS on which the build runs.
    pub(super) macos: String,
    pub(super) is_optimized: bool,
    pub(super) has_matrix_units: bool,
    pub(super) metallib: PathBuf,
    pub(super) fingerprint: Fingerprint,
}

/// Error of [`MetalBuild::read`].
#[derive(Debug)]
pub(super) enum MetalBuildError {
    Read(PathBuf, io::Error),
    OtherMacos { built: String, requested: String },
}

impl fmt::Display for MetalBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, err) => write!(f, "reading {}: {err}", path.display()),
            Self::OtherMacos { built, requested } => write!(
                f,
                "MLX was built for macOS {built}, and this build is for macOS {requested}: \
                 run `cargo clean -p mlx-sys`, with `--release` for a release build"
            ),
        }
    }
}

/// Returns CMake's directory. mlx-sys publishes a list of directories with headers, the first of
/// which is `DIRECTORY/_deps/mlx-src`.
pub(super) fn directory(include: &Path) -> Option<&Path> {
    let dependencies = include.parent().filter(|parent| parent.ends_with("_deps"))?;
    dependencies.parent()
}

impl MetalBuild {
    /// Reads the build in CMake's directory. `requested` is the oldest macOS that the binary is
    /// built for.
    pub(super) fn read(directory: &Path, requested: Option<&str>) -> Result<Self, MetalBuildError> {
        let path = directory.join("CMakeCache.txt");
        let cache = match fs::read_to_string(&path) {
            Ok(cache) => cache,
            Err(err) => return Err(MetalBuildError::Read(path, err)),
        };
        let macos = entry(&cache, "CMAKE_OSX_DEPLOYMENT_TARGET").unwrap_or_default();
        if let Some(requested) = requested
            && requested != macos
        {
            return Err(MetalBuildError::OtherMacos {
                built: macos.to_owned(),
                requested: requested.to_owned(),
            });
        }
        // The installation directory has a copy that belongs to this build. The file at
        // MLX_RS_METAL_PATH may belong to a later build.
        let metallib = directory.join("lib/mlx.metallib");
        let read = |err| MetalBuildError::Read(metallib.clone(), err);
        Ok(Self {
            macos: macos.to_owned(),
            is_optimized: entry(&cache, "CMAKE_BUILD_TYPE") == Some("Release"),
            has_matrix_units: has_matrix_units(&metallib).map_err(read)?,
            fingerprint: Fingerprint::of(&metallib).map_err(read)?,
            metallib,
        })
    }
}

/// Returns the value of an entry `NAME:TYPE=VALUE`.
fn entry<'a>(cache: &'a str, name: &str) -> Option<&'a str> {
    let lines = cache
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let mut values = lines.filter_map(|rest| Some(rest.split_once('=')?.1.trim()));
    values.next().filter(|value| !value.is_empty())
}

fn has_matrix_units(metallib: &Path) -> io::Result<bool> {
    let mut names = Vec::new();
    File::open(metallib)?.take(NAMES).read_to_end(&mut names)?;
    let size = MATRIX_UNIT_KERNEL.len();
    Ok(names.windows(size).any(|window| window == MATRIX_UNIT_KERNEL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_testing::TempDir;

    /// Writes a build directory. The cache has lines of MLX 0.32.2, and an entry whose name begins
    /// like that of the deployment target.
    fn cmake(build_type: &str, macos: &str, kernel: &str) -> TempDir {
        let build = TempDir::new();
        let cache = format!(
            "# This is the CMakeCache file.\n//Choose the type of build\nCMAKE_BUILD_TYPE:UNINITIALIZED={build_type}\n\
             CMAKE_OSX_DEPLOYMENT_TARGET-ADVANCED:INTERNAL=1\nCMAKE_OSX_DEPLOYMENT_TARGET:STRING={macos}\n"
        );
        fs::write(build.path().join("CMakeCache.txt"), cache).unwrap();
        fs::create_dir(build.path().join("lib")).unwrap();
        let metallib = format!("MTLB\0\0NAME\u{1}{kernel}\0");
        fs::write(build.path().join("lib/mlx.metallib"), metallib).unwrap();
        build
    }

    fn read(build: &TempDir, requested: Option<&str>) -> Result<MetalBuild, String> {
        let build = MetalBuild::read(build.path().as_std_path(), requested);
        build.map_err(|err| err.to_string())
    }

    #[test]
    fn reads_target_profile_and_kernels() {
        let build = read(
            &cmake("Release", "26.2", "affine_qmm_t_nax_bfloat16_t_gs_64"),
            Some("26.2"),
        )
        .unwrap();
        assert!(
            build.is_optimized && build.has_matrix_units && build.macos == "26.2",
            "{build:?}"
        );
        let build = read(&cmake("Debug", "14.0", "affine_qmm_t_bfloat16_t_gs_64"), None).unwrap();
        assert!(
            !build.is_optimized && !build.has_matrix_units && build.macos == "14.0",
            "{build:?}"
        );
    }

    #[test]
    fn rejects_mlx_of_another_target() {
        let problem = read(&cmake("Release", "14.0", "copy"), Some("26.2")).unwrap_err();
        assert!(
            problem.contains("for macOS 14.0") && problem.contains("cargo clean -p mlx-sys"),
            "{problem}"
        );
    }

    #[test]
    fn missing_kernels_are_an_error_with_the_path() {
        let build = cmake("Release", "14.0", "copy");
        fs::remove_file(build.path().join("lib/mlx.metallib")).unwrap();
        let problem = read(&build, None).unwrap_err();
        assert!(problem.contains("lib/mlx.metallib"), "{problem}");
    }

    #[test]
    fn directory_is_that_of_the_published_headers() {
        let found = directory(Path::new(
            "/target/release/build/mlx-sys-1/out/build/_deps/mlx-src",
        ));
        assert_eq!(
            found,
            Some(Path::new("/target/release/build/mlx-sys-1/out/build"))
        );
        assert_eq!(directory(Path::new("/opt/mlx/include")), None);
    }
}
