//! API keys: who may use which models, and how much.

use serde_json::json;

use crate::harness::{Cluster, Flood, Http, HttpResponse, eventually, pause, resume, with_unknown_key};

const GUIDE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  model: {source: local://guide}
  serving: {name: guide, contextTokens: 512}
  # The machine of the test may be short of memory.
  placement: {tolerations: [{operator: Exists}]}
";

/// Runs `rooflet key ARGS` and returns its output.
#[track_caller]
pub(super) fn key(cluster: &Cluster, args: &str) -> String {
    let output = cluster.rooflet(&format!("key {args}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "key {args}: {errors}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[track_caller]
fn ask(http: &Http) -> HttpResponse {
    http.try_chat("guide", "What is rooflet?").expect("a response")
}

/// Asserts status and error code of a response.
#[track_caller]
fn assert_error(answer: &HttpResponse, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{}", answer.text);
    assert_eq!(answer.json()["error"]["code"], code, "{}", answer.text);
}

#[test]
fn keys_permit_models_within_limits() {
    let Some(cluster) = Cluster::start(&["--require-keys"]) else {
        return;
    };
    let _agent = cluster.agent("mini-1", &[]);
    let kubectl = &cluster.kubectl;
    kubectl.apply(GUIDE).ok();
    kubectl
        .run("wait --for=condition=Available mdep/guide --timeout=180s")
        .ok();
    kubectl.run("create namespace other").ok();
    let gateway = &cluster.gateway;

    // Without a key, only the state of the gateway is visible.
    let anonymous = ask(gateway);
    assert_error(&anonymous, 401, "invalid_api_key");
    assert_eq!(anonymous.headers["www-authenticate"], "Bearer");
    assert_eq!(gateway.get("/v1/models").expect("a response").status, 401);
    let anthropic = gateway.post("/v1/messages", &json!({})).expect("a response");
    assert_eq!(anthropic.json()["error"]["type"], "authentication_error");
    let ollama = gateway.post("/api/chat", &json!({})).expect("a response");
    assert_eq!(ollama.status, 401, "{}", ollama.text);
    assert!(ollama.json()["error"].is_string(), "{}", ollama.text);
    for open in ["/health", "/ready", "/version", "/metrics", "/", "/api/version"] {
        assert_eq!(gateway.get(open).expect("a response").status, 200, "{open}");
    }
    let invented = gateway.with_header(
        "authorization",
        "Bearer sk-rf-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8",
    );
    let rejected = ask(&invented);
    assert_error(&rejected, 401, "invalid_api_key");
    assert!(
        rejected.text.contains("dHh8") && !rejected.text.contains("AAEC"),
        "{}",
        rejected.text
    );

    // A key permits the models of its namespace.
    let secret = key(&cluster, "create team-a --models guide --tokens-per-minute 1k");
    let client = gateway.with_header("authorization", &format!("Bearer {secret}"));
    eventually("the key being valid", || match ask(&client) {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.text),
    });
    let answer = ask(&client);
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.headers["x-ratelimit-limit-tokens"], "1000");
    let models = client.get("/v1/models").expect("a response").json();
    assert_eq!(models["data"][0]["id"], "guide", "{models}");
    let by_header = gateway.with_header("x-api-key", &secret);
    let message =
        json!({"model": "guide", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]});
    let message = by_header.post("/v1/messages", &message).expect("a response");
    assert_eq!(message.status, 200, "{}", message.text);
    assert_eq!(message.headers["anthropic-ratelimit-tokens-limit"], "1000");

    let chat = json!({"model": "guide:latest", "messages": [{"role": "user", "content": "Hello"}],
                      "stream": false, "options": {"num_predict": 4}});
    let chat = client.post("/api/chat", &chat).expect("a response");
    assert_eq!(chat.status, 200, "{}", chat.text);

    // Keys of another namespace or for another model do not.
    let other = key(&cluster, "create team-b -n other");
    let other = gateway.with_header("x-api-key", &other);
    eventually("the key of another namespace", || match ask(&other) {
        answer if answer.status == 404 => Ok(()),
        answer => Err(answer.text),
    });
    assert_eq!(
        other.get("/v1/models").expect("a response").json()["data"],
        json!([])
    );
    let narrow = key(&cluster, "create team-c --models chat");
    let narrow = gateway.with_header("x-api-key", &narrow);
    eventually("the key for another model", || match ask(&narrow) {
        answer if answer.status == 403 => Ok(()),
        answer => Err(answer.text),
    });

    // The limit per minute is reached at last.
    let limited = (0..100).map(|_| ask(&client)).find(|answer| answer.status != 200);
    let limited = limited.expect("a rejected request");
    assert_error(&limited, 429, "rate_limit_exceeded");
    assert!(
        limited.headers.contains_key("retry-after"),
        "{:?}",
        limited.headers
    );

    // Use is reported, and shown by kubectl and rooflet.
    eventually("the reported use", || {
        let table = kubectl.run("get apikeys").ok();
        let csv = key(&cluster, "usage team-a -o csv");
        let last = csv.lines().last().unwrap_or_default().to_owned();
        match last.contains(",team-a,guide,") && table.contains("guide") {
            true => Ok(()),
            false => Err(format!("{table}\n{csv}")),
        }
    });
    assert!(key(&cluster, "list").contains("team-a"));
    let metrics = gateway.get("/metrics").expect("a response").text;
    let counted =
        r#"rooflet_gateway_key_tokens_total{key="team-a",kind="prompt",model="guide",namespace="default"}"#;
    assert!(metrics.contains(counted), "{metrics}");

    check_audit(&cluster);

    // Truncated, expired and deleted keys are rejected. The log names client and reason, and contains no secret.
    let truncated = gateway.with_header("x-api-key", &secret[..secret.len() - 1]);
    assert_error(&ask(&truncated), 401, "invalid_api_key");
    let expiry = r#"{"spec": {"expiresAt": "2026-01-01T00:00:00Z"}}"#;
    kubectl
        .run_with(&["patch", "apikey", "team-c", "--type=merge", "-p", expiry], "")
        .ok();
    eventually("the expired key being rejected", || match ask(&narrow) {
        answer if answer.status == 401 && answer.text.contains("has expired") => Ok(()),
        answer => Err(answer.text),
    });
    key(&cluster, "delete team-a");
    eventually("the deleted key being rejected", || match ask(&client) {
        answer if answer.status == 401 => Ok(()),
        answer => Err(answer.text),
    });
    for log in ["server.log", "mini-1.log"] {
        let text = std::fs::read_to_string(cluster.scratch.join(log)).expect("a log");
        assert!(!text.contains(&secret), "{log} contains the secret");
    }
    let log = std::fs::read_to_string(cluster.scratch.join("server.log")).expect("a log");
    for reason in ["Incorrect API key provided", "has expired"] {
        let is_logged = |line: &str| {
            let words = ["API key rejected", "127.0.0.1", reason];
            words.iter().all(|word| line.contains(word))
        };
        assert!(log.lines().any(is_logged), "{reason}: {log}");
    }
}

/// 20,000 is the number of attempts in two seconds at 10,000 per second.
#[test]
fn good_keys_are_served_during_a_flood_of_bad_keys() {
    let Some(cluster) = Cluster::start(&["--require-keys"]) else {
        return;
    };
    let _agent = cluster.agent("mini-1", &[]);
    cluster.kubectl.apply(GUIDE).ok();
    cluster
        .kubectl
        .run("wait --for=condition=Available mdep/guide --timeout=180s")
        .ok();
    let secret = key(&cluster, "create team-a");
    let client = cluster
        .gateway
        .with_header("authorization", &format!("Bearer {secret}"));
    eventually("the key", || match ask(&client) {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.text),
    });
    let (_, address) = cluster.gateway.base().split_once("://").expect("a URL");
    let flood = Flood::start(address, 4, with_unknown_key, "401");
    let mut served = 0;
    eventually("the end of the flood", || {
        let answer = ask(&client);
        assert_eq!(answer.status, 200, "{}", answer.text);
        served += 1;
        match (served, flood.answered()) {
            (20.., 20_000..) => Ok(()),
            counts => Err(format!("{counts:?} requests were answered and rejected")),
        }
    });
    assert_eq!(flood.others(), 0);
}

