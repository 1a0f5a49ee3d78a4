//! Names in serving certificates.

use std::net::IpAddr;

use rooflet_host as host;
use rooflet_host::Host;
use rooflet_pki as pki;

/// Returns the names of a serving certificate of this machine.
pub(super) fn machine_names(listen: IpAddr, extra: Vec<String>) -> Vec<String> {
    serving_names(listen, extra, || MachineNames {
        hostname: Host::Native.identity().hostname,
        addresses: host::addresses(),
    })
}

/// Names and addresses of this machine.
struct MachineNames {
    hostname: String,
    addresses: Vec<IpAddr>,
}

/// Returns the names of the serving certificate besides the loopback names: the listen address, or
/// all names and addresses of this machine if it is unspecified, and `extra`.
fn serving_names(listen: IpAddr, extra: Vec<String>, here: impl FnOnce() -> MachineNames) -> Vec<String> {
    let mut names = match listen.is_unspecified() {
        false => vec![listen.to_string()],
        true => {
            let here = here();
            let plain = here.hostname.to_lowercase();
            let local = (!plain.contains('.')).then(|| format!("{plain}.local"));
            let addresses = here.addresses.iter().map(IpAddr::to_string);
            let own = [plain].into_iter().chain(local).chain(addresses);
            // Host names that are invalid in certificates are skipped. An invalid name in `extra`
            // is an error.
            own.filter(|name| pki::is_ip_or_dns_name(name)).collect()
        }
    };
    names.extend(extra);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_listen_address_adds_all_names_of_the_machine() {
        let check = |listen: &str, hostname: &str, extra: &[&str], expect: &[&str]| {
            let here = || MachineNames {
                hostname: hostname.to_owned(),
                addresses: vec![[192, 0, 2, 7].into(), "2001:db8::7".parse().expect("an address")],
            };
            let extra = extra.iter().map(|name| (*name).to_owned()).collect();
            let got = serving_names(listen.parse().expect("an address"), extra, here);
            assert_eq!(got, expect, "{listen} {hostname}");
        };
        let mini = "mini";
        check("192.0.2.1", mini, &[], &["192.0.2.1"]);
        check("192.0.2.1", mini, &["a.b"], &["192.0.2.1", "a.b"]);
        let all = ["mini", "mini.local", "192.0.2.7", "2001:db8::7"];
        check("0.0.0.0", "Mini", &[], &all);
        check("::", mini, &["a.b"], &[&all[..], &["a.b"]].concat());
        check(
            "::",
            "mini.local",
            &[],
            &["mini.local", "192.0.2.7", "2001:db8::7"],
        );
        check(
            "::",
            "Bob's Mac",
            &["Bob's Mac"],
            &["192.0.2.7", "2001:db8::7", "Bob's Mac"],
        );
    }
}
