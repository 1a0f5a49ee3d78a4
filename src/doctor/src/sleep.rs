//! `--sleep`: waits until a person has put the machine to sleep and woken it, and checks the clocks,
//! the network and the node's heartbeat afterwards.

pub mod heartbeat;

use std::time::Duration;

use self::heartbeat::{Heartbeat, HeartbeatError, Renewal};
use super::Settings;
use super::check::Check;
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::{Clock, Moment};

/// Minimum sleep. Smaller differences between the clocks are corrections of the wall clock.
const SHORTEST: Duration = Duration::from_secs(10);
/// Timeout until the machine has slept.
const TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Interval between reads of the clocks.
const POLL: Duration = Duration::from_millis(500);
/// Timeout until the network works again.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(500);
/// Agents and gateways reconnect within this time after a sleep.
const SOON: Duration = Duration::from_secs(15);
/// Agents renew their Lease, and watches report it, within this time after a sleep: two periods of
/// the heartbeat.
const HEARTBEAT_SOON: Duration = Duration::from_secs(20);

pub(super) async fn checks(settings: &Settings, clock: &Clock) -> Vec<Check> {
    let heartbeat = Heartbeat::of_agent(settings, clock).await;
    let command = match cfg!(target_os = "macos") {
        true => "`pmset sleepnow`",
        false => "`systemctl suspend`",
    };
    (settings.progress)(&format!(
        "put this machine to sleep for 30 s or more ({command} in another terminal), then wake it; \
         waiting up to {} min",
        TIMEOUT.as_secs() / 60
    ));
    let slept = wait_for_sleep(clock, TIMEOUT).await;
    let mut checks = vec![judge_sleep(slept)];
    if slept.is_some() {
        let woken = clock.now();
        let renewed = async {
            Some(match heartbeat? {
                Ok(heartbeat) => Ok(heartbeat.renewal_after(woken, NETWORK_TIMEOUT).await),
                Err(err) => Err(err),
            })
        };
        let (network, renewal) = tokio::join!(wait_for_network(clock), renewed);
        checks.push(judge_network(network));
        checks.extend(renewal.map(judge_renewal));
    }
    checks
}

/// Waits until the wall clock has advanced further than the monotonic clock. Returns how far.
async fn wait_for_sleep(clock: &Clock, timeout: Duration) -> Option<Duration> {
    let waiting = async {
        let mut before = Moment::now(clock);
        loop {
            tokio::time::sleep(POLL).await;
            let now = Moment::now(clock);
            let slept = now.slept_since(before);
            if slept >= SHORTEST {
                return slept;
            }
            before = now;
        }
    };
    tokio::time::timeout(timeout, waiting).await.ok()
}

fn judge_sleep(slept: Option<Duration>) -> Check {
    let name = "clocks during sleep";
    match slept {
        Some(slept) => Check::ok(
            name,
            format!(
                "the wall clock advanced by {} s more than the monotonic clock: rooflet detects the sleep",
                slept.as_secs()
            ),
        ),
        None => Check::warn(
            name,
            format!(
                "no sleep was detected within {} min. If the machine slept, rooflet does not reconnect after a sleep",
                TIMEOUT.as_secs() / 60
            ),
            "repeat the check. If the machine slept for 30 s or more, report the result",
        ),
    }
}

/// Returns the time until the model hub answers; `None` if it does not answer in time.
async fn wait_for_network(clock: &Clock) -> Option<Duration> {
    let hub = HubAccess::from_environment().ok()?;
    let start = clock.instant();
    let reaching = async {
        while hub.reach().await.is_err() {
            tokio::time::sleep(RETRY).await;
        }
    };
    tokio::time::timeout(NETWORK_TIMEOUT, reaching).await.ok()?;
    Some(clock.instant() - start)
}

