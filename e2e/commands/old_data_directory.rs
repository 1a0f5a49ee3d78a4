//! Start of a server with the data of an API server without TLS and without encryption of Secrets.

use std::path::Path;

use rooflet_apiserver::{ApiServer, ApiServerConfig, store_config};
use rooflet_base::clock::Clock;
use rooflet_base::metrics::Registry;
use rooflet_base::task::Tasks;
use rooflet_pki::Token;
use rooflet_store::Store;
use serde_json::{Value, json};

use crate::harness::{Cluster, Process, eventually};

/// `swordfish` in base64, as in the object.
const ENCODED: &str = "c3dvcmRmaXNo";

/// Runs an API server of this process with a store that encrypts nothing, and creates these objects. The
/// directory then contains only the store and the administrator's token, which is returned.
fn write_old_data(directory: &Path, objects: &[(&str, Value)]) -> String {
    drop(rustls::crypto::ring::default_provider().install_default());
    std::fs::create_dir_all(directory).expect("writable");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let token = Token::open(directory).expect("a token");
        let bearer = token.reveal().to_owned();
        let config = store_config(directory.join("store.redb"));
        let store = Store::open(config, Clock::System).expect("a new store");
        let config = ApiServerConfig::new(token);
        let server = ApiServer::new(config, store.clone(), Clock::System, &Registry::new());
        let server = server.expect("a fresh registry");
        let definitions = rooflet_api::crd::all();
        let definitions: Vec<_> = definitions.iter().map(|definition| json!(definition)).collect();
        server
            .install_crds(&definitions)
            .await
            .expect("valid definitions");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let tasks = Tasks::new();
        server.serve(listener, &tasks).await.expect("serves");
        let client = reqwest::Client::new();
        for (path, object) in objects {
            let request = client
                .post(format!("http://{address}{path}"))
                .bearer_auth(&bearer);
            let created = request.json(object).send().await.expect("a response");
            assert!(created.status().is_success(), "{path}: {created:?}");
        }
        tasks.cancel();
        store.close().await;
        bearer
    })
}

#[test]
fn data_of_a_server_without_tls_and_encryption_stay_usable() {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"},
        "data": {"token": ENCODED}});
    let deployment = json!({"apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelDeployment",
    "metadata": {"name": "guide"}, "spec": {
        "model": {"source": "local://guide"},
        "serving": {"contextTokens": 256},
        // The machine of the test may be short of memory.
        "placement": {"tolerations": [{"operator": "Exists"}]},
    }});
    let deployments = "/apis/rooflet.dev/v1alpha1/namespaces/default/modeldeployments";
    let objects = [
        ("/api/v1/namespaces/default/secrets", secret),
        (deployments, deployment),
    ];
    let mut bearer = String::new();
    let cluster = Cluster::with(&[], |args, log| {
        let data = args.iter().find_map(|arg| arg.strip_prefix("--data-dir="));
        let data = Path::new(data.expect("a data directory"));
        bearer = write_old_data(data, &objects);
        assert!(contains(&data.join("store.redb"), ENCODED));
        Process::start(args, log)
    });
    let Some(cluster) = cluster else { return };

    let data = cluster.scratch.join("data");
    let stored = eventually("the Secret", || cluster.kubectl.json("secret hub"));
    assert_eq!(stored["data"]["token"], ENCODED);
    assert!(!contains(&data.join("store.redb"), ENCODED));
    for file in ["secrets-key", "ca.pem", "client-ca.pem", "node-ca.pem"] {
        assert!(data.join(file).exists(), "{file}");
    }
    // The token of the earlier kubeconfig is that of the administrator. Only address and authority are new.
    let kubeconfig = std::fs::read_to_string(cluster.scratch.join("kubeconfig")).expect("a kubeconfig");
    assert!(
        kubeconfig.contains(&bearer) && kubeconfig.contains("https://"),
        "{kubeconfig}"
    );
    let _agent = cluster.agent("mini-1", &[]);
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    let answer = cluster
        .gateway
        .try_chat("guide", "What is rooflet?")
        .expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text);
}

fn contains(file: &Path, text: &str) -> bool {
    let content = std::fs::read(file).expect("the file");
    content.windows(text.len()).any(|part| part == text.as_bytes())
}
