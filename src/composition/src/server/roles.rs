//! Start of controller, gateway and web page, the clients of the API server.

use std::net::SocketAddr;
use std::sync::Arc;

use camino::Utf8Path;
use kube::Client;
use rustls::ServerConfig as TlsConfig;
use tokio::net::TcpListener;
use uuid::Uuid;

use super::names::machine_names;
use super::{Role, ServerConfig, StartServerError};
use crate::audit_log::AuditLog;
use crate::data_dir;
use crate::kubeconfig::follow;
use crate::page_options::{catalogue, planner};
use crate::process_kubeconfigs;
use crate::traces;
use rooflet_base::clock::Clock;
use rooflet_base::metrics::Registry;
use rooflet_base::task::Tasks;
use rooflet_client::KubeconfigSource;
use rooflet_controller as controller;
use rooflet_controller::{BandwidthHistory, ControllerConfig, SpeedHistory};
use rooflet_gateway as gateway;
use rooflet_host::Host;
use rooflet_pki::{Authority, MachineTls, Revocations, ServingCertificate};
use rooflet_proxy::AgentTls;
use rooflet_trust::{MachineCertificate, PublishedTrust, Purpose};
use rooflet_web::{GatewayAddress, HistorySource, WebConfig};

/// File in the data directory: denied uses of API keys.
const GATEWAY_AUDIT: &str = "gateway-audit.log";

/// Starts roles that are clients of the same API server.
pub(super) struct Roles<'a> {
    pub(super) config: &'a ServerConfig,
    pub(super) api_server: KubeconfigSource,
    pub(super) client: Client,
    /// Authority of serving certificates, if the data directory has one.
    pub(super) serving: Option<Arc<Authority>>,
    pub(super) clock: &'a Clock,
    pub(super) registry: &'a Registry,
    pub(super) tasks: &'a Tasks,
    /// Measured values that the controller collects and the page shows.
    pub(super) speeds: SpeedHistory,
    pub(super) bandwidths: BandwidthHistory,
}

