//! Checks of the network: addresses, name, local network, firewall, proxy, model hub, clock.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use tokio::net::{TcpListener, TcpStream, lookup_host};

use super::check::{Check, milliseconds};
use super::system_command::{self, Answer};
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::{Clock, since};
use rooflet_base::environment::is_set;
use rooflet_base::local_network::explain;

/// Timeout of a connection within the local network, and of a lookup.
const LOCAL: Duration = Duration::from_secs(2);
/// Port of a router's web interface. A refused connection also shows that the router is reachable.
const ROUTER_PORT: u16 = 80;
/// Maximum difference of the clocks. A larger difference invalidates Leases and certificates.
const CLOCK_ERROR: Duration = Duration::from_secs(30);

pub(super) async fn checks(clock: &Clock) -> Vec<Check> {
    let own = rooflet_host::addresses();
    let mut checks = vec![addresses(&own).await];
    let mut system_proxy = None;
    if cfg!(target_os = "macos") {
        let router = system_command::run("/sbin/route", &["-n", "get", "default"]).await;
        checks.push(own_name(&own).await);
        checks.push(local_network(router.as_ref()).await);
        checks.push(firewall().await);
        system_proxy = system_command::run("/usr/sbin/scutil", &["--proxy"]).await;
    }
    let has_variable = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
        .into_iter()
        .any(is_set);
    checks.push(proxy(has_variable, system_proxy.as_ref()));
    checks.extend(hub(clock).await);
    checks
}

async fn addresses(own: &[IpAddr]) -> Check {
    let name = "addresses";
    let listener = match TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await {
        Ok(listener) => listener,
        Err(err) => {
            return Check::fail(
                name,
                format!("no port can be opened: {err}"),
                "allow rooflet to listen on network ports",
            );
        }
    };
    let Ok(port) = listener.local_addr().map(|address| address.port()) else {
        return Check::unknown(name, "the opened port is not reported");
    };
    let own: Vec<_> = own.iter().filter(|address| address.is_ipv4()).collect();
    let mut reached = 0;
    for address in &own {
        let connecting = TcpStream::connect(SocketAddr::new(**address, port));
        reached += usize::from(matches!(tokio::time::timeout(LOCAL, connecting).await, Ok(Ok(_))));
    }
    match (own.len(), reached) {
        (0, _) => Check::warn(
            name,
            "no network interface has an IPv4 address: only this machine can use rooflet",
            "connect the machine to a network",
        ),
        (all, reached) if reached == all => {
            Check::ok(name, format!("an open port answers at {all} of {all} addresses"))
        }
        (all, reached) => Check::warn(
            name,
            format!("an open port answers at {reached} of {all} addresses: a firewall or VPN may block it"),
            "pass a reachable address to `rooflet agent --advertise-address`",
        ),
    }
}

async fn own_name(own: &[IpAddr]) -> Check {
    let name = "name in the local network";
    let Some(host) = rooflet_host::local_host_name() else {
        return Check::warn(
            name,
            "none is set",
            "set one in System Settings, General, Sharing, Local hostname",
        );
    };
    let looking = lookup_host((format!("{host}.local"), 0));
    let found = match tokio::time::timeout(LOCAL, looking).await {
        Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    };
    resolved(name, &found, own)
}

fn resolved(name: &str, found: &[IpAddr], own: &[IpAddr]) -> Check {
    let is_own = |address: &&IpAddr| own.contains(address) || address.is_loopback();
    match (found, found.iter().find(is_own)) {
        ([], _) => Check::warn(
            name,
            "it does not resolve: other machines need an address instead",
            "pass an address to `rooflet agent --advertise-address`",
        ),
        (_, Some(_)) => Check::ok(name, "resolves to this machine"),
        // `own` lacks only the link-local addresses of this machine.
        (found, None) if found.iter().all(IpAddr::is_ipv6) => {
            Check::ok(name, "resolves to link-local addresses only")
        }
        (_, None) => Check::warn(
            name,
            "resolves to another machine",
            "set another one in System Settings, General, Sharing, Local hostname",
        ),
    }
}

