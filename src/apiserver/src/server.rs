//! Server: configuration, start, and tasks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::audit::Audit;
use crate::authorization::{Authorizer, ObjectPolicy, Rules};
use crate::builtin::{self, BuiltIn};
use crate::controller::certificates::{self, CertificateSigners};
use crate::controller::expiry::EventRetention;
use crate::controller::namespace_defaults::NamespaceDefaults;
use crate::controller::{
    definitions as definition_controller, expiry, gc, namespaces, policies, roles, storage,
};
use crate::crd;
use crate::endpoints::connection;
use crate::endpoints::handlers::Api;
use crate::endpoints::in_flight::{InFlight, InFlightLimits};
use crate::endpoints::options::{FieldValidation, WriteOptions};
use crate::engine::{DecodeFault, Edit, Engine, Target, Warnings, decode_object};
use crate::metrics::ApiServerMetrics;
use crate::object;
use crate::registry::Registry;
use crate::status::{ApiError, Reason};
use rooflet_base::clock::Clock;
use rooflet_base::metrics as base_metrics;
use rooflet_base::task::Tasks;
use rooflet_http_server::Guesses;
use rooflet_pki::{AccountKey, Authority, Token, TokenIssuer, UserCertificates};
use rooflet_store::Store;

/// Configuration of the server, besides its store.
pub struct ApiServerConfig {
    /// Bearer token of the administrator's kubeconfig.
    pub token: Token,
    /// Key of the tokens of service accounts. If `None`, the server issues and accepts none.
    pub account_key: Option<Arc<AccountKey>>,
    /// External issuers of tokens. Their keys are fetched by the owner of the server.
    pub issuers: Vec<TokenIssuer>,
    /// TLS configuration. `None` serves plain HTTP, over which kubectl does not send tokens.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Authority of the server's certificate, for the ConfigMap `kube-root-ca.crt` of each namespace. If
    /// `None`, namespaces have no such ConfigMap.
    pub authority: Option<Authority>,
    /// Verifier of client certificates. `None` ignores them.
    pub users: Option<UserCertificates>,
    /// Signers of requested certificates. If `None`, the server signs no certificates.
    pub signers: Option<CertificateSigners>,
    pub in_flight: InFlightLimits,
    /// Record of requests. `None` records nothing.
    pub audit: Option<Audit>,
    pub events: EventRetention,
    /// Authorizers, in order; see [`authorization`](crate::authorization).
    pub authorizers: Vec<Arc<dyn Authorizer>>,
    /// Policies that restrict allowed requests by the content of objects.
    pub policies: Vec<Arc<dyn ObjectPolicy>>,
    /// Roles, ClusterRoles and their bindings, each with its `kind`, to create, or to add missing
    /// rules and subjects to, besides those of every server.
    pub roles: Vec<Value>,
}

impl ApiServerConfig {
    /// Returns a configuration for plain HTTP, the holder of `token`, and the limits of
    /// kube-apiserver.
    pub fn new(token: Token) -> Self {
        Self {
            token,
            account_key: None,
            issuers: Vec::new(),
            tls: None,
            authority: None,
            users: None,
            signers: None,
            in_flight: InFlightLimits::default(),
            audit: None,
            events: EventRetention::default(),
            authorizers: Vec::new(),
            policies: Vec::new(),
            roles: Vec::new(),
        }
    }
}

/// Error that prevents the start of the server.
#[derive(Debug, thiserror::Error)]
pub enum StartApiServerError {
    #[error("registering metrics")]
    Metrics(#[source] base_metrics::Error),
    #[error("creating namespace `{name}`")]
    Namespace {
        name: &'static str,
        #[source]
        err: ApiError,
    },
    #[error("installing CustomResourceDefinition `{name}`")]
    Definition {
        name: String,
        #[source]
        err: ApiError,
    },
    #[error(
        "CustomResourceDefinition `{name}` was not established: another definition uses one of its names"
    )]
    NotEstablished { name: String },
    #[error("creating the role or binding `{name}`")]
    Role {
        name: String,
        #[source]
        err: ApiError,
    },
    #[error("registering the listener")]
    Listener(#[source] io::Error),
}

