//! The web page: sign-in, and requests with the rights of the user.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::harness::{Cluster, Fleet, HttpResponse, Process, Scratch, TIMEOUT, eventually, free_port};

/// Browser without a script: keeps the session's cookie and CSRF token.
pub(crate) struct Browser {
    url: String,
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
    cookie: String,
    csrf: String,
}

impl Browser {
    pub(crate) fn new(url: &str) -> Self {
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = reqwest::Client::builder()
            .no_proxy()
            .pool_max_idle_per_host(0)
            .timeout(TIMEOUT);
        Self {
            url: url.to_owned(),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime"),
            client: client.build().expect("a client"),
            cookie: String::new(),
            csrf: String::new(),
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self
            .client
            .request(method, format!("{}{path}", self.url))
            .header("origin", &self.url);
        request.header("cookie", &self.cookie)
    }

    fn send(&self, request: RequestBuilder) -> Result<HttpResponse, String> {
        self.runtime.block_on(async {
            let response = request.send().await.map_err(|err| format!("{err:?}"))?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let text = response.text().await.map_err(|err| format!("{err:?}"))?;
            Ok(HttpResponse {
                status,
                headers,
                text,
            })
        })
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> HttpResponse {
        self.send(self.request(Method::GET, path)).expect("a response")
    }

    #[track_caller]
    pub(crate) fn write(&self, method: Method, path: &str, body: &Value) -> HttpResponse {
        let request = self.request(method, path).header("x-csrf-token", &self.csrf);
        self.send(request.json(body)).expect("a response")
    }

    /// Signs in with `{"token": …}` or `{"code": …}`.
    #[track_caller]
    pub(crate) fn sign_in(&mut self, body: &Value) -> HttpResponse {
        let response = self.send(self.request(Method::POST, "/session").json(body));
        let response = response.expect("a response");
        if response.status == 200 {
            let cookie = response.headers["set-cookie"].to_str().expect("text");
            self.cookie = cookie.split(';').next().expect("a cookie").to_owned();
            self.csrf = response.json()["csrfToken"].as_str().expect("a token").to_owned();
        }
        response
    }

    /// Sends a GET request, calls `started` after the head of the response, and then reads until
    /// `is_found` accepts the text that has arrived.
    fn stream(&self, path: &str, started: impl FnOnce(), mut is_found: impl FnMut(&str) -> bool) -> String {
        self.runtime.block_on(async {
            let response = self.request(Method::GET, path).send().await;
            let mut response = response.expect("a response");
            assert_eq!(response.status().as_u16(), 200);
            started();
            let mut text = String::new();
            let reading = async {
                while !is_found(&text) {
                    match response.chunk().await.expect("a chunk") {
                        Some(chunk) => text.push_str(&String::from_utf8_lossy(&chunk)),
                        None => panic!("the stream ended: {text}"),
                    }
                }
            };
            let in_time = tokio::time::timeout(Duration::from_secs(60), reading).await;
            in_time.unwrap_or_else(|_| panic!("not received: {text}"));
            text
        })
    }
}

#[track_caller]
fn assert_error(answer: &HttpResponse, status: u16, reason: &str) {
    assert_eq!(answer.status, status, "{}", answer.text);
    assert_eq!(answer.json()["error"]["reason"], reason, "{}", answer.text);
}

/// Returns the code of the link that `rooflet ui` prints.
#[track_caller]
fn code(cluster: &Cluster) -> String {
    let output = cluster.rooflet("ui");
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "{output:?}");
    let code = printed.strip_prefix(&format!("{}/#code=", cluster.web));
    code.expect(&printed).to_owned()
}

/// Returns the administrator's token.
pub(crate) fn token(cluster: &Cluster) -> String {
    let file = cluster.scratch.join("data/token");
    let token = std::fs::read_to_string(file).expect("the token exists");
    token.trim().to_owned()
}

#[test]
fn link_and_token_sign_in_and_nothing_reveals_them() {
    let Some(cluster) = Cluster::start(&["--roles=apiserver,web"]) else {
        return;
    };
    let token = token(&cluster);
    let mut browser = Browser::new(&cluster.web);
    let page = browser.get("/");
    assert_eq!(page.status, 200, "{}", page.text);
    assert!(page.text.contains("<script"), "{}", page.text);
    let policy = page.headers["content-security-policy"].to_str().expect("text");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_error(&browser.get("/session"), 401, "NotSignedIn");

    let code = code(&cluster);
    let session = browser.sign_in(&json!({ "code": code }));
    assert_eq!(session.status, 200, "{}", session.text);
    assert_eq!(session.json()["user"], "system:admin", "{}", session.text);
    let first_cookie = browser.cookie.clone();
    let mut other = Browser::new(&cluster.web);
    assert_error(&other.sign_in(&json!({ "code": code })), 401, "InvalidCode");
    let mut wrong = code.clone();
    wrong.replace_range(..1, if code.starts_with('A') { "B" } else { "A" });
    assert_error(&other.sign_in(&json!({ "code": wrong })), 401, "InvalidCode");
    assert_error(
        &other.sign_in(&json!({"token": "wrong-secret"})),
        401,
        "InvalidToken",
    );
    let by_token = other.sign_in(&json!({ "token": token }));
    assert_eq!(by_token.status, 200, "{}", by_token.text);

    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let namespaces = "/proxy/api/api/v1/namespaces";
    let unprotected = browser
        .request(Method::POST, namespaces)
        .json(&namespace("forged"));
    let unprotected = browser.send(unprotected).expect("a response");
    assert_error(&unprotected, 403, "CsrfTokenMissing");
    let created = browser.write(Method::POST, namespaces, &namespace("made"));
    assert_eq!(created.status, 201, "{}", created.text);
    let listed = cluster.kubectl.run("get namespaces -o name").ok();
    assert!(listed.contains("made") && !listed.contains("forged"), "{listed}");

    let foreign = browser
        .request(Method::GET, "/session")
        .header("host", "evil.example");
    let foreign = browser.send(foreign).expect("a response");
    assert_error(&foreign, 421, "HostNotAllowed");
    let foreign = browser
        .client
        .get(format!("{}{namespaces}", browser.url))
        .header("cookie", &browser.cookie)
        .header("origin", "http://evil.example");
    let foreign = browser.send(foreign).expect("a response");
    assert_error(&foreign, 403, "OriginNotAllowed");

    let out = browser.write(Method::DELETE, "/session", &json!(null));
    assert_eq!(out.status, 204, "{}", out.text);
    assert_error(&browser.get(namespaces), 401, "NotSignedIn");

    let reveals = |text: &str| {
        [&token, &code, &first_cookie]
            .into_iter()
            .any(|secret| text.contains(&**secret))
    };
    let headers = |headers: &HeaderMap| format!("{headers:?}");
    for response in [&page, &session, &by_token, &created, &out] {
        assert!(!response.text.contains(&token), "{}", response.text);
        assert!(
            !headers(&response.headers).contains(&token),
            "{:?}",
            response.headers
        );
    }
    for log in ["server.log", "data/audit.log"] {
        let log = std::fs::read_to_string(cluster.scratch.join(log)).expect("a log");
        assert!(!reveals(&log) && !log.contains("wrong-secret"), "{log}");
    }
    let log = std::fs::read_to_string(cluster.scratch.join("server.log")).expect("a log");
    assert!(log.contains("signed in") && log.contains("InvalidToken"), "{log}");
}

/// Returns certificate and private key of a kubeconfig, as `kubectl config view --flatten` prints them.
fn certificate_and_key(kubeconfig: &Path) -> [String; 2] {
    let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
    ["client-certificate-data", "client-key-data"].map(|field| {
        let (_, rest) = text
            .split_once(field)
            .unwrap_or_else(|| panic!("no {field} in {}", kubeconfig.display()));
        let is_value = |c: &char| c.is_ascii_alphanumeric() || "+/=".contains(*c);
        let value: String = rest
            .chars()
            .skip_while(|c| !is_value(c))
            .take_while(is_value)
            .collect();
        let bytes = STANDARD.decode(value).expect("base64");
        String::from_utf8(bytes).expect("PEM")
    })
}

#[test]
fn client_certificate_signs_in_with_the_rights_of_its_user() {
    let Some(cluster) = Cluster::start(&["--roles=apiserver,web"]) else {
        return;
    };
    let [certificate, key] = certificate_and_key(&cluster.scratch.join("data/gateway.kubeconfig"));
    let mut browser = Browser::new(&cluster.web);
    for (text, part) in [
        (certificate.as_str(), "private key"),
        (key.as_str(), "no certificate"),
        ("", "no certificate"),
    ] {
        let refused = browser.sign_in(&json!({ "certificate": text }));
        assert_error(&refused, 400, "InvalidRequest");
        assert!(refused.text.contains(part), "{}", refused.text);
    }
    let session = browser.sign_in(&json!({"certificate": format!("{certificate}{key}")}));
    assert_eq!(session.status, 200, "{}", session.text);
    let user = session.json()["user"].as_str().expect("a name").to_owned();
    assert!(user.starts_with("rooflet:gateway:"), "{user}");
    let replicas = "/proxy/api/apis/rooflet.dev/v1alpha1/modelreplicas";
    assert_eq!(browser.get(replicas).status, 200);
    let secrets = browser.get("/proxy/api/api/v1/secrets");
    assert_eq!(secrets.status, 403, "{}", secrets.text);
    assert!(
        secrets.json()["message"].as_str().expect("text").contains(&user),
        "{}",
        secrets.text
    );

    // Another server's authority signed this certificate.
    let Some(other) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let [certificate, foreign] = certificate_and_key(&other.scratch.join("data/gateway.kubeconfig"));
    let refused =
        Browser::new(&cluster.web).sign_in(&json!({"certificate": format!("{foreign}{certificate}")}));
    assert_error(&refused, 401, "InvalidCertificate");
    for log in ["server.log", "data/audit.log"] {
        let log = std::fs::read_to_string(cluster.scratch.join(log)).expect("a log");
        let secret = key.lines().nth(1).expect("a line of the key");
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn page_has_the_rights_of_the_user() {
    let Some(cluster) = Cluster::start(&["--roles=apiserver,web"]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    kubectl.run("create serviceaccount viewer").ok();
    kubectl
        .run("create clusterrolebinding viewer --clusterrole=view --serviceaccount=default:viewer")
        .ok();
    let token = kubectl.run("create token viewer").ok().trim().to_owned();
    let mut browser = Browser::new(&cluster.web);
    let session = browser.sign_in(&json!({ "token": token }));
    assert_eq!(session.json()["user"], "system:serviceaccount:default:viewer");
    let maps = "/proxy/api/api/v1/namespaces/default/configmaps";
    assert_eq!(browser.get(maps).status, 200);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let denied = browser.write(Method::POST, maps, &map);
    assert_eq!(denied.status, 403, "{}", denied.text);
    assert_eq!(denied.json()["kind"], "Status");
    assert!(
        denied.json()["message"]
            .as_str()
            .expect("text")
            .contains("viewer")
    );
    let secrets = browser.get("/proxy/api/api/v1/secrets");
    assert_eq!(secrets.status, 403, "{}", secrets.text);

    let version = browser.get(maps).json()["metadata"]["resourceVersion"].clone();
    let path = format!(
        "/proxy/watch?path=%2Fapi%2Fv1%2Fnamespaces%2Fdefault%2Fconfigmaps%3FresourceVersion%3D{}\
         &path=%2Fapi%2Fv1%2Fsecrets",
        version.as_str().expect("a version")
    );
    let create = || drop(kubectl.run("create configmap watched").ok());
    let lines = browser.stream(&path, create, |text| {
        text.contains("\"watched\"") && text.contains("\"status\":403") && text.ends_with('\n')
    });
    let added = lines.lines().find(|line| line.contains("\"watched\""));
    let added: Value = serde_json::from_str(added.expect("an event")).expect("JSON");
    assert_eq!(
        (&added["watch"], &added["event"]["type"]),
        (&json!(0), &json!("ADDED"))
    );
}

#[test]
fn page_recovers_from_an_outage_of_the_api_server() {
    let Some(mut cluster) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let token = token(&cluster);
    let url = format!("http://127.0.0.1:{}", free_port());
    let args = [
        "server".to_owned(),
        "--roles=web".to_owned(),
        format!("--kubeconfig={}", cluster.scratch.join("kubeconfig").display()),
        format!("--web-listen={}", url.trim_start_matches("http://")),
    ];
    let mut web = Process::start(args, &cluster.scratch.join("web.log"));
    let mut browser = Browser::new(&url);
    eventually("the page", || {
        browser.send(browser.request(Method::GET, "/")).map(drop)
    });
    assert_eq!(browser.sign_in(&json!({ "token": token })).status, 200);
    let namespaces = "/proxy/api/api/v1/namespaces";
    assert_eq!(browser.get(namespaces).status, 200);

    let watch = "/proxy/watch?path=/api/v1/namespaces";
    let mut stopped = false;
    let stop_after_start = |text: &str| {
        // The head of the page's response precedes the watch of the API server.
        if !stopped && text.contains("\"status\":200") {
            cluster.stop();
            stopped = true;
        }
        text.contains("\"end\":")
    };
    browser.stream(watch, || {}, stop_after_start);
    assert_error(&browser.get(namespaces), 502, "UpstreamUnreachable");
    cluster.start_again();
    let listed = eventually("the page after the outage", || match browser.get(namespaces) {
        answer if answer.status == 200 => Ok(answer),
        answer => Err(answer.text),
    });
    assert!(listed.text.contains("kube-system"), "{}", listed.text);
    assert!(web.terminate().success(), "{}", web.log());
}

#[test]
fn page_of_up_shows_logs_and_metrics_and_chats() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    let log = fleet.up.log();
    let link = log.lines().find_map(|line| line.strip_prefix("web page: "));
    let (url, code) = link.expect(&log).split_once("/#code=").expect("a code");
    let mut browser = Browser::new(url);
    let session = browser.sign_in(&json!({ "code": code }));
    assert_eq!(session.status, 200, "{}", session.text);
    assert_eq!(session.json()["gateway"], true);

    let chat = json!({"model": "guide", "max_tokens": 8, "stream": true,
        "messages": [{"role": "user", "content": "What is rooflet?"}]});
    let answer = browser.write(Method::POST, "/proxy/openai/v1/chat/completions", &chat);
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(!answer.streamed_text().is_empty(), "{}", answer.text);
    assert!(
        answer.headers.contains_key("x-rooflet-replica"),
        "{:?}",
        answer.headers
    );

    let replica = kubectl.run("get mrep -o name").ok();
    let replica = replica.trim().rsplit('/').next().expect("a replica");
    let log = browser.get(&format!("/proxy/logs/default/{replica}?tailLines=5"));
    assert_eq!(log.status, 200, "{}", log.text);
    assert!(!log.text.is_empty());
    let worker = format!("/proxy/metrics/replicas/default/{replica}");
    for (path, metric) in [
        ("/proxy/metrics/gateway", "rooflet_gateway_"),
        ("/proxy/metrics/agents/node-1", "rooflet_agent_"),
        (&*worker, "rooflet_worker_inter_token_latency_seconds_bucket"),
        (&*worker, "rooflet_worker_prefix_cache_queried_tokens_total"),
    ] {
        let metrics = browser.get(path);
        assert_eq!(metrics.status, 200, "{}", metrics.text);
        assert!(metrics.text.contains(metric), "{}", metrics.text);
    }
    let missing = browser.get("/proxy/metrics/agents/other");
    assert_eq!(missing.status, 404, "{}", missing.text);
}

#[test]
fn page_reaches_a_gateway_with_a_certificate_from_files() {
    let files = Scratch::new();
    let key = rcgen::KeyPair::generate().expect("a key");
    // The certificate has no loopback name.
    let params = rcgen::CertificateParams::new(vec!["ai.example.com".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let certificate = files.write("tls.crt", &certificate.pem());
    let key = files.write("tls.key", &key.serialize_pem());
    let flags = [
        format!("--tls-cert={}", certificate.display()),
        format!("--tls-key={}", key.display()),
    ];
    let Some(cluster) = Cluster::start(&flags.each_ref().map(String::as_str)) else {
        return;
    };
    let mut browser = Browser::new(&cluster.web);
    let session = browser.sign_in(&json!({ "token": token(&cluster) }));
    assert_eq!(session.json()["gateway"], true, "{}", session.text);
    let metrics = eventually("the gateway's metrics", || {
        match browser.get("/proxy/metrics/gateway") {
            answer if answer.status == 200 => Ok(answer.text),
            answer => Err(answer.text),
        }
    });
    assert!(metrics.contains("rooflet_gateway_"), "{metrics}");
}
