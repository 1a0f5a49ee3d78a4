//! Memory while many large bodies arrive: parsing is bounded, and the memory is returned. Short requests
//! are answered meanwhile.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::harness::{Fleet, eventually};

const BODIES: usize = 10;
const MEMBERS: usize = 1_600_000;

/// Maximum growth of a process while it holds the bodies and parses them, in KiB. The bodies have
/// 141 MiB, so without a limit on concurrent parsing, the worker grows by 1.5 GiB.
const MAX_GROWTH_KIB: u64 = 800 << 10;
/// Maximum growth that remains after the last response.
const MAX_REMAINDER_KIB: u64 = 64 << 10;

/// Returns a figure from the status file of a process, in KiB.
fn memory(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
    let line = status.lines().find(|line| line.starts_with(name));
    let figure = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    figure.unwrap_or_else(|| panic!("{name} of {status}"))
}

/// Returns a body of 14 MB with many members, which are the variables of a chat template. The request is
/// valid, so each server processes it completely.
fn large_body() -> String {
    let mut variables = String::new();
    for number in 0..MEMBERS {
        let comma = if number == 0 { "" } else { "," };
        write!(variables, "{comma}\"{}\":1", short_name(number)).expect("a string");
    }
    format!(
        r#"{{"model":"guide","messages":[{{"role":"user","content":"hi"}}],"max_tokens":1,"chat_template_kwargs":{{{variables}}}}}"#
    )
}

/// Returns the number in base 36, with four digits.
fn short_name(mut number: usize) -> String {
    let mut digits = Vec::new();
    for _ in 0..4 {
        let digit = u32::try_from(number % 36).expect("a digit");
        digits.push(char::from_digit(digit, 36).expect("a digit"));
        number /= 36;
    }
    digits.into_iter().rev().collect()
}

#[test]
fn memory_of_large_bodies_is_bounded_and_returned() {
    let Some((fleet, _kubectl)) = Fleet::with_guide() else {
        return;
    };
    fleet.gateway.chat("guide", "What is rooflet?");
    let pids: Vec<(&str, u32)> = ["gateway", "agent", "worker"]
        .into_iter()
        .map(|name| (name, fleet.processes(name)[0]))
        .collect();
    let before: Vec<u64> = pids.iter().map(|(_, pid)| memory(*pid, "VmRSS:")).collect();
    for (_, pid) in &pids {
        // Resets the maximum of the resident memory.
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("writable");
    }

    let body = large_body();
    assert!(body.len() > 14_000_000, "{}", body.len());
    let open = AtomicUsize::new(BODIES);
    let mut answered_meanwhile = 0;
    std::thread::scope(|scope| {
        let requests: Vec<_> = (0..BODIES)
            .map(|_| {
                let http = fleet.gateway.duplicate();
                let (body, open) = (&body, &open);
                scope.spawn(move || {
                    let answer = http.post_text("/v1/chat/completions", body);
                    open.fetch_sub(1, Ordering::Relaxed);
                    answer
                })
            })
            .collect();
        while open.load(Ordering::Relaxed) > 0 {
            let short = json!({"model": "guide", "prompt": "hi"});
            let answer = fleet.gateway.post("/tokenize", &short).expect("a response");
            assert_eq!(answer.status, 200, "{}", answer.text);
            answered_meanwhile += usize::from(open.load(Ordering::Relaxed) > 0);
        }
        for request in requests {
            let answer = request.join().expect("no panic").expect("a response");
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
    });
    assert!(answered_meanwhile > 1, "{answered_meanwhile} short requests");
    for ((name, pid), before) in pids.into_iter().zip(before) {
        let peak = memory(pid, "VmHWM:");
        eprintln!("{name}: {before} KiB before, at most {peak} KiB");
        assert!(
            peak < before + MAX_GROWTH_KIB,
            "{name}: {before} KiB before, {peak} KiB"
        );
        eventually("the returned memory", || match memory(pid, "VmRSS:") {
            left if left < before + MAX_REMAINDER_KIB => Ok(()),
            left => Err(format!("{name}: {before} KiB before, {left} KiB left")),
        });
    }
}
