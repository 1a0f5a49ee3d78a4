//! A measurement, not a check: what group commit makes of many writers on this machine's disk.
//! `cargo test --release --lib store::tests::throughput -- --ignored --nocapture`

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use super::*;

const SECONDS: u64 = 3;
const VALUE_BYTES: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a check"]
async fn commits_per_second() {
    let dir = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
    let clock = Clock::System;
    let mut file = File::create(dir.path().join("plain")).unwrap();
    let (start, mut syncs) = (clock.instant(), 0_u32);
    while clock.instant() - start < Duration::from_secs(1) {
        file.write_all(&[0; VALUE_BYTES]).unwrap();
        file.sync_data().unwrap();
        syncs += 1;
    }
    println!("plain append and sync: {syncs} per second");
    for writers in [1, 16, 64, 256] {
        let store = open_file(&dir.path().join(format!("{writers}.redb"))).unwrap();
        let before = clock.instant();
        let run = |writer: usize| {
            let (store, clock) = (store.clone(), clock.clone());
            async move {
                let mut latencies = Vec::new();
                while clock.instant() - before < Duration::from_secs(SECONDS) {
                    let start = clock.instant();
                    let key = format!("/r/default/{writer}-{}", latencies.len() % 50);
                    store
                        .commit(put(&key, Expect::Any, "v".repeat(VALUE_BYTES)))
                        .await
                        .unwrap();
                    latencies.push(clock.instant() - start);
                }
                latencies
            }
        };
        let mut latencies: Vec<Duration> = futures::future::join_all((0..writers).map(run))
            .await
            .into_iter()
            .flatten()
            .collect();
        latencies.sort();
        let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
        println!(
            "{writers:>4} writers: {:>6} commits/s, p50 {:?}, p99 {:?}",
            latencies.len() as u64 / SECONDS,
            at(50),
            at(99)
        );
        store.close().await;
        let start = clock.instant();
        let store = open_file(&dir.path().join(format!("{writers}.redb"))).unwrap();
        println!(
            "      reopened {} records, {} events in {:?}",
            store.list("/", &ListOptions::default()).unwrap().records.len(),
            store.read().state.history_len(),
            clock.instant() - start
        );
        store.close().await;
    }
}
