//! Network of several hosts, each a network namespace with its own address. All hosts and this machine
//! are connected to one bridge, whose packets can be captured.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::capture::Capture;
use super::netns::ip;
use super::{Process, rooflet};

/// Network, which is removed when dropped.
pub(crate) struct Network {
    /// First part of the names of all namespaces.
    name: String,
    /// Interface of this machine.
    link: String,
    /// Third byte of all addresses.
    network: u32,
    hosts: Vec<String>,
}

impl Network {
    /// Creates a network. Requires Linux, `ip` and the permission; otherwise, returns the reason.
    pub(crate) fn new(hosts: &[&str]) -> Result<Self, String> {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let made = Self {
            name: format!("rfn-{pid}-{call}"),
            link: format!("rfn{pid}x{call}"),
            network: (pid + call) % 250 + 1,
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        };
        let (switch, link) = (made.namespace("switch"), &made.link);
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add bridge0 type bridge"))?;
        ip(&format!("-n {switch} link set bridge0 up"))?;
        for host in hosts {
            let (namespace, address, port) = (made.namespace(host), made.address(host), made.port(host));
            ip(&format!("netns add {namespace}"))?;
            ip(&format!(
                "link add {port} netns {switch} type veth peer name eth0 netns {namespace}"
            ))?;
            ip(&format!("-n {namespace} addr add {address}/24 dev eth0"))?;
            ip(&format!("-n {namespace} link set eth0 up"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
            made.attach(&port)?;
        }
        ip(&format!(
            "link add pown netns {switch} type veth peer name {link}"
        ))?;
        ip(&format!("addr add {}/24 dev {link}", made.own_address()))?;
        ip(&format!("link set {link} up"))?;
        made.attach("pown")?;
        Ok(made)
    }

    /// Returns the address of this machine.
    pub(crate) fn own_address(&self) -> String {
        format!("10.214.{}.1", self.network)
    }

    /// Returns the address of a host.
    pub(crate) fn address(&self, host: &str) -> String {
        format!("10.214.{}.{}", self.network, self.index(host) + 2)
    }

    /// Returns a command that runs `program` on a host.
    pub(crate) fn command(&self, host: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.namespace(host)])
            .arg(program);
        command
    }

    /// Starts `rooflet ARGS` on a host.
    pub(crate) fn start(&self, host: &str, args: &[String], log: &Path) -> Process {
        Process::run(self.command(host, rooflet()).args(args), log)
    }

    /// Disconnects a host from the bridge. Connections are not closed.
    pub(crate) fn disconnect(&self, host: &str) {
        let (switch, port) = (self.namespace("switch"), self.port(host));
        ip(&format!("-n {switch} link set {port} down")).expect("the port exists");
    }

    /// Connects a disconnected host again.
    pub(crate) fn reconnect(&self, host: &str) {
        let (switch, port) = (self.namespace("switch"), self.port(host));
        ip(&format!("-n {switch} link set {port} up")).expect("the port exists");
    }

    /// Starts a capture of all packets between hosts, and between hosts and this machine.
    pub(crate) fn capture(&self, file: &Path) -> Result<Capture, String> {
        Capture::start(self.command("switch", "python3"), file)
    }

    fn attach(&self, port: &str) -> Result<(), String> {
        let switch = self.namespace("switch");
        ip(&format!("-n {switch} link set {port} master bridge0"))?;
        ip(&format!("-n {switch} link set {port} up"))
    }

    fn namespace(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }

    fn port(&self, host: &str) -> String {
        format!("p{}", self.index(host))
    }

    fn index(&self, host: &str) -> usize {
        let found = self.hosts.iter().position(|known| known == host);
        found.unwrap_or_else(|| panic!("{host} is not a host of this network"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(ip(&format!("link del {}", self.link)));
        for host in self.hosts.iter().map(String::as_str).chain(["switch"]) {
            drop(ip(&format!("netns del {}", self.namespace(host))));
        }
    }
}
