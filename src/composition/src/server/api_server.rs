//! Start of the embedded API server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use camino::Utf8Path;
use kube::Client;
use tokio::net::TcpListener;
use tracing::info;

use super::names::machine_names;
use super::{SECRETS_KEY, ServerConfig, StartServerError, store_config};
use crate::audit_log::AuditLog;
use crate::data_dir;
use crate::process_kubeconfigs::ProcessKubeconfigs;
use crate::token_issuers;
use rooflet_api::crd;
use rooflet_apiserver::{
    ApiServer, ApiServerConfig, Audit, CertificateSigners, EventRetention, NodeResource,
};
use rooflet_authorizer::NodeAuthorizer;
use rooflet_base::clock::Clock;
use rooflet_base::metrics::Registry;
use rooflet_base::task::Tasks;
use rooflet_host::Host;
use rooflet_pki::kubeconfig::Credentials;
use rooflet_pki::{
    AccountKey, Authority, AuthorityKind, Identity, Revocations, SecretsKey, ServingCertificate, Token,
    UserCertificates, kubeconfig,
};
use rooflet_store::{Store, StoreMetrics};
use rooflet_trust::{AuthorityRotation, FleetAuthorities, PublishedAuthorities, TrustPublisher};

/// Authorities and users of a started API server.
pub(super) struct StartedApiServer {
    authorities: FleetAuthorities,
    users: UserCertificates,
    /// Revocations that the API server applies.
    revocations: Revocations,
}

impl StartedApiServer {
    /// Publishes the authorities and revocations in the API, and rotates the authorities when a user
    /// requests it, until `tasks` stop. Returns the authority of serving certificates.
    pub(super) fn publish_trust(self, client: &Client, clock: &Clock, tasks: &Tasks) -> Arc<Authority> {
        let publisher = TrustPublisher {
            client: client.clone(),
            clock: clock.clone(),
            authorities: PublishedAuthorities::Server(self.authorities.clone()),
            revocations: self.revocations,
        };
        publisher.start(tasks);
        let serving = Arc::clone(&self.authorities.servers);
        let rotation = AuthorityRotation {
            client: client.clone(),
            authorities: self.authorities,
            users: self.users,
            clock: clock.clone(),
        };
        rotation.start(tasks);
        serving
    }
}

/// Starts the API server, and then writes the kubeconfigs. The administrator's kubeconfig names
/// `web_address`, the address of the web page.
pub(super) async fn start(
    config: &ServerConfig,
    listener: TcpListener,
    web_address: Option<SocketAddr>,
    clock: &Clock,
    registry: &Registry,
    tasks: &Tasks,
) -> Result<StartedApiServer, StartServerError> {
    let address = listener.local_addr().map_err(StartServerError::Listener)?;
    let listener = listener.into_std().map_err(StartServerError::Listener)?;
    let directory: &Utf8Path = &config.data_dir;
    data_dir::create(directory).map_err(|err| StartServerError::DataDir {
        path: directory.to_owned(),
        err,
    })?;
    // The store's lock detects another server with this directory, so the store is opened before
    // anything is written.
    let store = open_store(config, clock, registry)?;
    let open_authority = |kind| Authority::open(directory.as_std_path(), kind, clock);
    let authorities = FleetAuthorities {
        servers: Arc::new(open_authority(AuthorityKind::Serving)?),
        clients: open_authority(AuthorityKind::Client)?,
        nodes: open_authority(AuthorityKind::Node)?,
    };
    let revocations = Revocations::default();
    let users = UserCertificates::new(&authorities.clients, revocations.clone(), clock.clone())?;
    let token = Token::open(directory.as_std_path())?;
    let names = machine_names(address.ip(), config.tls_sans.clone());
    let certificate = ServingCertificate::issue(Arc::clone(&authorities.servers), names, clock.clone())?;
    config.certificates.observe_serving("apiserver", &certificate);
    let tls = Arc::new(certificate.server_config(&users)?);

    token_issuers::keep(&config.issuers, tasks);
    let api = ApiServerConfig {
        token: token.clone(),
        account_key: Some(Arc::new(AccountKey::open(directory.as_std_path())?)),
        issuers: config.issuers.clone(),
        tls: Some(tls),
        authority: Some(authorities.servers.as_ref().clone()),
        users: Some(users.clone()),
        signers: Some(signers(&authorities, revocations.clone())),
        in_flight: config.in_flight,
        audit: config.audit.map(|policy| {
            let sink = Arc::new(AuditLog::start(&directory.join("audit.log"), tasks));
            Audit::new(policy, sink, clock.instant())
        }),
        events: EventRetention {
            lifetime: config.event_ttl,
            ..EventRetention::default()
        },
        authorizers: vec![Arc::new(NodeAuthorizer)],
        policies: vec![Arc::new(NodeAuthorizer)],
        roles: rooflet_authorizer::roles(),
    };
    let server = ApiServer::new(api, store.clone(), clock.clone(), registry)?;
    let definitions: Vec<_> = crd::all()
        .iter()
        .map(|definition| serde_json::json!(definition))
        .collect();
    server.install_crds(&definitions).await?;
    drop(definitions);
    server.serve(listener, tasks).await?;

    // The kubeconfigs are written last, so that they are usable as soon as they exist.
    write_kubeconfigs(config, address, web_address, &authorities, token, clock, tasks)?;
    tasks.spawn("store-close", |stop| {
        Box::pin(async move {
            stop.cancelled().await;
            store.close().await;
            Ok::<_, io::Error>(())
        })
    });
    Ok(StartedApiServer {
        authorities,
        users,
        revocations,
    })
}

