//! Who uses a simulated chip at the moment: each busy worker of a machine holds a lock on a file of its own, which goes with
//! its process however that ends.

use std::fs::{File, TryLockError};
use std::io;

use camino::{Utf8Path, Utf8PathBuf};

/// See the module.
#[derive(Debug)]
pub(super) struct Chip {
    directory: Utf8PathBuf,
    own: Utf8PathBuf,
    /// Held while this worker is busy.
    busy: Option<File>,
}

impl Chip {
    /// `directory` is the machine's, `worker` names the process in it.
    pub(super) fn join(directory: Utf8PathBuf, worker: &str) -> io::Result<Self> {
        std::fs::create_dir_all(&directory)?;
        let own = directory.join(worker);
        Ok(Self {
            directory,
            own,
            busy: None,
        })
    }

    /// This worker has something to compute, or has not.
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

    /// Workers that compute now, this one counted: their requests take turns.
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
    fn busy_workers_share_a_chip_until_they_rest_or_end() {
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
        assert_eq!(one.sharers(), 1, "its process is gone");
    }
}
