//! Random batches with faults at a random change of the disk, compared with a model: all acknowledged
//! writes, and the batches whose outcome is unknown.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};

use super::*;

const KEYS: [&str; 5] = ["/a/1", "/a/2", "/b/1", "/b/2", "/c"];
/// Number of changes of the disk after which a crash happens at the latest.
const CHANGES_MAX: u64 = 40;

/// Event of the disk or the process during a batch.
#[derive(Debug, Clone)]
enum Fault {
    None,
    /// The process closes the store and opens it again.
    Restart,
    /// The process ends after some changes of the disk. The kernel still writes all its pages.
    Kill {
        after: u64,
    },
    /// The power fails after some changes of the disk, and again during the recovery. Some unsynced sectors
    /// survive.
    PowerCut {
        after: u64,
        again: Option<u64>,
        seed: u64,
    },
    FailedSync {
        after: u64,
    },
    /// A sync succeeds, but reports an error.
    FalseAlarm,
    FailedDirectorySync,
    FullDisk,
    FreeDisk,
}

#[derive(Debug, Clone)]
struct Step {
    /// Keys with the length of the new text. `None` deletes the key.
    batch: Vec<(usize, Option<usize>)>,
    maintains: bool,
    fault: Fault,
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![6 => 0_usize..40, 1 => 5_000_usize..9_000];
    let write = (
        0..KEYS.len(),
        prop_oneof![3 => length.prop_map(Some), 1 => Just(None)],
    );
    let cut = (0..CHANGES_MAX, prop::option::of(0..CHANGES_MAX / 2), any::<u64>());
    let fault = prop_oneof![
        6 => Just(Fault::None),
        1 => Just(Fault::Restart),
        2 => (0..CHANGES_MAX).prop_map(|after| Fault::Kill { after }),
        4 => cut.prop_map(|(after, again, seed)| Fault::PowerCut { after, again, seed }),
        1 => (0_u64..3).prop_map(|after| Fault::FailedSync { after }),
        1 => Just(Fault::FalseAlarm),
        1 => Just(Fault::FailedDirectorySync),
        1 => Just(Fault::FullDisk),
        2 => Just(Fault::FreeDisk),
    ];
    (
        prop::collection::vec(write, 0..4),
        prop::bool::weighted(0.2),
        fault,
    )
        .prop_map(|(batch, maintains, fault)| Step {
            batch,
            maintains,
            fault,
        })
}