/// Configured server that does not serve yet.
pub struct ApiServer {
    engine: Engine,
    token: Token,
    account_key: Option<Arc<AccountKey>>,
    issuers: Vec<TokenIssuer>,
    tls: Option<Arc<rustls::ServerConfig>>,
    authority: Option<Authority>,
    users: Option<UserCertificates>,
    signers: Option<Arc<CertificateSigners>>,
    rules: Arc<Rules>,
    roles: Vec<Value>,
    in_flight: InFlight,
    audit: Option<Audit>,
    events: EventRetention,
    metrics: ApiServerMetrics,
    metrics_registry: base_metrics::Registry,
}

impl ApiServer {
    pub fn new(
        config: ApiServerConfig,
        store: Store,
        clock: Clock,
        metrics_registry: &base_metrics::Registry,
    ) -> Result<Self, StartApiServerError> {
        let metrics = ApiServerMetrics::register(metrics_registry).map_err(StartApiServerError::Metrics)?;
        let registry = Registry::new(store.clone(), clock.clone());
        let engine = Engine::new(store, registry, clock);
        let rules = Rules::new(config.authorizers, config.policies, engine.rbac.clone());
        Ok(Self {
            engine,
            token: config.token,
            account_key: config.account_key,
            issuers: config.issuers,
            tls: config.tls,
            authority: config.authority,
            users: config.users,
            signers: config.signers.map(Arc::new),
            rules: Arc::new(rules),
            roles: config.roles,
            in_flight: InFlight::new(config.in_flight),
            audit: config.audit,
            events: config.events,
            metrics,
            metrics_registry: metrics_registry.clone(),
        })
    }

