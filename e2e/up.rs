//! `rooflet up`: apply, ask and exit; errors; cleanup.

use serde_json::json;

use crate::harness::{Process, Scratch, eventually, free_port, processes_with, repository};

#[test]
fn up_applies_asks_and_exits() {
    let scratch = Scratch::new();
    let args = [
        "up".to_owned(),
        format!("--data-dir={}", scratch.join("data").display()),
        format!("--model-dir={}", repository("examples/models").display()),
        format!("--listen=127.0.0.1:{}", free_port()),
        format!("--gateway-listen=127.0.0.1:{}", free_port()),
        "--web-listen=off".to_owned(),
        format!("--apply={}", repository("examples/guide.yaml").display()),
        "--ask=What is rooflet?".to_owned(),
        "--exit".to_owned(),
    ];
    // The second run starts with the state of the first one.
    for outcome in ["created", "unchanged"] {
        let log = scratch.join(&format!("{outcome}.log"));
        let mut up = Process::start(args.clone(), &log);
        assert!(up.wait().success(), "{}", up.log());
        for words in [
            &format!("modeldeployment.rooflet.dev/guide {outcome}")[..],
            "measured through",
            "tokens/s",
            "stopped",
        ] {
            assert!(up.log().contains(words), "{words} is missing in\n{}", up.log());
        }
    }
    let directory = scratch.path().display().to_string();
    assert_eq!(
        processes_with(&[&directory]),
        [0u32; 0],
        "no process is left behind"
    );
}

#[test]
fn failed_apply_exits_and_cleans_up() {
    let scratch = Scratch::new();
    let missing = scratch.write(
        "missing.yaml",
        "apiVersion: rooflet.dev/v1alpha1\nkind: NoSuchKind\nmetadata: {name: x}\n",
    );
    let args = [
        "up".to_owned(),
        format!("--data-dir={}", scratch.join("data").display()),
        format!("--model-dir={}", repository("examples/models").display()),
        "--listen=127.0.0.1:0".to_owned(),
        "--gateway-listen=127.0.0.1:0".to_owned(),
        "--web-listen=127.0.0.1:0".to_owned(),
        format!("--apply={}", missing.display()),
        "--exit".to_owned(),
    ];
    let mut up = Process::start(args, &scratch.join("up.log"));
    assert_eq!(up.wait().code(), Some(1), "{}", up.log());
    assert!(
        up.log().contains("NoSuchKind") && up.log().contains("missing.yaml"),
        "{}",
        up.log()
    );
}

#[test]
fn children_do_not_outlive_a_killed_up() {
    let fleet = crate::harness::Fleet::start();
    let directory = fleet.scratch.path().display().to_string();
    assert!(processes_with(&[&directory]).len() >= 3);
    crate::harness::kill_9(fleet.up.pid());
    eventually("every process to be gone", || {
        let left = processes_with(&[&directory]);
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
}

/// A laptop on battery or with a closed lid serves if no other node can, so that the first start of
/// rooflet on a MacBook succeeds. The page counts are plausible for an idle Mac.
#[test]
fn up_serves_on_a_laptop_on_battery_or_with_closed_lid() {
    for (name, power_source, [is_closed, closing_causes_sleep], reason) in [
        ("on battery", "Battery Power", [false, true], Some("BatteryPower")),
        ("closed", "AC Power", [true, true], Some("LidClosed")),
        ("docked and closed", "AC Power", [true, false], None),
    ] {
        let scratch = Scratch::new();
        let facts = json!({
            "sysctl": {
                "machdep.cpu.brand_string": "Apple M2", "hw.model": "Mac14,2", "hw.memsize": 17_179_869_184_u64,
                "kern.osproductversion": "26.2", "kern.osversion": "25C56",
            },
            "registry": {
                "AGXAccelerator": {"gpu-core-count": 10},
                "IOPMrootDomain": {"AppleClamshellCausesSleep": closing_causes_sleep, "AppleClamshellState": is_closed},
            },
            "vm": {
                "page": 16_384, "free": 400_000, "active": 200_000, "inactive": 180_000, "speculative": 10_000,
                "wired": 120_000, "purgeable": 2_000, "fileBacked": 150_000, "compressor": 0,
            },
            "powerSource": power_source,
        });
        let recorded = scratch.write("mac.json", &facts.to_string());
        let listen = format!("127.0.0.1:{}", free_port());
        let args = [
            "up".to_owned(),
            format!("--data-dir={}", scratch.join("data").display()),
            format!("--model-dir={}", repository("examples/models").display()),
            format!("--listen={listen}"),
            format!("--gateway-listen=127.0.0.1:{}", free_port()),
            "--web-listen=off".to_owned(),
            format!("--apply={}", repository("examples/guide.yaml").display()),
            "--ask=What is rooflet?".to_owned(),
            "--exit".to_owned(),
        ];
        let log = scratch.join("up.log");
        let env = vec![("ROOFLET_RECORDED", recorded.display().to_string())];
        let mut up = Process::start_with_env(env, args, &log);
        assert!(up.wait().success(), "{name}: {}", up.log());
        assert!(up.log().contains("tokens/s"), "{name}: {}", up.log());
        let agent_log = std::fs::read_to_string(scratch.join("data/logs/agent.log")).unwrap();
        for word in ["BatteryPower", "LidClosed"] {
            assert_eq!(
                agent_log.contains(word),
                reason == Some(word),
                "{name}: {agent_log}"
            );
        }
    }
}
