//! Trust of the fleet as the API server publishes it.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client};

use crate::fleet_trust::FleetTrust;
use rooflet_api::meta::{FLEET_TRUST, FLEET_TRUST_NAMESPACE};
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;
use rooflet_base::task::Tasks;
use rooflet_client::{Cache, Changes};

/// Watched trust. Clones share the watch.
#[derive(Clone)]
pub struct PublishedTrust {
    pub(crate) config_maps: Cache<ConfigMap>,
    pub(crate) changes: Changes,
    /// Authorities for which the serving certificate of this machine was issued; empty before its first
    /// certificate. `None` if this machine does not serve the fleet.
    serving: Arc<Mutex<Option<String>>>,
}

/// Authorities of the API server's own connections, each one or more certificates in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAuthorities {
    /// Authorities of the API server's certificate.
    pub servers: String,
    /// Authorities of client certificates. The first one issues certificates.
    pub clients: String,
}

impl PublishedTrust {
    /// Watches the trust until `tasks` stop. `serves_fleet` is true if this machine keeps a serving certificate
    /// of the fleet.
    pub fn watch(client: Client, serves_fleet: bool, tasks: &Tasks) -> Self {
        let changes = Changes::new();
        let config = watcher::Config::default().fields(&format!("metadata.name={FLEET_TRUST}"));
        let api: Api<DeserializeGuard<ConfigMap>> = Api::namespaced(client, FLEET_TRUST_NAMESPACE);
        Self {
            config_maps: rooflet_client::watch(tasks, api, config, &Clock::System, &changes),
            changes,
            serving: Arc::new(Mutex::new(serves_fleet.then(String::new))),
        }
    }

    pub(crate) fn current(&self) -> Option<FleetTrust> {
        let found = self.config_maps.list();
        found.first().and_then(|config_map| FleetTrust::parse(config_map))
    }

    /// Records that the serving certificate of this machine was issued for these authorities of nodes.
    pub(crate) fn set_serving(&self, nodes: &str) {
        let mut serving = lock(&self.serving);
        if serving.as_deref().is_some_and(|serving| serving != nodes) {
            *serving = Some(nodes.to_owned());
        }
    }

    /// Returns the authorities that this machine uses as a client of the API server. `None` while they are not
    /// published, or the serving certificate of this machine was issued for others: the use of a current client
    /// certificate shows the server that this machine has followed a rotation completely.
    pub fn client_authorities(&self) -> Option<ClientAuthorities> {
        let trust = self.current().filter(|trust| !trust.servers.is_empty())?;
        let serving = lock(&self.serving);
        serving
            .as_deref()
            .is_none_or(|serving| serving == trust.nodes)
            .then_some(ClientAuthorities {
                servers: trust.servers,
                clients: trust.clients,
            })
    }
}