/// Opens the store in the data directory. If `rotates_secrets_key` is set, all Secrets are encrypted with a new key.
fn open_store(config: &ServerConfig, clock: &Clock, registry: &Registry) -> Result<Store, StartServerError> {
    let secrets_key = config
        .secrets_key
        .clone()
        .unwrap_or_else(|| config.data_dir.join(SECRETS_KEY));
    let mut store_config = store_config(&config.data_dir, &secrets_key, config.rotates_secrets_key)?;
    store_config.metrics = StoreMetrics::register(registry)?;
    let store = Store::open(store_config, clock.clone())?;
    if config.rotates_secrets_key {
        SecretsKey::remove_old(secrets_key.as_std_path())?;
        info!(path = %secrets_key, "Secrets are encrypted with a new key");
    }
    Ok(store)
}

/// Returns the signers of certificate requests of users and nodes.
fn signers(authorities: &FleetAuthorities, revocations: Revocations) -> CertificateSigners {
    let clients = authorities.clients.clone();
    CertificateSigners {
        client: authorities.clients.clone(),
        node: authorities.nodes.clone(),
        uri_of: Some(Box::new(move |common_name, organizations| {
            let identity = Identity::of_subject(common_name, organizations)?;
            Some(identity.uri(&clients.fleet()?))
        })),
        revocations,
        nodes: Some(NodeResource {
            group: rooflet_api::GROUP,
            version: rooflet_api::VERSION,
            plural: "fleetnodes",
        }),
    }
}

/// Writes the kubeconfigs of the administrator, the gateway and the controller, and renews them until
/// `tasks` stop.
fn write_kubeconfigs(
    config: &ServerConfig,
    address: SocketAddr,
    web_address: Option<SocketAddr>,
    authorities: &FleetAuthorities,
    token: Token,
    clock: &Clock,
    tasks: &Tasks,
) -> Result<(), StartServerError> {
    let mut from_here = address;
    if address.ip().is_unspecified() {
        from_here.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let url = format!("https://{from_here}");
    let (own, server) = (config.kubeconfig_out.clone(), url.clone());
    let write_administrator = move |authority: &str| {
        kubeconfig::write_extended(
            own.as_std_path(),
            &server,
            authority,
            Credentials::Token(token.reveal()),
            web_address.map(rooflet_web::kubeconfig_extension),
        )
    };
    let processes = ProcessKubeconfigs {
        data_dir: config.data_dir.clone(),
        server: url,
        servers: Arc::clone(&authorities.servers),
        clients: authorities.clients.clone(),
        write_administrator: Box::new(write_administrator),
        hostname: Host::Native.identity().hostname.to_lowercase(),
        clock: clock.clone(),
    };
    let renew_at = processes.write_or_keep()?;
    (processes.write_administrator)(&authorities.servers.certificate_pem())?;
    processes.keep(renew_at, tasks);
    info!(kubeconfig = %config.kubeconfig_out, "kubeconfig written");
    Ok(())
}
