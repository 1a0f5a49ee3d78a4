//! Complete server for embedding in another program.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::authorization::{Authorizer, ObjectPolicy};
use crate::{ApiServer, ApiServerConfig, InFlightLimits, StartApiServerError};
use rooflet_base::clock::Clock;
use rooflet_base::metrics::Registry;
use rooflet_base::task::{Tasks, TasksError};
use rooflet_pki::{AccountKey, OpenAccountKeyError, OpenTokenError, Token};
use rooflet_store::{OpenStoreError, Store, StoreMetrics};

/// Time for in-flight requests to complete when the server stops.
const STOP_GRACE: Duration = Duration::from_secs(15);

/// Options of an [`EmbeddedServer`].
pub struct EmbeddedOptions {
    /// Directory of the store (`store.redb`), the administrator's token (`token`) and the key of
    /// service accounts (`service-account-key.pem`). Created if missing.
    pub data_dir: PathBuf,
    /// Port 0 selects a free port.
    pub listen: SocketAddr,
    /// CustomResourceDefinitions to create or update before the server accepts requests.
    pub definitions: Vec<Value>,
    pub in_flight: InFlightLimits,
    /// See [`ApiServerConfig::authorizers`].
    pub authorizers: Vec<Arc<dyn Authorizer>>,
    /// See [`ApiServerConfig::policies`].
    pub policies: Vec<Arc<dyn ObjectPolicy>>,
    /// See [`ApiServerConfig::roles`].
    pub roles: Vec<Value>,
}

impl EmbeddedOptions {
    /// Returns options with a free loopback port, without definitions, for the administrator only.
    pub fn at(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            definitions: Vec::new(),
            in_flight: InFlightLimits::default(),
            authorizers: Vec::new(),
            policies: Vec::new(),
            roles: Vec::new(),
        }
    }
}

/// Error that prevents the start of an [`EmbeddedServer`].
#[derive(Debug, thiserror::Error)]
pub enum StartEmbeddedError {
    #[error("creating the data directory `{}`", path.display())]
    DataDir { path: PathBuf, source: io::Error },
    #[error("opening the store")]
    Store(#[from] OpenStoreError),
    #[error("opening the administrator's token")]
    Token(#[from] OpenTokenError),
    #[error("opening the key of service accounts")]
    AccountKey(#[from] OpenAccountKeyError),
    #[error("listening on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("registering metrics")]
    Metrics(#[from] rooflet_base::metrics::Error),
    #[error(transparent)]
    Server(#[from] StartApiServerError),
}

/// Failure of a part of the server, or timeout of its stop.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StopEmbeddedError(#[from] TasksError);

/// Server with its own store, over plain HTTP. Dropping it stops the server;
/// [`EmbeddedServer::stop`] also waits until it has stopped.
///
/// For TLS, client certificates or a custom store, use [`ApiServer`].
pub struct EmbeddedServer {
    address: SocketAddr,
    token: Token,
    store: Store,
    tasks: Tasks,
}

impl EmbeddedServer {
    /// Starts the server. Returns when the server accepts requests.
    pub async fn start(options: EmbeddedOptions) -> Result<Self, StartEmbeddedError> {
        let directory = options.data_dir;
        std::fs::create_dir_all(&directory).map_err(|source| StartEmbeddedError::DataDir {
            path: directory.clone(),
            source,
        })?;
        let registry = Registry::new();
        let mut config = crate::store_config(directory.join("store.redb"));
        config.metrics = StoreMetrics::register(&registry)?;
        let store = Store::open(config, Clock::System)?;
        let token = Token::open(&directory)?;
        let failed = |source| StartEmbeddedError::Listen {
            address: options.listen,
            source,
        };
        let listener = TcpListener::bind(options.listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let config = ApiServerConfig {
            account_key: Some(Arc::new(AccountKey::open(&directory)?)),
            issuers: Vec::new(),
            in_flight: options.in_flight,
            authorizers: options.authorizers,
            policies: options.policies,
            roles: options.roles,
            ..ApiServerConfig::new(token.clone())
        };
        let server = ApiServer::new(config, store.clone(), Clock::System, &registry)?;
        server.install_crds(&options.definitions).await?;
        let tasks = Tasks::new();
        server.serve(listener, &tasks).await?;
        Ok(Self {
            address,
            token,
            store,
            tasks,
        })
    }

    /// Returns the base URL: `http://HOST:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the administrator's bearer token.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Terminates requests and watches, and closes the store.
    pub async fn stop(self) -> Result<(), StopEmbeddedError> {
        self.tasks.cancel();
        let ended = self.tasks.join(STOP_GRACE).await;
        self.store.close().await;
        Ok(ended?)
    }
}

impl Drop for EmbeddedServer {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}