/// Write at a revision: key, and the text unless the write is a deletion.
type Logged = (u64, &'static str, Option<String>);

/// Content of the store.
type Content = BTreeMap<String, String>;

/// Writes that a correct store may contain.
#[derive(Default)]
struct Model {
    /// Acknowledged writes, and unacknowledged ones that a restart has shown to be durable.
    log: Vec<Logged>,
    /// Batches since the last acknowledged one that failed. After a crash, at most one of them is durable.
    in_doubt: Vec<Vec<Logged>>,
}

impl Model {
    fn revision(&self) -> u64 {
        self.log.last().map_or(1, |(revision, ..)| *revision)
    }

    fn content(&self) -> Content {
        content(&self.log)
    }

    /// Returns the log after a batch, whose writes are evaluated in order.
    fn evaluated(&self, batch: &[(&'static str, Option<String>)]) -> Vec<Logged> {
        let mut content = self.content();
        let mut revision = self.revision();
        let mut logged = Vec::new();
        for (key, text) in batch {
            match text {
                Some(text) => drop(content.insert((*key).to_owned(), text.clone())),
                None if content.remove(*key).is_none() => continue,
                None => {}
            }
            revision += 1;
            logged.push((revision, *key, text.clone()));
        }
        logged
    }
}

fn content(log: &[Logged]) -> Content {
    let mut content = Content::new();
    for (_, key, text) in log {
        match text {
            Some(text) => content.insert((*key).to_owned(), text.clone()),
            None => content.remove(*key),
        };
    }
    content
}

/// Store under test with its model.
struct Run {
    disk: PowerCutDisk,
    store: Manual,
    config: StoreConfig,
    model: Model,
    /// Watch of all keys since the store was opened, from this revision on.
    watcher: Watcher,
    watched_after: u64,
    is_full: bool,
    /// True if the disk was full since the store was opened. The store may then reject single writes of a
    /// batch.
    was_full: bool,
    writes: usize,
}

impl Run {
    fn new(config: StoreConfig) -> Self {
        let disk = PowerCutDisk::new();
        let store = Manual::open(&disk, &config).expect("a new store");
        let watcher = store.watch("/", Revision(1)).expect("nothing is compacted");
        Self {
            disk,
            store,
            config,
            model: Model::default(),
            watcher,
            watched_after: 1,
            is_full: false,
            was_full: false,
            writes: 0,
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step.fault {
            Fault::None | Fault::Restart => {}
            Fault::Kill { after } | Fault::PowerCut { after, .. } => self.disk.cut_after(after),
            Fault::FailedSync { after } => self.disk.fail_a_sync_after(after),
            Fault::FalseAlarm => self.disk.report_error_after_sync(),
            Fault::FailedDirectorySync => self.disk.fail_a_directory_sync(),
            Fault::FullDisk | Fault::FreeDisk => {
                self.is_full = matches!(step.fault, Fault::FullDisk);
                self.was_full |= self.is_full;
                self.disk.set_full(self.is_full);
            }
        }
        let batch: Vec<_> = step
            .batch
            .iter()
            .map(|(key, length)| {
                self.writes += 1;
                let text = length.map(|length| format!("{}-{}", self.writes, "x".repeat(length)));
                (KEYS[*key], text)
            })
            .collect();
        let size = if self.was_full { 1 } else { batch.len().max(1) };
        for batch in batch.chunks(size) {
            self.commit(batch)?;
        }
        if step.maintains {
            self.store.maintain();
        }
        match step.fault {
            Fault::Restart => {
                self.check_watcher()?;
                self.close();
                self.reopen(self.disk.after_kill())
            }
            Fault::Kill { .. } => {
                self.check_watcher()?;
                self.reopen(self.disk.after_kill())
            }
            Fault::PowerCut { again, seed, .. } => {
                self.check_watcher()?;
                let mut rng = StdRng::seed_from_u64(seed);
                let mut disk = self.disk.after_power_cut(|| rng.next_u32() % 2 == 0);
                if let Some(again) = again {
                    disk.cut_after(again);
                    drop(Manual::open(&disk, &self.config));
                    disk = disk.after_power_cut(|| rng.next_u32() % 2 == 0);
                }
                self.is_full = false;
                self.reopen(disk)
            }
            Fault::None
            | Fault::FailedSync { .. }
            | Fault::FalseAlarm
            | Fault::FailedDirectorySync
            | Fault::FullDisk
            | Fault::FreeDisk => self.check(),
        }
    }

    fn commit(&mut self, batch: &[(&'static str, Option<String>)]) -> Result<(), TestCaseError> {
        let writes = batch.iter().map(|(key, text)| match text {
            Some(text) => put(key, Expect::Any, text.clone()),
            None => delete(key, Expect::Any),
        });
        let outcomes = self.store.batch(writes);
        let expected = self.model.evaluated(batch);
        let mut is_rejected = false;
        let mut acknowledged = Vec::new();
        for ((key, text), outcome) in batch.iter().zip(outcomes) {
            match outcome {
                Ok(record) => acknowledged.push((record.modified.0, *key, text.clone())),
                Err(CommitError::Io(_)) => is_rejected = true,
                Err(CommitError::Full { .. }) => {
                    prop_assert!(text.is_some(), "deletions need no space");
                    is_rejected = true;
                }
                Err(CommitError::Conflict { current: None }) => {
                    prop_assert!(text.is_none(), "only a deletion needs an existing key");
                }
                Err(err) => prop_assert!(false, "{}", err),
            }
        }
        if is_rejected {
            prop_assert!(
                acknowledged.is_empty(),
                "a batch is durable completely or not at all"
            );
            self.model.in_doubt.push(expected);
        } else if !batch.is_empty() {
            prop_assert_eq!(&acknowledged, &expected);
            if !acknowledged.is_empty() {
                self.model.in_doubt.clear();
            }
            self.model.log.extend(acknowledged);
        }
        Ok(())
    }

    /// Checks the state in memory: acknowledged writes only.
    fn check(&self) -> Result<(), TestCaseError> {
        let found: Content = self.store.list("/").into_iter().collect();
        prop_assert_eq!(found, self.model.content());
        prop_assert_eq!(self.store.revision().0, self.model.revision());
        Ok(())
    }

    /// Checks that a watch delivers each acknowledged write once, in order, and nothing else.
    fn check_watcher(&mut self) -> Result<(), TestCaseError> {
        let seen = events(&drain(&mut self.watcher));
        prop_assert_eq!(seen, self.logged_after(self.watched_after));
        Ok(())
    }

    fn logged_after(&self, after: u64) -> Vec<(u64, String, Option<String>)> {
        let logged = self.model.log.iter().filter(|(revision, ..)| *revision > after);
        logged
            .map(|(revision, key, text)| (*revision, (*key).to_owned(), text.clone()))
            .collect()
    }

    fn close(&mut self) {
        let other = Manual::open(&PowerCutDisk::new(), &self.config).expect("a new store");
        std::mem::replace(&mut self.store, other).writer.close();
    }

    /// Opens the store on the disk that a crash or an orderly end has left.
    fn reopen(&mut self, disk: PowerCutDisk) -> Result<(), TestCaseError> {
        let mut opened = Manual::open(&disk, &self.config);
        if opened.is_err() && self.is_full {
            // The first start creates a file, which needs space.
            disk.set_full(false);
            self.is_full = false;
            opened = Manual::open(&disk, &self.config);
        }
        self.store = opened.map_err(|err| TestCaseError::fail(format!("{err:?}")))?;
        self.disk = disk;
        self.was_full = self.is_full;

        let found: Content = self.store.list("/").into_iter().collect();
        let revision = self.store.revision().0;
        if revision > self.model.revision() {
            let durable = self.model.in_doubt.iter().find(|batch| {
                let log: Vec<_> = self.model.log.iter().chain(*batch).cloned().collect();
                log.last().is_some_and(|(last, ..)| *last == revision) && content(&log) == found
            });
            prop_assert!(durable.is_some(), "writes that no client has sent: {:?}", found);
            self.model.log.extend(durable.cloned().unwrap_or_default());
        }
        self.model.in_doubt.clear();
        self.check()?;

        // Clients resume from any revision that they have received, or list again.
        for after in 1..=revision {
            match self.store.watch("/", Revision(after)) {
                Ok(mut resumed) => {
                    let seen = events(&drain(&mut resumed));
                    prop_assert_eq!(seen, self.logged_after(after), "after {}", after);
                }
                Err(compacted) => prop_assert!(
                    after < self.store.compacted().0 && compacted.requested == Revision(after),
                    "{:?}",
                    compacted
                ),
            }
        }
        self.watched_after = revision;
        self.watcher = self
            .store
            .watch("/", Revision(revision))
            .expect("the newest revision");
        Ok(())
    }
}

fn events(events: &[Arc<Event>]) -> Vec<(u64, String, Option<String>)> {
    let logged = events.iter().map(|event| {
        let text = (event.kind != EventKind::Deleted).then(|| text(&event.record));
        (event.revision.0, event.key().to_string(), text)
    });
    logged.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn acknowledged_writes_survive_random_faults(
        steps in prop::collection::vec(step(), 1..25),
        events_max in 1_usize..12,
        garbage_rows_max in 0_usize..4,
    ) {
        let history = HistoryLimits { events_max, garbage_rows_max, ..HistoryLimits::default() };
        let mut run = Run::new(StoreConfig { history, ..config() });
        for step in &steps {
            run.step(step)?;
        }
        run.check_watcher()?;
        run.reopen(run.disk.after_power_cut(|| false))?;
    }
}
