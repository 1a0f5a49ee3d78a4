//! Embedded server with a custom kind: creates an object over HTTP, lists it, and stops.
#![expect(clippy::print_stdout, reason = "the example prints its result")]

use std::error::Error;

use reqwest::Client;
use rooflet_apiserver::{EmbeddedOptions, EmbeddedServer};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", run().await?);
    Ok(())
}

/// Starts a server in a temporary directory and returns the list of its widgets.
pub(crate) async fn run() -> Result<Value, Box<dyn Error>> {
    // Another part of the process may have installed a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let directory = tempfile::tempdir()?;
    let mut options = EmbeddedOptions::at(directory.path());
    options.definitions = vec![widgets()];
    let server = EmbeddedServer::start(options).await?;

    let (client, token) = (Client::new(), server.token().reveal());
    let url = format!("{}/apis/example.com/v1/namespaces/default/widgets", server.url());
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "first"},
        "spec": {"size": 3}});
    let created = client.post(&url).bearer_auth(token).json(&widget).send().await?;
    created.error_for_status()?;
    let listed = client.get(&url).bearer_auth(token).send().await?;
    let list = listed.error_for_status()?.json().await?;

    server.stop().await?;
    Ok(list)
}

/// Returns the definition of `widgets.example.com`, with a positive size and a default colour.
fn widgets() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {"type": "object", "required": ["size"], "properties": {
                "size": {"type": "integer", "minimum": 1},
                "colour": {"type": "string", "default": "grey"}}}}}}}]}})
}
