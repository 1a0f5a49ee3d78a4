//! Memory of the API server: with an empty store, with many objects and changes, and after a restart.

use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use reqwest::RequestBuilder;
use serde_json::json;

use crate::apiserver::{ApiServer, NAMESPACE};
use crate::resident::Usage;
use crate::stats::{head, row};

const OBJECTS: usize = 50_000;
const PATCHES: usize = 40_000;
const CLIENTS: usize = 16;
/// Time after which the memory of finished requests has been returned.
const SETTLE: Duration = Duration::from_secs(10);

pub(crate) fn run() {
    let mut server = ApiServer::start();
    head(&["state", "RSS, MiB"]);
    let show = |state: &str, server: &ApiServer| {
        std::thread::sleep(SETTLE);
        let resident = Usage::of(server.process.pid()).resident_bytes >> 20;
        row(&[state.to_owned(), resident.to_string()]);
    };
    show("empty store", &server);
    let api = &server.api;
    server.runtime.block_on(async {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        let url = format!("{}/api/v1/namespaces", api.base);
        api.done(api.client.post(url).json(&namespace)).await;
        send(&server, OBJECTS, &|number| api.create(NAMESPACE, number)).await;
        send(&server, PATCHES, &|number| {
            let change = json!({"metadata": {"annotations": {"changed": number.to_string()}}});
            api.patch(&crate::apiserver::name(number), &change)
        })
        .await;
    });
    show(&format!("{OBJECTS} objects of 1 KiB, {PATCHES} patches"), &server);
    server.restart();
    show("after a restart", &server);
}

/// Sends one request per number.
async fn send(server: &ApiServer, count: usize, request: &dyn Fn(usize) -> RequestBuilder) {
    let requests = stream::iter((0..count).map(|number| server.api.done(request(number))));
    let mut answers = requests.buffer_unordered(CLIENTS);
    while answers.next().await.is_some() {}
}
