//! A network namespace with one cable to this machine, that can be cut.

use std::path::Path;
use std::process::Command;

use super::{Process, rooflet};

/// See the module. Gone when dropped, with its cable.
pub(crate) struct Netns {
    name: String,
    /// The cable's end here.
    cable: String,
    /// The third byte of both addresses.
    network: u8,
}

impl Netns {
    /// Why there can be none is told: it takes Linux, `ip` and the right to make one.
    pub(crate) fn new() -> Result<Self, String> {
        let pid = std::process::id();
        let made = Self {
            name: format!("rf-{pid}"),
            cable: format!("rf{pid}"),
            network: u8::try_from(pid % 250).expect("below 250") + 1,
        };
        let (name, cable) = (&made.name, &made.cable);
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add {cable} type veth peer name eth0 netns {name}"))?;
        ip(&format!("addr add {}/30 dev {cable}", made.here()))?;
        ip(&format!("link set {cable} up"))?;
        ip(&format!("-n {name} addr add {}/30 dev eth0", made.there()))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        ip(&format!("-n {name} link set lo up"))?;
        Ok(made)
    }

    /// Our address on the cable.
    pub(crate) fn here(&self) -> String {
        format!("10.213.{}.1", self.network)
    }

    /// The address inside.
    pub(crate) fn there(&self) -> String {
        format!("10.213.{}.2", self.network)
    }

    /// Starts `rooflet ARGS` inside.
    pub(crate) fn start(&self, args: &[String], log: &Path) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, rooflet()]).args(args);
        Process::run(&mut command, log)
    }

    /// From now on nothing passes, and nobody is told.
    pub(crate) fn cut(&self) {
        ip(&format!("-n {} link set eth0 down", self.name)).expect("it was up");
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        drop(ip(&format!("link del {}", self.cable)));
        drop(ip(&format!("netns del {}", self.name)));
    }
}

fn ip(args: &str) -> Result<(), String> {
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