fn judge_network(delay: Option<Duration>) -> Check {
    let name = "network after sleep";
    match delay {
        Some(delay) if delay <= SOON => Check::ok(
            name,
            format!("the model hub answered after {:.1} s", delay.as_secs_f64()),
        ),
        Some(delay) => Check::warn(
            name,
            format!(
                "the model hub answered after {:.0} s: the node is unreachable for that time",
                delay.as_secs_f64()
            ),
            "connect the machine with a cable",
        ),
        None => Check::unknown(
            name,
            format!(
                "the model hub did not answer within {} s",
                NETWORK_TIMEOUT.as_secs()
            ),
        ),
    }
}

/// Judges the first renewal of the node's Lease, which is `None` without a renewal in time.
fn judge_renewal(renewal: Result<Option<Renewal>, HeartbeatError>) -> Check {
    let name = "node after sleep";
    let log = "read the log of the agent, and report it if the network works";
    match renewal {
        Ok(Some(Renewal { renewed, reported })) => {
            let finding = format!(
                "the agent renewed its Lease after {:.0} s, and a watch reported it after {:.0} s",
                renewed.as_secs_f64(),
                reported.as_secs_f64()
            );
            match reported <= HEARTBEAT_SOON {
                true => Check::ok(name, finding),
                false => Check::warn(name, finding, log),
            }
        }
        Ok(None) => Check::warn(
            name,
            format!(
                "no watch reported a renewed Lease within {} s",
                NETWORK_TIMEOUT.as_secs()
            ),
            log,
        ),
        Err(err) => Check::unknown(
            name,
            format!("{err}. Pass the kubeconfig of an administrator with --kubeconfig"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use rooflet_base::clock::{ManualClock, at};

    #[tokio::test(start_paused = true)]
    async fn sleep_is_detected_by_the_clocks() {
        let manual = ManualClock::new(at(0));
        let clock = Clock::Manual(manual.clone());
        let awake = wait_for_sleep(&clock, TIMEOUT).await;
        assert_eq!(awake, None);
        let sleeping = async {
            tokio::time::sleep(3 * POLL).await;
            manual.advance(Duration::from_secs(2));
            manual.sleep(Duration::from_secs(42));
        };
        let (slept, ()) = tokio::join!(wait_for_sleep(&clock, TIMEOUT), sleeping);
        assert_eq!(slept, Some(Duration::from_secs(42)));
    }

    #[test]
    fn results_are_judged() {
        let detected = judge_sleep(Some(Duration::from_secs(42)));
        assert!(
            detected.status == Status::Ok && detected.finding.contains("42 s"),
            "{detected:?}"
        );
        assert_eq!(judge_sleep(None).status, Status::Warn);
        for (delay, status) in [
            (Some(3), Status::Ok),
            (Some(40), Status::Warn),
            (None, Status::Unknown),
        ] {
            assert_eq!(judge_network(delay.map(Duration::from_secs)).status, status);
        }
        let renewal = |renewed, reported| Renewal {
            renewed: Duration::from_secs(renewed),
            reported: Duration::from_secs(reported),
        };
        for (renewal, status, finding) in [
            (
                Ok(Some(renewal(2, 7))),
                Status::Ok,
                "after 2 s, and a watch reported it after 7 s",
            ),
            (Ok(Some(renewal(2, 295))), Status::Warn, "after 295 s"),
            (Ok(None), Status::Warn, "within 60 s"),
            (
                Err(HeartbeatError::NoLease),
                Status::Unknown,
                "the node has no Lease",
            ),
        ] {
            let check = judge_renewal(renewal);
            assert_eq!(
                (check.status, check.finding.contains(finding)),
                (status, true),
                "{check:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_machine_without_agent_has_no_heartbeat() {
        let directory = rooflet_testing::TempDir::new();
        let settings = Settings {
            state_dir: directory.path().to_owned(),
            model_dir: None,
            kubeconfig: None,
            default_kubeconfig: || rooflet_client::KubeconfigSource::Environment,
            is_quick: true,
            with_sleep: true,
            progress: |_| {},
        };
        let heartbeat = Heartbeat::of_agent(&settings, &Clock::System).await;
        assert!(heartbeat.is_none());
    }
}
