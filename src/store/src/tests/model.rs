//! Random operations compared with a reference model: the list of all past writes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const KEYS: [&str; 6] = ["/a/x/1", "/a/x/2", "/a/x-y/1", "/a/y/1", "/b/x/1", "/b/x/10"];
const PREFIXES: [&str; 5] = ["/", "/a/", "/a/x/", "/b/x/1", "/none/"];

#[derive(Debug, Clone)]
enum Op {
    Put {
        key: usize,
        expect: Expectation,
    },
    Delete {
        key: usize,
        expect: Expectation,
    },
    Reopen,
    /// Power cut after all writes are acknowledged.
    Crash,
}

#[derive(Debug, Clone, Copy)]
enum Expectation {
    Any,
    Absent,
    Current,
    Stale,
}

fn op() -> impl Strategy<Value = Op> {
    let expectation = prop_oneof![
        3 => Just(Expectation::Any),
        1 => Just(Expectation::Absent),
        2 => Just(Expectation::Current),
        1 => Just(Expectation::Stale)
    ];
    prop_oneof![
        8 => (0..KEYS.len(), expectation.clone()).prop_map(|(key, expect)| Op::Put { key, expect }),
        4 => (0..KEYS.len(), expectation).prop_map(|(key, expect)| Op::Delete { key, expect }),
        1 => Just(Op::Reopen),
        1 => Just(Op::Crash),
    ]
}

/// All past writes: revision, key, and the text unless the write is a deletion.
#[derive(Default)]
struct Model {
    log: Vec<(u64, &'static str, Option<String>)>,
}

impl Model {
    fn revision(&self) -> u64 {
        self.log.last().map_or(1, |(revision, ..)| *revision)
    }

    fn at(&self, revision: u64, prefix: &str) -> Vec<(String, String)> {
        let mut map = BTreeMap::new();
        for (at, key, text) in self
            .log
            .iter()
            .filter(|(at, key, _)| *at <= revision && key.starts_with(prefix))
        {
            let _ = at;
            match text {
                Some(text) => map.insert((*key).to_owned(), text.clone()),
                None => map.remove(*key),
            };
        }
        map.into_iter().collect()
    }

    /// Returns the last modification of the key if the key exists.
    fn modified(&self, key: &str) -> Option<u64> {
        let (revision, _, text) = self.log.iter().rev().find(|(_, at, _)| *at == key)?;
        text.is_some().then_some(*revision)
    }