    /// Creates or updates definitions and waits until they are served.
    pub async fn install_crds(&self, definitions: &[Value]) -> Result<(), StartApiServerError> {
        let resource = Arc::clone(
            self.engine
                .registry
                .snapshot()
                .built_in(BuiltIn::CustomResourceDefinition),
        );
        for definition in definitions {
            let name = object::name(definition).to_owned();
            let failed = |err: ApiError| StartApiServerError::Definition {
                name: name.clone(),
                err,
            };
            let mut warnings = Warnings::default();
            let working = decode_object(
                &resource,
                definition.clone(),
                Vec::new(),
                FieldValidation::Ignore,
                &mut warnings,
            )
            .map_err(|fault: DecodeFault| failed(ApiError::bad_request(fault.text())))?;
            let target = Target::new(&resource, None, &name);
            let spec = working["spec"].clone();
            let created = self
                .engine
                .create(&target, working, WriteOptions::INTERNAL, &mut warnings)
                .await;
            match created {
                Ok(_) => {}
                Err(err) if err.reason() == Reason::AlreadyExists => {
                    let change = |old: &Value, _: &mut Warnings| {
                        let mut new = old.clone();
                        new["spec"] = spec.clone();
                        Ok(new)
                    };
                    let edit = Edit::Change(&change);
                    self.engine
                        .update(&target, edit, WriteOptions::INTERNAL, &mut warnings)
                        .await
                        .map_err(failed)?;
                }
                Err(err) => return Err(failed(err)),
            }
        }
        let records = definition_controller::settle(&self.engine).await;
        for definition in definitions {
            let name = object::name(definition);
            let is_established = records.iter().any(|record| {
                object::name(&record.json()) == name
                    && crd::is_condition_true(&record.json(), crd::ESTABLISHED)
            });
            if !is_established {
                return Err(StartApiServerError::NotEstablished {
                    name: name.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Starts to serve on a bound listener. Returns immediately; the server stops with `tasks`.
    pub async fn serve(
        self,
        listener: std::net::TcpListener,
        tasks: &Tasks,
    ) -> Result<(), StartApiServerError> {
        let listener = connection::listener(listener).map_err(StartApiServerError::Listener)?;
        let address = listener
            .local_addr()
            .map_err(StartApiServerError::Listener)?
            .to_string();
        self.create_namespaces().await?;
        let ensured = roles::ensure(&self.engine, &self.roles).await;
        ensured.map_err(|(name, err)| StartApiServerError::Role { name, err })?;
        let defaults = NamespaceDefaults::new(self.engine.clone(), self.authority.clone());
        defaults.ensure_all().await;
        definition_controller::settle(&self.engine).await;
        let stop = tasks.stop_token();
        let controller = definition_controller::CrdController::new(self.engine.clone(), tasks.clone());
        tasks.spawn("apiserver-definitions", |stop| {
            Box::pin(async move {
                controller.run(stop).await;
                Ok::<_, StartApiServerError>(())
            })
        });
        tasks.spawn("apiserver-namespace-defaults", |stop| {
            Box::pin(async move {
                defaults.run(stop).await;
                Ok::<_, StartApiServerError>(())
            })
        });
        self.spawn_controllers(tasks);
        let api = Arc::new(Api {
            engine: self.engine,
            token: self.token,
            account_key: self.account_key,
            issuers: self.issuers,
            users: self.users,
            guesses: Guesses::default(),
            rules: self.rules,
            in_flight: self.in_flight,
            audit: self.audit,
            metrics: self.metrics,
            metrics_registry: self.metrics_registry,
            address: address.clone(),
            is_ready: AtomicBool::new(false),
            stop: stop.clone(),
        });
        let tls = self.tls;
        api.is_ready.store(true, Ordering::Release);
        tasks.spawn("apiserver-accept", |stop: CancellationToken| {
            Box::pin(async move {
                connection::serve(listener, tls, api, stop).await;
                Ok::<_, StartApiServerError>(())
            })
        });
        info!(address, "API server listening");
        Ok(())
    }

    /// Starts the controllers that run in kube-controller-manager in a Kubernetes cluster.
    fn spawn_controllers(&self, tasks: &Tasks) {
        let collector = gc::GarbageCollector::new(self.engine.clone());
        tasks.spawn("apiserver-garbage-collector", |stop| {
            Box::pin(async move {
                collector.run(stop).await;
                Ok::<_, StartApiServerError>(())
            })
        });
        let namespaces = namespaces::NamespaceController::new(self.engine.clone());
        tasks.spawn("apiserver-namespaces", |stop| {
            Box::pin(async move {
                namespaces.run(stop).await;
                Ok::<_, StartApiServerError>(())
            })
        });
        let policies = policies::PolicyStatus::new(self.engine.clone());
        tasks.spawn("apiserver-policies", |stop| {
            Box::pin(async move {
                policies.run(stop).await;
                Ok::<_, StartApiServerError>(())
            })
        });
        let aggregation = roles::RoleAggregation::new(self.engine.clone());
        tasks.spawn("apiserver-roles", |stop| {
            Box::pin(async move {
                aggregation.run(stop).await;
                Ok::<_, StartApiServerError>(())
            })
        });
        if let Some(signers) = self.signers.clone() {
            let engine = self.engine.clone();
            tasks.spawn("apiserver-certificates", |stop| {
                Box::pin(async move {
                    certificates::run(engine, signers, stop).await;
                    Ok::<_, StartApiServerError>(())
                })
            });
        }
        let store = self.engine.store.clone();
        tasks.spawn("apiserver-storage", |stop| {
            Box::pin(async move {
                storage::run(store, stop).await;
                Ok::<_, StartApiServerError>(())
            })
        });
        let (engine, events) = (self.engine.clone(), self.events);
        tasks.spawn("apiserver-expiry", move |stop| {
            Box::pin(async move {
                expiry::run(engine, events, stop).await;
                Ok::<_, StartApiServerError>(())
            })
        });
    }

    async fn create_namespaces(&self) -> Result<(), StartApiServerError> {
        for name in builtin::initial_namespaces() {
            let created = namespaces::create(&self.engine, name).await;
            created.map_err(|err| StartApiServerError::Namespace { name, err })?;
        }
        Ok(())
    }
}
