//! Queued requests that gateways report. Each gateway writes them to an annotation of its own
//! Lease, which is valid while the gateway renews the Lease.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;

use rooflet_api::meta::{DEMAND_ANNOTATION, GATEWAY_LEASE_PREFIX};
use rooflet_api::wire::Demand;

/// Time without a renewal after which the demand of a gateway counts as zero.
const EXPIRY: Duration = Duration::from_secs(45);

/// Last renewals of the gateways' Leases.
#[derive(Debug, Default)]
pub(crate) struct Gateways {
    /// By name of the Lease: the renew time, and the instant at which this process observed it.
    renewals: HashMap<String, (Option<MicroTime>, Instant)>,
}

impl Gateways {
    /// Returns the Leases of the gateways that renew them.
    pub(crate) fn live<'a>(
        &mut self,
        leases: impl IntoIterator<Item = &'a Lease>,
        now: Instant,
    ) -> Vec<&'a Lease> {
        let mut renewals = HashMap::new();
        let mut live = Vec::new();
        for lease in leases {
            let name = lease.name_any();
            if !name.starts_with(GATEWAY_LEASE_PREFIX) {
                continue;
            }
            let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
            let since = match self.renewals.remove(&name) {
                Some((known, since)) if known == renewed => since,
                Some(_) | None => now,
            };
            renewals.insert(name, (renewed, since));
            if now - since < EXPIRY {
                live.push(lease);
            }
        }
        self.renewals = renewals;
        live
    }

    /// Returns the sum of the queued requests of all gateways, by namespace and served name.
    pub(super) fn waiting<'a>(
        &mut self,
        leases: impl IntoIterator<Item = &'a Lease>,
        now: Instant,
    ) -> BTreeMap<(String, String), u64> {
        let mut waiting = BTreeMap::new();
        for lease in self.live(leases, now) {
            let reported = lease.annotations().get(DEMAND_ANNOTATION);
            let demand: Demand = reported
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default();
            for (namespace, models) in demand.waiting {
                for (model, count) in models {
                    *waiting.entry((namespace.clone(), model)).or_default() += count;
                }
            }
        }
        waiting
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;
    use rooflet_base::clock::{Clock, ManualClock};

    fn lease(name: &str, demand: &str, renewed: i64) -> Lease {
        let mut lease = Lease::default();
        lease.metadata.name = Some(name.to_owned());
        lease.metadata.annotations = Some([(DEMAND_ANNOTATION.to_owned(), demand.to_owned())].into());
        lease.spec = Some(LeaseSpec {
            renew_time: Some(MicroTime(
                jiff::Timestamp::from_second(renewed).expect("in range"),
            )),
            ..LeaseSpec::default()
        });
        lease
    }

    #[test]
    fn demand_is_the_sum_over_gateways_with_renewed_leases() {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let mut gateways = Gateways::default();
        let leases = [
            lease("rooflet-gateway-a", r#"{"waiting":{"default":{"guide":2}}}"#, 1),
            lease(
                "rooflet-gateway-b",
                r#"{"waiting":{"default":{"guide":3,"other":1}}}"#,
                1,
            ),
            lease("rooflet-gateway-c", "not JSON", 1),
            lease("fleetnode-a", r#"{"waiting":{"default":{"guide":9}}}"#, 1),
        ];
        let key = |model: &str| ("default".to_owned(), model.to_owned());
        let waiting = gateways.waiting(&leases, clock.instant());
        assert_eq!(waiting, [(key("guide"), 5), (key("other"), 1)].into());
        manual.advance(EXPIRY);
        let mut renewed = leases;
        renewed[0] = lease("rooflet-gateway-a", r#"{"waiting":{"default":{"guide":2}}}"#, 40);
        let waiting = gateways.waiting(&renewed, clock.instant());
        assert_eq!(waiting, [(key("guide"), 2)].into());
    }
}