    fn expect(&self, key: &str, expectation: Expectation) -> (Expect, bool) {
        let current = self.modified(key);
        match expectation {
            Expectation::Any => (Expect::Any, true),
            Expectation::Absent => (Expect::Absent, current.is_none()),
            Expectation::Current => (Expect::At(Revision(current.unwrap_or(0))), current.is_some()),
            Expectation::Stale => (Expect::At(Revision(current.unwrap_or(9) - 1)), false),
        }
    }
}

fn check(store: &Manual, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(store.revision().0, model.revision());
    let shared = store.writer.shared();
    for prefix in PREFIXES {
        for revision in 0..=model.revision() {
            let state = &shared.read().unwrap().state;
            let kept = revision >= state.compacted().0;
            // Pages of two records at the same revision.
            let mut seen = Vec::new();
            let mut options = ListOptions {
                limit: Some(2),
                at: Some(Revision(revision)),
                after: None,
            };
            loop {
                let page = state.list(prefix, &options);
                prop_assert_eq!(
                    page.is_ok(),
                    kept,
                    "list at {} with {} compacted",
                    revision,
                    state.compacted()
                );
                let Ok(page) = page else { break };
                prop_assert_eq!(page.revision.0, revision);
                seen.extend(
                    page.records
                        .iter()
                        .map(|record| (record.key.to_string(), text(record))),
                );
                prop_assert_eq!(seen.len() + page.remaining, model.at(revision, prefix).len());
                options.after = page.records.last().map(|record| record.key.clone());
                if page.remaining == 0 {
                    break;
                }
            }
            if kept {
                prop_assert_eq!(seen, model.at(revision, prefix));
            }
        }
        for after in 0..=model.revision() {
            let watcher = store.watch(prefix, Revision(after));
            prop_assert_eq!(watcher.is_ok(), after >= store.compacted().0);
            let Ok(mut watcher) = watcher else { continue };
            check_events(&drain(&mut watcher), model, after, prefix)?;
            prop_assert_eq!(watcher.progress(), store.revision());
        }
    }
    Ok(())
}

/// Checks that the events after `after` lead from the state at `after` to the current state.
fn check_events(events: &[Arc<Event>], model: &Model, after: u64, prefix: &str) -> Result<(), TestCaseError> {
    let expected: Vec<_> = model
        .log
        .iter()
        .filter(|(at, key, _)| *at > after && key.starts_with(prefix))
        .map(|(at, key, text)| (*at, (*key).to_owned(), text.clone()))
        .collect();
    let mut map: BTreeMap<String, String> = model.at(after, prefix).into_iter().collect();
    let mut seen = Vec::new();
    for event in events {
        let key = event.key().to_string();
        prop_assert_eq!(
            event.previous.as_ref().map(|record| text(record)),
            map.get(&key).cloned()
        );
        prop_assert_eq!(event.revision, event.record.modified);
        let new = text(&event.record);
        match event.kind {
            EventKind::Created => prop_assert!(map.insert(key.clone(), new.clone()).is_none()),
            EventKind::Modified => prop_assert!(map.insert(key.clone(), new.clone()).is_some()),
            EventKind::Deleted => prop_assert_eq!(map.remove(&key), Some(new.clone()), "the last value"),
        }
        seen.push((
            event.revision.0,
            key,
            (event.kind != EventKind::Deleted).then_some(new),
        ));
    }
    prop_assert_eq!(seen, expected);
    prop_assert_eq!(
        map.into_iter().collect::<Vec<_>>(),
        model.at(model.revision(), prefix)
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn store_matches_reference_model(
        ops in prop::collection::vec(op(), 1..40),
        batch_max in 1_usize..5,
        events_max in 1_usize..30,
        garbage_rows_max in 0_usize..6,
    ) {
        let history = HistoryLimits { events_max, garbage_rows_max, ..HistoryLimits::default() };
        let config = StoreConfig { history, ..config() };
        let mut disk = PowerCutDisk::new();
        let mut store = Manual::open(&disk, &config).unwrap();
        let mut model = Model::default();
        let mut live = store.watch("/a/", Revision(1)).unwrap();
        let mut live_from = 1;
        let mut ops = ops.into_iter().enumerate().peekable();
        while let Some((number, op)) = ops.next() {
            // Writes of one batch are evaluated in order, as if each were its own batch.
            let mut batch = vec![(number, op)];
            while batch.len() < batch_max {
                let Some(next) = ops.next_if(|(_, op)| matches!(op, Op::Put { .. } | Op::Delete { .. })) else { break };
                batch.push(next);
            }
            let (mut writes, mut predicted) = (Vec::new(), Vec::new());
            let mut reopen = None;
            for (number, op) in batch {
                let next = model.revision() + 1;
                match op {
                    Op::Put { key, expect } => {
                        let (expect, fits) = model.expect(KEYS[key], expect);
                        writes.push(put(KEYS[key], expect, format!("v{number}")));
                        predicted.push(fits.then_some(next));
                        if fits {
                            model.log.push((next, KEYS[key], Some(format!("v{number}"))));
                        }
                    }
                    Op::Delete { key, expect } => {
                        let (expect, fits) = model.expect(KEYS[key], expect);
                        let fits = fits && model.modified(KEYS[key]).is_some();
                        writes.push(delete(KEYS[key], expect));
                        predicted.push(fits.then_some(next));
                        if fits {
                            model.log.push((next, KEYS[key], None));
                        }
                    }
                    Op::Reopen | Op::Crash => reopen = Some(matches!(op, Op::Crash)),
                }
            }
            for (outcome, predicted) in store.batch(writes).into_iter().zip(predicted) {
                match outcome {
                    Ok(record) => prop_assert_eq!(Some(record.modified.0), predicted),
                    Err(CommitError::Conflict { .. }) => prop_assert_eq!(None, predicted),
                    Err(err) => prop_assert!(false, "{}", err),
                }
            }
            if let Some(crash) = reopen {
                check_events(&drain(&mut live), &model, live_from, "/a/")?;
                if crash {
                    disk = disk.after_power_cut(|| false);
                } else {
                    store.writer.close();
                }
                store = Manual::open(&disk, &config).unwrap();
                live_from = model.revision();
                live = store.watch("/a/", Revision(live_from)).unwrap();
            }
        }
        check_events(&drain(&mut live), &model, live_from, "/a/")?;
        check(&store, &model)?;
        store.writer.close();
        check(&Manual::open(&disk, &config).unwrap(), &model)?;
    }
}
