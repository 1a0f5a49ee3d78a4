//! Directory in the user's cache with a prepared MLX, with libclang, or with Kubernetes.

use std::{
    env,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::{bindings, mlx_c, versions, wheels};
use crate::console::Progress;

pub(crate) struct Prefix {
    dir: PathBuf,
}

impl Prefix {
    /// Returns the prefix of the current versions and settings, whether it exists or not.
    pub(crate) fn locate() -> Result<Self> {
        let name = format!(
            "mlx-{}-sys-{}-{:016x}",
            versions::MLX,
            versions::MLX_SYS,
            recipe_hash()
        );
        Ok(Self {
            dir: cache_dir()?.join(name),
        })
    }

    /// Returns the directory of libclang alone, which `check-macos` uses.
    pub(super) fn locate_libclang() -> Result<Self> {
        Ok(Self {
            dir: cache_dir()?.join(format!("libclang-{}", versions::LIBCLANG)),
        })
    }

    /// Returns the directory `NAME-HASH`. The hash is that of `recipe`: everything from which the
    /// content is built.
    pub(crate) fn locate_by_recipe(name: &str, recipe: &[&str]) -> Result<Self> {
        let hash = hash(recipe.iter().copied());
        Ok(Self {
            dir: cache_dir()?.join(format!("{name}-{hash:016x}")),
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns true if the prefix is complete. An incomplete prefix has another name.
    pub(crate) fn is_ready(&self) -> bool {
        self.dir.is_dir()
    }

    /// Builds the prefix with `build`. If several checkouts call this at the same time, only one of
    /// them builds.
    pub(super) fn build(&self, progress: &Progress, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        self.complete(progress, |partial| {
            if partial.exists() {
                fs::remove_dir_all(partial).with_context(|| format!("removing {}", partial.display()))?;
            }
            fs::create_dir(partial).with_context(|| format!("creating {}", partial.display()))?;
            build(partial)?;
            Ok(true)
        })?;
        Ok(())
    }

    /// Like [`Self::build`], but keeps the files of an incomplete build for the next call. `build`
    /// returns whether the directory is complete. Every file in it must be complete at any time.
    pub(crate) fn resume(
        &self,
        progress: &Progress,
        build: impl FnOnce(&Path) -> Result<bool>,
    ) -> Result<bool> {
        self.complete(progress, |partial| {
            fs::create_dir_all(partial).with_context(|| format!("creating {}", partial.display()))?;
            build(partial)
        })
    }

    fn complete(&self, progress: &Progress, build: impl FnOnce(&Path) -> Result<bool>) -> Result<bool> {
        let cache = self.dir.parent().expect("the prefix is in the cache directory");
        fs::create_dir_all(cache).with_context(|| format!("creating {}", cache.display()))?;
        let _lock = lock(progress, &self.dir.with_added_extension("lock"))?;
        if self.is_ready() {
            progress.print("another checkout has prepared the directory");
            return Ok(true);
        }
        let partial = self.dir.with_added_extension("partial");
        if !build(&partial)? {
            return Ok(false);
        }
        fs::rename(&partial, &self.dir).with_context(|| format!("creating {}", self.dir.display()))?;
        progress.print(format!("prepared {}", self.dir.display()));
        Ok(true)
    }
}

/// Locks the file until the result is dropped or the process ends.
fn lock(progress: &Progress, path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            progress.print("waiting for another checkout that prepares the same directory")
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("locking {}", path.display()));
        }
    }
    file.lock()
        .with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

/// Returns `$ROOFLET_CACHE_DIR`; `rooflet` in the user's cache directory if unset.
fn cache_dir() -> Result<PathBuf> {
    let var = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let dir = var("ROOFLET_CACHE_DIR")
        .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("rooflet")))
        .or_else(|| var("HOME").map(|dir| dir.join(".cache/rooflet")))
        .context("none of ROOFLET_CACHE_DIR, XDG_CACHE_HOME and HOME is set: set one")?;
    std::path::absolute(&dir).with_context(|| format!("resolving {}", dir.display()))
}

/// Returns the hash of all inputs of the prefix.
fn recipe_hash() -> u64 {
    let versions = [versions::MLX, versions::MLX_SYS, versions::LIBCLANG];
    let parts = versions
        .into_iter()
        .chain(wheels::recipe())
        .chain(mlx_c::recipe())
        .chain(bindings::recipe());
    hash(parts)
}

fn hash<'a>(parts: impl Iterator<Item = &'a str>) -> u64 {
    fnv1a(parts.flat_map(|part| part.bytes().chain([0])))
}

/// Returns the FNV-1a hash. It is used for a directory name, not for security.
fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_matches_published_vectors() {
        // From the FNV reference: http://www.isthe.com/chongo/tech/comp/fnv/
        assert_eq!(fnv1a("".bytes()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a".bytes()), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a("foobar".bytes()), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn failed_build_leaves_no_prefix_and_the_next_one_starts_from_scratch() {
        let cache = env::temp_dir().join(format!("rooflet-xtask-prefix-{}", std::process::id()));
        let prefix = Prefix {
            dir: cache.join("mlx"),
        };
        let progress = Progress::new("test");

        let failed = prefix.build(&progress, |dir| {
            fs::write(dir.join("half"), "")?;
            anyhow::bail!("no compiler")
        });
        assert!(failed.is_err());
        assert!(!prefix.is_ready());

        prefix
            .build(&progress, |dir| Ok(fs::write(dir.join("whole"), "")?))
            .expect("builds");
        assert!(prefix.dir().join("whole").exists());
        assert!(!prefix.dir().join("half").exists());

        prefix
            .build(&progress, |_| panic!("the prefix is ready already"))
            .expect("nothing to build");
        fs::remove_dir_all(cache).expect("the directory exists");
    }

    #[test]
    fn resumed_build_keeps_the_files_of_incomplete_builds() {
        let cache = env::temp_dir().join(format!("rooflet-xtask-resume-{}", std::process::id()));
        let prefix = Prefix {
            dir: cache.join("kubernetes"),
        };
        let progress = Progress::new("test");
        let failed = prefix.resume(&progress, |dir| {
            fs::write(dir.join("etcd"), "")?;
            anyhow::bail!("interrupted")
        });
        assert!(failed.is_err() && !prefix.is_ready());
        let stopped = prefix.resume(&progress, |dir| {
            fs::write(dir.join("kubectl"), "")?;
            Ok(false)
        });
        assert!(!stopped.expect("stopped early") && !prefix.is_ready());
        let complete = prefix.resume(&progress, |dir| {
            fs::write(dir.join("helm"), "")?;
            Ok(true)
        });
        assert!(complete.expect("builds"));
        for name in ["etcd", "kubectl", "helm"] {
            assert!(prefix.dir().join(name).exists(), "{name}");
        }
        fs::remove_dir_all(cache).expect("the directory exists");
    }
}
