//! Network namespace with one link to this machine, which can be cut.

use std::path::Path;
use std::process::Command;

use super::{Process, rooflet};

/// Network namespace. It is removed when dropped.
pub(crate) struct Netns {
    name: String,
    /// Interface on this side of the link.
    link: String,
    /// Third byte of the addresses of both ends of the link.
    network: u8,
}

impl Netns {
    /// Creates a namespace. Requires Linux, `ip` and the permission; otherwise, returns the reason.
    pub(crate) fn new() -> Result<Self, String> {
        let pid = std::process::id();
        let made = Self {
            name: format!("rf-{pid}"),
            link: format!("rf{pid}"),
            network: u8::try_from(pid % 250).expect("below 250") + 1,
        };
        let (name, link) = (&made.name, &made.link);
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add {link} type veth peer name eth0 netns {name}"))?;
        ip(&format!("addr add {}/30 dev {link}", made.outer_address()))?;
        ip(&format!("link set {link} up"))?;
        ip(&format!(
            "-n {name} addr add {}/30 dev eth0",
            made.inner_address()
        ))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        ip(&format!("-n {name} link set lo up"))?;
        Ok(made)
    }

    /// Returns the address of this machine on the link.
    pub(crate) fn outer_address(&self) -> String {
        format!("10.213.{}.1", self.network)
    }

    /// Returns the address in the namespace.
    pub(crate) fn inner_address(&self) -> String {
        format!("10.213.{}.2", self.network)
    }

    /// Starts `rooflet ARGS` in the namespace.
    pub(crate) fn start(&self, args: &[String], log: &Path) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, rooflet()]).args(args);
        Process::run(&mut command, log)
    }

    /// Drops all packets from now on. Connections are not closed.
    pub(crate) fn cut(&self) {
        ip(&format!("-n {} link set eth0 down", self.name)).expect("the link is up");
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        drop(ip(&format!("link del {}", self.link)));
        drop(ip(&format!("netns del {}", self.name)));
    }
}

/// Runs `ip ARGS`. Returns the error output if it fails.
pub(super) fn ip(args: &str) -> Result<(), String> {
    let output = Command::new("ip").args(args.split_whitespace()).output();
    let output = output.map_err(|err| format!("ip: {err}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "ip {args}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}