/// Connects to the router, whose address is in the output of `route -n get default`.
async fn local_network(route: Option<&Answer>) -> Check {
    let Some(router) = route.and_then(|answer| router(&answer.text)) else {
        return Check::unknown("local network", "the machine has no router");
    };
    let connecting = TcpStream::connect(SocketAddr::new(router, ROUTER_PORT));
    match tokio::time::timeout(LOCAL, connecting).await {
        Ok(outcome) => reached(outcome.map(drop), router),
        Err(_) => Check::unknown("local network", "the router answers no connections"),
    }
}

fn router(route: &str) -> Option<IpAddr> {
    let lines = route
        .lines()
        .filter_map(|line| line.trim().strip_prefix("gateway:"));
    lines.filter_map(|address| address.trim().parse().ok()).next()
}

fn reached(outcome: io::Result<()>, router: IpAddr) -> Check {
    let name = "local network";
    match outcome {
        Ok(()) => Check::ok(name, "the router can be reached"),
        Err(err) if err.kind() == io::ErrorKind::ConnectionRefused => {
            Check::ok(name, "the router can be reached")
        }
        Err(err) => {
            let (text, explained) = (err.to_string(), explain(&err, &router.to_string()));
            match explained
                .strip_prefix(&text)
                .map(|hint| hint.trim_start_matches("; "))
            {
                Some(hint) if !hint.is_empty() => {
                    Check::warn(name, format!("the router cannot be reached: {text}"), hint)
                }
                Some(_) | None => Check::unknown(name, format!("the router cannot be reached: {text}")),
            }
        }
    }
}

async fn firewall() -> Check {
    let program = "/usr/libexec/ApplicationFirewall/socketfilterfw";
    let state = system_command::run(program, &["--getglobalstate"]).await;
    let path = std::env::current_exe().unwrap_or_default();
    let own = system_command::run(program, &["--getappblocked", &path.to_string_lossy()]).await;
    judge_firewall(state.as_ref(), own.as_ref())
}

/// Judges the outputs of `socketfilterfw --getglobalstate` and `--getappblocked BINARY`.
fn judge_firewall(state: Option<&Answer>, own: Option<&Answer>) -> Check {
    let name = "application firewall";
    let text = state.map_or("", |state| state.text.as_str());
    let own = own.map_or_else(String::new, |own| own.text.to_lowercase());
    if text.contains("State = 0") {
        Check::ok(name, "off")
    } else if text.contains("blocking all") {
        Check::warn(
            name,
            "blocks all incoming connections: other machines cannot reach rooflet",
            "allow incoming connections in System Settings, Network, Firewall, Options",
        )
    } else if own.contains("block") {
        Check::warn(
            name,
            "on, and blocks this binary: other machines cannot reach rooflet",
            "run `sudo /usr/libexec/ApplicationFirewall/socketfilterfw --unblockapp BINARY`",
        )
    } else if own.contains("permitted") || own.contains("allow") {
        Check::ok(name, "on, and allows this binary")
    } else if text.contains("State = ") {
        Check::warn(
            name,
            "on, without a rule for this binary: a daemon gets no prompt and receives no connections",
            "run `sudo /usr/libexec/ApplicationFirewall/socketfilterfw --add BINARY`",
        )
    } else {
        Check::unknown(name, "the state is not reported")
    }
}

/// Judges the output of `scutil --proxy`. rooflet uses the variables only.
fn proxy(has_variable: bool, system: Option<&Answer>) -> Check {
    let name = "proxy";
    let is_on = |key: &str| {
        let lines = system.map_or("", |system| system.text.as_str()).lines();
        let mut entries = lines.filter_map(|line| line.trim().split_once(" : "));
        entries.any(|(name, value)| name == key && value == "1")
    };
    let has_system_proxy = ["HTTPSEnable", "ProxyAutoConfigEnable", "ProxyAutoDiscoveryEnable"]
        .into_iter()
        .any(is_on);
    match (has_variable, has_system_proxy) {
        (true, _) => Check::ok(name, "set by a variable"),
        (false, false) => Check::ok(name, "none"),
        (false, true) => Check::warn(
            name,
            "macOS is configured for a proxy, which rooflet does not use",
            "set HTTPS_PROXY, and NO_PROXY for the local network; for a service, in EnvironmentVariables of its property list, \
             then run `sudo rooflet agent install`",
        ),
    }
}

