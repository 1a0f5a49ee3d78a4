//! MLX's compiled Metal kernels: the file `mlx.metallib`.
//!
//! Builds for different versions of macOS have different kernels. MLX uses the first file that it
//! finds, and fails at the first kernel that the file lacks. rooflet therefore selects the file of
//! its own build and passes the path to MLX.

#[cfg(test)]
mod cmake;
mod fingerprint;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fingerprint::Fingerprint;
use rooflet_base::units::Bytes;

/// Name of the file, as MLX searches it beside the binary.
const NAME: &str = "mlx.metallib";

/// Build of MLX in this binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetalBuild {
    /// Oldest macOS on which the build runs.
    pub macos: &'static str,
    /// Version of the SDK, if it was known.
    pub sdk: Option<&'static str>,
    pub is_optimized: bool,
    /// True if the kernels use the matrix units of GPUs that have them.
    pub has_matrix_units: bool,
}

/// Place in which a file of kernels was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    BesideBinary,
    BuildDirectory,
}

/// File of kernels that MLX uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFile {
    pub place: Place,
    pub size: Bytes,
    /// `None` if the build did not record its kernels.
    pub is_of_this_build: Option<bool>,
    path: PathBuf,
}

impl KernelFile {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the build of MLX in this binary; `None` if it is not for Metal.
pub fn build() -> Option<MetalBuild> {
    Some(MetalBuild {
        macos: option_env!("ROOFLET_MLX_MACOS")?,
        sdk: option_env!("ROOFLET_MLX_SDK"),
        is_optimized: option_env!("ROOFLET_MLX_OPTIMIZED") == Some("true"),
        has_matrix_units: option_env!("ROOFLET_MLX_MATRIX_UNITS") == Some("true"),
    })
}

/// Returns the file of kernels that was selected at the start; `None` if none was found.
pub fn selected() -> Option<&'static KernelFile> {
    static SELECTED: OnceLock<Option<KernelFile>> = OnceLock::new();
    let select = || {
        let built = option_env!("ROOFLET_MLX_METALLIB").map(Path::new);
        let expected = option_env!("ROOFLET_MLX_FINGERPRINT").and_then(|text| text.parse().ok());
        // A link to the binary may lie elsewhere.
        let binary = std::env::current_exe().and_then(|path| path.canonicalize()).ok();
        select(expected, &found(binary.as_deref(), built))
    };
    SELECTED.get_or_init(select).as_ref()
}

/// Returns the path that MLX must use.
pub(super) fn path() -> Option<&'static Path> {
    selected().map(|file| file.path.as_path())
}

/// Returns the problem with the selected file, if the file belongs to another build.
pub fn problem() -> Option<String> {
    let file = selected()?;
    (file.is_of_this_build == Some(false)).then(|| {
        format!(
            "`{}` has the kernels of another build: replace it by the {NAME} that was built with this binary",
            file.path.display()
        )
    })
}

fn found(binary: Option<&Path>, built: Option<&Path>) -> Vec<(Place, PathBuf, Fingerprint)> {
    let beside = binary
        .and_then(Path::parent)
        .map(|directory| directory.join(NAME));
    let places = [
        (Place::BesideBinary, beside),
        (Place::BuildDirectory, built.map(Path::to_owned)),
    ];
    let readable = |(place, path): (Place, Option<PathBuf>)| {
        let path = path?;
        let fingerprint = Fingerprint::of(&path).ok()?;
        Some((place, path, fingerprint))
    };
    places.into_iter().filter_map(readable).collect()
}

/// Selects the first file of this build, else the first file.
fn select(expected: Option<Fingerprint>, found: &[(Place, PathBuf, Fingerprint)]) -> Option<KernelFile> {
    let is_expected = |fingerprint: &Fingerprint| expected.map(|expected| *fingerprint == expected);
    let matching = found.iter().find(|(_, _, of)| is_expected(of) == Some(true));
    let (place, path, fingerprint) = matching.or(found.first())?;
    Some(KernelFile {
        place: *place,
        size: Bytes(fingerprint.bytes),
        is_of_this_build: is_expected(fingerprint),
        path: path.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use rooflet_testing::TempDir;

    /// Selection with files of the given contents: beside the binary and in the build directory.
    fn selection(beside: Option<&str>, built: Option<&str>, expected: &str) -> Option<(Place, Option<bool>)> {
        let root = TempDir::new();
        let root = root.path().as_std_path();
        let directory = |name: &str, content: Option<&str>| {
            fs::create_dir(root.join(name)).unwrap();
            if let Some(content) = content {
                fs::write(root.join(name).join(NAME), content).unwrap();
            }
            root.join(name)
        };
        let binary = directory("bin", beside).join("rooflet");
        let built = directory("build", built).join(NAME);
        fs::write(root.join("expected"), expected).unwrap();
        let expected = Fingerprint::of(&root.join("expected")).unwrap();
        let file = select(Some(expected), &found(Some(&binary), Some(&built)))?;
        assert!(file.path.is_file());
        Some((file.place, file.is_of_this_build))
    }

    #[test]
    fn file_of_this_build_is_preferred_over_its_place() {
        use Place::{BesideBinary, BuildDirectory};
        let mine = "kernels for 26.2";
        let other = "kernels for 14.0";
        for (beside, built, expect) in [
            (Some(mine), Some(mine), Some((BesideBinary, Some(true)))),
            (Some(mine), None, Some((BesideBinary, Some(true)))),
            (None, Some(mine), Some((BuildDirectory, Some(true)))),
            // The binary was replaced without its kernels.
            (Some(other), Some(mine), Some((BuildDirectory, Some(true)))),
            (Some(other), None, Some((BesideBinary, Some(false)))),
            // A later build has written into the same directory.
            (Some(mine), Some(other), Some((BesideBinary, Some(true)))),
            (None, Some(other), Some((BuildDirectory, Some(false)))),
            (None, None, None),
        ] {
            assert_eq!(selection(beside, built, mine), expect, "{beside:?} {built:?}");
        }
    }

    #[test]
    fn build_without_a_record_uses_what_is_beside_the_binary() {
        let root = TempDir::new();
        let root = root.path().as_std_path();
        fs::write(root.join(NAME), "kernels").unwrap();
        let file = select(None, &found(Some(&root.join("rooflet")), None)).unwrap();
        assert_eq!((file.place, file.is_of_this_build), (Place::BesideBinary, None));
    }

    #[test]
    fn fingerprints_survive_their_text_and_differ_by_size_and_content() {
        let root = TempDir::new();
        let of = |content: &str| {
            let path = root.path().join("file");
            fs::write(&path, content).unwrap();
            Fingerprint::of(path.as_std_path()).unwrap()
        };
        let one = of("one");
        assert_eq!(one.to_string().parse(), Ok(one));
        assert_ne!(one, of("two"));
        assert_ne!(one, of("one\0"));
        assert!("".parse::<Fingerprint>().is_err() && "3-x".parse::<Fingerprint>().is_err());
    }
}
