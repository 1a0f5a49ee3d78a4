//! Client whose credentials can be replaced while it is used.

use std::sync::{Arc, Mutex};

use http::Request;
use kube::Client;
use kube::client::Body;
use tower::service_fn;

use rooflet_base::mutex::lock;

/// Handle that replaces the credentials of the associated client.
#[derive(Clone)]
pub struct Renewable {
    current: Arc<Mutex<Client>>,
}

impl Renewable {
    /// Returns a client that delegates to `client` until it is replaced.
    pub fn new(client: Client) -> (Client, Self) {
        let namespace = client.default_namespace().to_owned();
        let current = Arc::new(Mutex::new(client));
        let shared = Arc::clone(&current);
        let service = service_fn(move |request: Request<Body>| {
            let client = lock(&shared).clone();
            async move { client.send(request).await }
        });
        (Client::new(service, namespace), Self { current })
    }

    /// Uses `client` for all following requests. In-flight requests and watches keep the previous
    /// one.
    pub fn replace(&self, client: Client) {
        *lock(&self.current) = client;
    }
}