/// Connects to the model hub, and compares the clocks.
async fn hub(clock: &Clock) -> Vec<Check> {
    let name = "model hub";
    let hub = match HubAccess::from_environment() {
        Ok(hub) => hub,
        // The error contains the value of the variable, which the report must not contain.
        Err(_) => {
            let remedy = "correct the variable: HF_ENDPOINT is a URL such as https://huggingface.co";
            return vec![Check::fail(
                name,
                "HF_ENDPOINT is invalid, or set together with HF_TOKEN",
                remedy,
            )];
        }
    };
    let before = clock.now();
    match hub.reach().await {
        Ok(date) => {
            let after = clock.now();
            let taken = milliseconds(since(after, before));
            let reached = Check::ok(name, format!("TLS connection and answer in {taken}"));
            vec![reached, clock_error(date.as_deref(), before, after)]
        }
        Err(err) => {
            let unreachable = Check::warn(
                name,
                format!("models cannot be downloaded: {}", root_cause(&err)),
                "connect the machine to the internet, set HTTPS_PROXY, or name a mirror in HF_ENDPOINT",
            );
            vec![unreachable, clock_error(None, before, before)]
        }
    }
}

/// Returns the last cause of an error, which describes the problem. The causes before it only
/// name the layers through which the error passed.
fn root_cause(err: &dyn Error) -> String {
    err.source().map_or_else(|| err.to_string(), root_cause)
}