/// Every denied use of a key is in the gateway's audit log, without secrets.
fn check_audit(cluster: &Cluster) {
    let expected = [
        ("", 401, "MissingKey", "/v1/chat/completions"),
        ("", 401, "MissingKey", "/v1/models"),
        ("", 401, "UnknownKey", "/v1/chat/completions"),
        (
            "apikey:other/team-b",
            404,
            "ModelNotFound",
            "/v1/chat/completions",
        ),
        (
            "apikey:default/team-c",
            403,
            "ModelNotPermitted",
            "/v1/chat/completions",
        ),
        (
            "apikey:default/team-a",
            429,
            "TokensPerMinute",
            "/v1/chat/completions",
        ),
    ];
    let log = cluster.scratch.join("data").join("gateway-audit.log");
    for (user, status, reason, path) in expected {
        eventually("the event of a denied use", || {
            let text = std::fs::read_to_string(&log).map_err(|err| err.to_string())?;
            let is_expected = |line: &str| {
                let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
                event["user"]["username"] == user
                    && event["responseStatus"]["code"] == status
                    && event["annotations"]["authorization.k8s.io/reason"] == reason
                    && event["requestURI"] == path
                    && event["sourceIPs"][0] == "127.0.0.1"
            };
            match text.lines().any(is_expected) {
                true => Ok(()),
                false => Err(format!("{user} {status} {reason}: {text}")),
            }
        });
    }
    let text = std::fs::read_to_string(&log).expect("the audit log");
    assert!(!text.contains("sk-rf-"), "{text}");
}