impl Roles<'_> {
    pub(super) async fn start_controller(&self) -> Result<(), StartServerError> {
        let data_dir = &self.config.data_dir;
        let config = ControllerConfig {
            identity: identity(&Host::Native.identity().hostname, &self.config.roles, data_dir),
            reserve_node_failures: self.config.reserve_node_failures,
            hub: self.config.hub.clone(),
            history: self.speeds.clone(),
            bandwidths: self.bandwidths.clone(),
            issues_certificates: self.api_server == KubeconfigSource::ServiceAccount,
        };
        // The controller has an identity of its own: the audit log distinguishes it from the administrator.
        let client = match self.config.has(Role::Apiserver) {
            true => {
                let own = process_kubeconfigs::of_controller(data_dir);
                follow(&KubeconfigSource::File(own), self.clock, self.tasks).await?
            }
            false => self.client.clone(),
        };
        controller::run(config, client, self.clock.clone(), self.tasks, self.registry)?;
        Ok(())
    }

    pub(super) fn start_page(
        &self,
        listener: TcpListener,
        address: SocketAddr,
    ) -> Result<(), StartServerError> {
        let page = WebConfig {
            api_server: self.api_server.clone(),
            has_api_server: self.config.has(Role::Apiserver),
            history: self.config.has(Role::Controller).then(|| self.history()),
            planner: planner(self.config.reserve_node_failures, self.clock.clone()),
            catalogue: catalogue(),
            prometheus: self.config.page.prometheus(),
            gateway: Some(self.gateway_address()?),
            agent_tls: self.agent_tls(|name| Purpose::Operator { name })?,
            serving_tls: match (address.ip().is_loopback(), &self.config.certificate_files) {
                (true, _) => None,
                (false, Some(files)) => Some(Arc::new(files.server_config()?)),
                (false, None) => self.serving_tls("web", address)?,
            },
            names: machine_names(address.ip(), self.config.tls_sans.clone()),
        };
        rooflet_web::serve(listener, page, self.clock.clone(), self.tasks).map_err(StartServerError::Listener)
    }

    /// Returns the histories that the controller of this process collects.
    fn history(&self) -> HistorySource {
        let (speeds, bandwidths, clock) = (self.speeds.clone(), self.bandwidths.clone(), self.clock.clone());
        HistorySource::new(
            move |uid| speeds.of(uid, clock.now()),
            move |uid| bandwidths.of(uid),
        )
    }

    /// Returns the address at which the page reaches a gateway.
    fn gateway_address(&self) -> Result<GatewayAddress, StartServerError> {
        if let Some(url) = &self.config.page.gateway_url {
            return Ok(GatewayAddress::Remote(url.clone()));
        }
        let address = self.config.gateway_listen;
        let tls = match (&self.config.certificate_files, &self.serving) {
            (Some(files), _) => Some(files.client_config()?),
            (None, Some(authority)) if !address.ip().is_loopback() => Some(authority.client_config()?),
            (None, Some(_) | None) => None,
        };
        let tls = tls.map(Arc::new);
        Ok(GatewayAddress::Local { address, tls })
    }

    pub(super) fn start_gateway(&self, listener: TcpListener) -> Result<(), StartServerError> {
        let tracer = traces::start("rooflet-gateway", self.tasks.stop_token(), self.tasks);
        let mut access = self.config.gateway_access.clone();
        let address = listener.local_addr().map_err(StartServerError::Listener)?;
        access.serving_tls = match &self.config.certificate_files {
            Some(files) => Some(Arc::new(files.server_config()?)),
            None => self.serving_tls("gateway", address)?,
        };
        access.agent_tls = self.agent_tls(|name| Purpose::Gateway { name })?;
        // The file system of a pod is read-only.
        let has_directory = !matches!(self.api_server, KubeconfigSource::ServiceAccount);
        if self.config.audit.is_some() && has_directory {
            let directory = &self.config.data_dir;
            data_dir::create(directory).map_err(|err| StartServerError::DataDir {
                path: directory.clone(),
                err,
            })?;
            access.audit = Some(AuditLog::of_denials(&directory.join(GATEWAY_AUDIT), self.tasks));
        }
        let (client, clock) = (self.client.clone(), self.clock.clone());
        gateway::serve(listener, client, clock, self.tasks, self.registry, tracer, access)?;
        Ok(())
    }

    /// Returns TLS with an own certificate for a listener at `address`. None for loopback addresses, and
    /// without an authority.
    fn serving_tls(
        &self,
        server: &'static str,
        address: SocketAddr,
    ) -> Result<Option<Arc<TlsConfig>>, StartServerError> {
        let Some(authority) = self.serving.as_ref().filter(|_| !address.ip().is_loopback()) else {
            return Ok(None);
        };
        let names = machine_names(address.ip(), self.config.tls_sans.clone());
        let certificate = ServingCertificate::issue(Arc::clone(authority), names, self.clock.clone())?;
        self.config.certificates.observe_serving(server, &certificate);
        Ok(Some(Arc::new(certificate.server_config_without_clients()?)))
    }

    /// Returns mutual TLS with agents. Its certificate is requested from the API server and renewed.
    fn agent_tls(&self, purpose: fn(String) -> Purpose) -> Result<Option<AgentTls>, StartServerError> {
        let tls = MachineTls::new(Revocations::default());
        let revocations = tls.revocations().clone();
        let agents = AgentTls::new(Arc::new(tls.client_config()?), move |certificate| {
            revocations.contain(certificate)
        });
        self.config.certificates.observe_machine(&tls);
        let name = Host::Native.identity().hostname.to_lowercase();
        let trust = PublishedTrust::watch(self.client.clone(), false, self.tasks);
        MachineCertificate::keep(self.client.clone(), trust, tls, purpose(name), None, self.tasks);
        Ok(Some(agents))
    }
}

/// Returns the identity of the controller in the leader election.
fn identity(hostname: &str, roles: &[Role], data_dir: &Utf8Path) -> String {
    if roles.contains(&Role::Apiserver) {
        // A data directory has one server at a time, so a restarted server may take over leadership
        // immediately.
        format!("{hostname}_{data_dir}")
    } else {
        // Pods that share the network of their node have the same host name and may have the same
        // process id.
        format!("{hostname}_{}", Uuid::new_v4())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_with_its_data_directory_keeps_its_identity() {
        let of = |roles: &[Role], data_dir: &str| identity("mini", roles, data_dir.into());
        let server = [Role::Apiserver, Role::Controller];
        assert_eq!(of(&server, "/a"), of(&server, "/a"));
        assert_ne!(of(&server, "/a"), of(&server, "/b"));
        let pod = [Role::Controller];
        assert_ne!(of(&pod, "/a"), of(&pod, "/a"));
    }
}