/// Compares an HTTP date, which has whole seconds, with the time before and after the response.
fn clock_error(date: Option<&str>, before: Timestamp, after: Timestamp) -> Check {
    let name = "clock";
    let Some(hub) = date.and_then(|date| rfc2822::parse(date).ok()) else {
        return Check::unknown(name, "no other clock could be compared");
    };
    let hub = hub.timestamp();
    let (early, late) = (before.duration_since(hub), hub.duration_since(after));
    let error = early.max(late);
    match error.as_secs() > CLOCK_ERROR.as_secs().cast_signed() {
        true => Check::warn(
            name,
            format!(
                "differs by {} s from the hub's: certificates and Leases may be rejected",
                error.as_secs()
            ),
            "set date and time automatically in the system settings",
        ),
        false => Check::ok(name, "agrees with the hub's"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    fn answer(text: &str) -> Answer {
        Answer {
            succeeded: true,
            text: text.to_owned(),
        }
    }

    #[tokio::test]
    async fn this_machine_reaches_its_own_port() {
        let check = addresses(&["127.0.0.1".parse().unwrap()]).await;
        assert_eq!(
            (check.status, check.finding.as_str()),
            (Status::Ok, "an open port answers at 1 of 1 addresses")
        );
        // Documentation addresses belong to no machine.
        let check = addresses(&["192.0.2.1".parse().unwrap()]).await;
        assert_eq!(check.status, Status::Warn, "{check:?}");
        assert_eq!(addresses(&[]).await.status, Status::Warn);
    }

    #[test]
    fn name_must_resolve_to_this_machine() {
        let own: Vec<IpAddr> = vec!["192.168.1.7".parse().unwrap()];
        for (found, status) in [
            (&["192.168.1.7"][..], Status::Ok),
            (&["fe80::1", "192.168.1.7"], Status::Ok),
            (&["fe80::1"], Status::Ok),
            (&["127.0.0.1"], Status::Ok),
            (&["192.168.1.9"], Status::Warn),
            (&[], Status::Warn),
        ] {
            let found: Vec<IpAddr> = found.iter().map(|address| address.parse().unwrap()).collect();
            assert_eq!(resolved("name", &found, &own).status, status, "{found:?}");
        }
    }

    /// Output from neofetch pull request 2361.
    const ROUTE: &str = "   route to: default\ndestination: default\n       mask: default\n    gateway: 10.62.96.1\n  \
        interface: en0\n      flags: <UP,GATEWAY,DONE,STATIC,PRCLONING,GLOBAL>\n recvpipe  sendpipe  ssthresh\n";

    #[test]
    fn router_is_read_and_its_errors_are_judged() {
        assert_eq!(router(ROUTE), Some("10.62.96.1".parse().unwrap()));
        assert_eq!(router("route: writing to routing socket: not in table\n"), None);
        let address = "10.62.96.1".parse().unwrap();
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(reached(Ok(()), address).status, Status::Ok);
        assert_eq!(reached(Err(refused), address).status, Status::Ok);
        let unreachable = reached(Err(io::Error::from_raw_os_error(65)), address);
        match cfg!(target_os = "macos") {
            true => assert_eq!(unreachable.status, Status::Warn),
            false => assert_eq!(unreachable.status, Status::Unknown),
        }
    }

    #[test]
    fn firewall_states_are_judged() {
        // Outputs from Mac-Health-Check pull request 8, m-cli issue 160 and the manual of nginx on
        // a Mac.
        let on = "Firewall is enabled. (State = 1)\n";
        let not_listed = "The application at path ( /usr/local/bin/rooflet ) is not part of the firewall\n";
        for (state, own, status, finding) in [
            ("Firewall is disabled. (State = 0)\n", "", Status::Ok, "off"),
            (
                on,
                "Incoming connection to the application is permitted\n",
                Status::Ok,
                "allows",
            ),
            (
                on,
                "Incoming connection to the application is blocked\n",
                Status::Warn,
                "blocks this",
            ),
            (on, not_listed, Status::Warn, "without a rule"),
            (
                "Firewall is blocking all non-essential incoming connections. (State = 2)\n",
                "",
                Status::Warn,
                "blocks all",
            ),
            ("", "", Status::Unknown, ""),
        ] {
            let check = judge_firewall(Some(&answer(state)), Some(&answer(own)));
            assert_eq!(check.status, status, "{state} {own}");
            assert!(check.finding.contains(finding), "{check:?}");
            assert!(!check.finding.contains('/'), "no paths: {check:?}");
        }
    }

    #[test]
    fn proxies_of_the_system_need_a_variable() {
        // Outputs from yakit issue 2164 and httptoolkit issue 151.
        let none = answer(
            "<dictionary> {\n  ExceptionsList : <array> {\n    0 : *.local\n  }\n  FTPPassive : 1\n}\n",
        );
        let automatic = answer(
            "<dictionary> {\n  ProxyAutoConfigEnable : 1\n  ProxyAutoConfigURLString : http://wpad.company.com/wpad.dat\n}\n",
        );
        let fixed = answer(
            "<dictionary> {\n  HTTPSEnable : 1\n  HTTPSPort : 3128\n  HTTPSProxy : proxy.company.com\n}\n",
        );
        assert_eq!(proxy(false, None).finding, "none");
        assert_eq!(proxy(false, Some(&none)).finding, "none");
        for system in [automatic, fixed] {
            let check = proxy(false, Some(&system));
            assert_eq!(check.status, Status::Warn);
            assert!(!check.finding.contains("company"), "{check:?}");
            assert_eq!(proxy(true, Some(&system)).status, Status::Ok);
        }
    }

    #[test]
    fn clocks_may_differ_by_half_a_minute() {
        let now: Timestamp = "2026-11-26T02:00:00Z".parse().unwrap();
        let check = |date| clock_error(date, now, now + Duration::from_secs(1)).status;
        assert_eq!(check(Some("Thu, 26 Nov 2026 02:00:00 GMT")), Status::Ok);
        assert_eq!(check(Some("Thu, 26 Nov 2026 02:00:31 GMT")), Status::Ok);
        assert_eq!(check(Some("Thu, 26 Nov 2026 02:00:32 GMT")), Status::Warn);
        assert_eq!(check(Some("Thu, 26 Nov 2026 01:59:29 GMT")), Status::Warn);
        assert_eq!(check(Some("yesterday")), Status::Unknown);
        assert_eq!(check(None), Status::Unknown);
    }
}
