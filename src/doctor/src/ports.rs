//! Check of the default ports of the control plane.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;

use super::check::Check;
use super::system_command;

/// Default ports of `rooflet server` and `rooflet up`.
const PORTS: [(u16, &str); 3] = [(7443, "API server"), (7480, "gateway"), (7490, "web page")];

pub(super) async fn check() -> Check {
    let mut used = Vec::new();
    for (port, purpose) in PORTS {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match TcpListener::bind(address).await {
            Err(err) if err.kind() == io::ErrorKind::AddrInUse => used.push((port, purpose)),
            Ok(_) | Err(_) => {}
        }
    }
    let processes = system_command::run("/bin/ps", &["-axo", "pid=,comm="]).await;
    let processes = processes.map_or_else(String::new, |answer| answer.text);
    judge(&used, is_running(&processes, std::process::id()))
}

/// Returns whether another process than `own` runs rooflet. `processes`: lines with number and program.
fn is_running(processes: &str, own: u32) -> bool {
    processes.lines().any(|line| {
        let Some((number, program)) = line.trim().split_once(char::is_whitespace) else {
            return false;
        };
        let name = program.rsplit('/').next().unwrap_or_default();
        name.trim() == "rooflet" && number.parse() != Ok(own)
    })
}

fn judge(used: &[(u16, &str)], is_running: bool) -> Check {
    let name = "ports";
    if used.is_empty() {
        let ports = PORTS.map(|(port, _)| port.to_string()).join(", ");
        return Check::ok(name, format!("{ports} are free"));
    }
    let ports: Vec<_> = used
        .iter()
        .map(|(port, purpose)| format!("{port} ({purpose})"))
        .collect();
    let ports = ports.join(", ");
    match is_running {
        true => Check::ok(name, format!("in use while rooflet runs: {ports}")),
        false => Check::warn(
            name,
            format!("in use by another program: {ports}"),
            "stop the program, or choose other ports with --listen, --gateway-listen and --web-listen",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    #[test]
    fn used_ports_are_a_problem_if_no_other_rooflet_runs() {
        let processes = "    1 /sbin/launchd\n  812 /usr/local/bin/rooflet\n  900 rooflet-other\n";
        assert!(is_running(processes, 1));
        assert!(!is_running(processes, 812));
        assert!(!is_running("", 1));
        for (used, is_running, status, finding) in [
            (&[][..], false, Status::Ok, "7443, 7480, 7490 are free"),
            (
                &PORTS[..1],
                true,
                Status::Ok,
                "in use while rooflet runs: 7443 (API server)",
            ),
            (
                &PORTS[1..],
                false,
                Status::Warn,
                "7480 (gateway), 7490 (web page)",
            ),
        ] {
            let check = judge(used, is_running);
            assert_eq!(check.status, status);
            assert!(check.finding.contains(finding), "{}", check.finding);
        }
    }
}