#[test]
fn gateways_share_the_budget_of_a_key() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let _agent = cluster.agent("mini-1", &[]);
    cluster.kubectl.apply(GUIDE).ok();
    cluster
        .kubectl
        .run("wait --for=condition=Available mdep/guide --timeout=180s")
        .ok();
    let (_process, second) = cluster.start_second_gateway(&[]);
    // Without --require-keys, requests without a key of the fleet are anonymous.
    assert_eq!(ask(&second).status, 200);
    assert_eq!(
        ask(&second.with_header("authorization", "Bearer dummy")).status,
        200
    );
    assert_error(
        &ask(&second.with_header("authorization", "Bearer sk-rf-wrong")),
        401,
        "invalid_api_key",
    );

    let secret = key(&cluster, "create small --tokens-per-day 20");
    let first = cluster.gateway.with_header("x-api-key", &secret);
    let second = second.with_header("x-api-key", &secret);
    eventually("the key being valid", || match ask(&first) {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.text),
    });
    assert_error(&ask(&first), 429, "insufficient_quota");
    eventually("the second gateway knowing the use", || match ask(&second) {
        answer if answer.status == 429 => Ok(()),
        answer => Err(answer.text),
    });
}

#[test]
fn stream_of_a_deleted_key_ends_normally() {
    let Some(cluster) = Cluster::start(&["--require-keys"]) else {
        return;
    };
    let _agent = cluster.agent("mini-1", &[]);
    // The stream must not end before the worker is paused.
    let long = GUIDE.replace("contextTokens: 512", "contextTokens: 4096");
    cluster.kubectl.apply(&long).ok();
    cluster
        .kubectl
        .run("wait --for=condition=Available mdep/guide --timeout=180s")
        .ok();
    let secret = key(&cluster, "create team-a");
    let client = cluster.gateway.with_header("x-api-key", &secret);
    eventually("the key being valid", || match ask(&client) {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.text),
    });

    let body = json!({"model": "guide", "messages": [{"role": "user", "content": "What is rooflet?"}],
                      "stream": true, "max_tokens": 3000, "ignore_eos": true});
    let workers = cluster.workers("mini-1");
    let in_progress = || {
        let metrics = cluster.gateway.get("/metrics").expect("a response").text;
        metrics.contains("\nrooflet_gateway_outstanding_requests 1\n")
    };
    let streamed = client.post_with_head("/v1/chat/completions", &body, |status, _| {
        assert_eq!(status, 200);
        workers.iter().for_each(|pid| pause(*pid));
        // The client's runtime cannot send another request here.
        std::thread::scope(|scope| {
            let deletion = scope.spawn(|| {
                key(&cluster, "delete team-a");
                let other = cluster.gateway.with_header("x-api-key", &secret);
                eventually("the deleted key being rejected", || match ask(&other) {
                    answer if answer.status == 401 => Ok(()),
                    answer => Err(answer.text),
                });
                assert!(in_progress(), "the stream has ended");
            });
            let deleted = deletion.join();
            workers.iter().for_each(|pid| resume(*pid));
            deleted.expect("the key is rejected");
        });
    });
    let streamed = streamed.expect("a complete response");
    let events = streamed.events();
    assert_eq!(
        events.last().map(String::as_str),
        Some("[DONE]"),
        "{}",
        streamed.text
    );
    let has_reason = |event: &String| event.contains(r#""finish_reason":"length""#);
    assert!(events.iter().any(has_reason), "{}", streamed.text);
    assert_error(&ask(&client), 401, "invalid_api_key");
}
