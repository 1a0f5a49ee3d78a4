//! Sharing of a simulated chip: each busy worker of a machine locks a file of its own. The system
//! releases the lock when the process exits.

use std::fs::{File, TryLockError};
use std::io;

use camino::{Utf8Path, Utf8PathBuf};

/// Handle of a worker on its machine's chip.
#[derive(Debug)]
pub(super) struct Chip {
    directory: Utf8PathBuf,
    own: Utf8PathBuf,
    /// Lock that is held while this worker is busy.
    busy: Option<File>,
}

impl Chip {
    /// Registers `worker` in the machine's `directory`.
    pub(super) fn join(directory: Utf8PathBuf, worker: &str) -> io::Result<Self> {
        std::fs::create_dir_all(&directory)?;
        let own = directory.join(worker);
        Ok(Self {
            directory,
            own,
            busy: None,
        })
    }

    /// Marks this worker as busy or idle.
    pub(super) fn set_busy(&mut self, busy: bool) -> io::Result<()> {
        if !busy {
            self.busy = None;
        } else if self.busy.is_none() {
            let file = File::create(&self.own)?;
            file.lock()?;
            self.busy = Some(file);
        }
        Ok(())
    }

    /// Returns the number of busy workers, including this one. Their requests share the chip.
    pub(super) fn sharers(&self) -> usize {
        let others = self.directory.read_dir_utf8().into_iter().flatten().flatten();
        let others = others.filter(|entry| entry.path() != self.own && is_held(entry.path()));
        1 + others.count()
    }
}

fn is_held(file: &Utf8Path) -> bool {
    let tried = File::open(file).map(|file| file.try_lock_shared());
    matches!(tried, Ok(Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_testing::TempDir;

    #[test]
    fn chip_is_shared_by_busy_workers() {
        let directory = TempDir::new();
        let path = directory.path().join("busy");
        let mut one = Chip::join(path.clone(), "1").unwrap();
        let mut two = Chip::join(path, "2").unwrap();
        one.set_busy(true).unwrap();
        assert_eq!((one.sharers(), two.sharers()), (1, 2));
        two.set_busy(true).unwrap();
        two.set_busy(true).unwrap();
        assert_eq!((one.sharers(), two.sharers()), (2, 2));
        one.set_busy(false).unwrap();
        assert_eq!(two.sharers(), 1);
        one.set_busy(true).unwrap();
        drop(two);
        assert_eq!(one.sharers(), 1, "the second process has exited");
    }
}
