//! Discovery, OpenAPI, lists and their forms.

use std::io::Read as _;
use std::time::Duration;

use http::Method;
use serde_json::json;

use super::definitions::until;
use super::{GIZMOS, Options, TestServer, gizmo, gizmos};
use rooflet_base::clock::{Clock, ManualClock};
use rooflet_testing::ApiResponse;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

#[tokio::test]
async fn discovery_contains_all_resources() {
    let server = TestServer::start().await;
    let groups = server.get("/apis").await;
    assert_eq!(groups.body["kind"], "APIGroupList");
    assert_eq!(
        groups.body["groups"][8]["preferredVersion"]["groupVersion"],
        "example.com/v1"
    );
    let resources = server.get("/apis/example.com/v1").await;
    let names: Vec<_> = resources.body["resources"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| &row["name"])
        .collect();
    assert_eq!(names, ["gizmos", "gizmos/status", "gizmos/scale"]);
    let aggregated = server.get_as("/apis", AGGREGATED).await;
    assert_eq!(aggregated.body["kind"], "APIGroupDiscoveryList");
    let etag = aggregated.headers["etag"].to_str().expect("ASCII");
    let headers = &[("accept", AGGREGATED), ("if-none-match", etag)];
    assert_eq!(
        server.send(Method::GET, "/apis", headers, Vec::new()).await.code,
        304
    );
    let plain = |code| (code, "application/vnd.kubernetes.protobuf".to_owned());
    for path in [
        "/api",
        "/apis",
        "/api/v1",
        "/apis/example.com",
        "/apis/example.com/v1",
    ] {
        let found = server
            .get_as(path, "application/vnd.kubernetes.protobuf,application/json;q=0.5")
            .await;
        assert_eq!((found.code, found.content_type()), plain(200), "{path}");
    }
    let form = "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let headers = &[("accept", form), ("if-none-match", "\"other\"")];
    let found = server.send(Method::GET, "/apis", headers, Vec::new()).await;
    assert_eq!((found.code, found.content_type()), (200, form.to_owned()));
    assert_eq!(found.headers["etag"], etag, "both forms have one tag");
    assert_eq!(server.get_as("/apis/example.com/v1", form).await.code, 406);
    assert_eq!(server.get_as("/version", "application/yaml").await.code, 406);
    let unknown = server.get("/apis/nothing.example.com/v1/things").await;
    assert_eq!(
        (unknown.code, &unknown.body),
        (404, &json!("404 page not found\n"))
    );
    // kube-apiserver has routes only for groups of built-in kinds.
    let missing = server.get("/apis/example.com/v1/things").await;
    assert_eq!(
        (missing.code, &missing.body),
        (404, &json!("404 page not found\n"))
    );
    let missing = server.get("/apis/coordination.k8s.io/v1/things").await;
    assert_eq!(
        (missing.code, missing.message()),
        (404, "the server could not find the requested resource")
    );
    assert_eq!(server.get("/readyz").await.body, "ok");
}

#[tokio::test]
async fn openapi_describes_patch_parameters() {
    let server = TestServer::start().await;
    let index = server.get("/openapi/v3").await;
    let url = index.body["paths"]["apis/example.com/v1"]["serverRelativeURL"]
        .as_str()
        .expect("a URL")
        .to_owned();
    let document = server.get(&url).await;
    let patch = &document.body["paths"]["/apis/example.com/v1/namespaces/{namespace}/gizmos/{name}"]["patch"];
    assert!(patch.to_string().contains("fieldValidation"), "{patch}");
    assert_eq!(server.get("/openapi/v3/apis/nothing/v1").await.code, 404);
    let protobuf = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
    let encoded = server.get_as(&url, protobuf).await;
    assert_eq!(encoded.content_type(), protobuf.replace("@v1.0", ".v1.0"));
    assert_eq!(encoded.headers["etag"], document.headers["etag"]);
    let moved = server.get("/openapi/v3/apis/example.com/v1?hash=other").await;
    assert_eq!(moved.body, document.body, "the client follows the redirection");
    let headers = &[
        ("accept", protobuf),
        ("if-none-match", encoded.headers["etag"].to_str().expect("ASCII")),
    ];
    let known = server
        .send(
            Method::GET,
            "/openapi/v3/apis/example.com/v1",
            headers,
            Vec::new(),
        )
        .await;
    assert_eq!((known.code, known.content_type()), (304, String::new()));
    let refused = server
        .get_as("/openapi/v3/apis/example.com/v1", "text/html")
        .await;
    assert_eq!(
        (refused.code, &refused.headers["vary"]),
        (406, &http::HeaderValue::from_static("Accept"))
    );
    assert!(server.get("/openapi/v3/api/v1").await.body["paths"].is_object());
}

#[tokio::test]
async fn openapi_describes_paths_above_the_resources() {
    let server = TestServer::start().await;
    let index = server.get("/openapi/v3").await.body;
    for (document, path) in [
        ("api", "/api/"),
        ("apis", "/apis/"),
        ("version", "/version/"),
        ("apis/apiextensions.k8s.io", "/apis/apiextensions.k8s.io/"),
        ("apis/apiextensions.k8s.io/v1", "/apis/apiextensions.k8s.io/v1/"),
    ] {
        let url = index["paths"][document]["serverRelativeURL"].as_str();
        let found = server.get(url.expect(document)).await;
        assert!(found.body["paths"][path]["get"].is_object(), "{document}");
        assert_eq!(found.headers["cache-control"], "public, immutable");
        assert!(found.headers.contains_key("expires"), "{document}");
    }
    for absent in ["", "apis/example.com", "api/", "logs"] {
        let found = server.get(&format!("/openapi/v3/{absent}")).await;
        assert_eq!((found.code, &found.body), (404, &json!("")), "{absent}");
    }
    let v2 = server.get("/openapi/v2").await;
    let varies = v2.headers.get_all("vary").iter().collect::<Vec<_>>();
    assert_eq!(varies, ["Accept", "Accept-Encoding"]);
    assert!(v2.body["paths"]["/version/"]["get"].is_object());
}

#[tokio::test]
async fn openapi_v2_describes_all_kinds_in_json_and_protobuf() {
    let server = TestServer::start().await;
    let document = server.get("/openapi/v2").await;
    assert_eq!(document.headers["content-type"], "application/json");
    assert_eq!(document.body["swagger"], "2.0");
    for name in ["com.example.v1.Gizmo", "io.k8s.api.core.v1.ConfigMap"] {
        let kind = &document.body["definitions"][name];
        assert_eq!(kind["type"], "object", "{name}");
        assert_eq!(
            kind["properties"]["metadata"]["$ref"],
            "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
    }
    let fetch = async |accept: &str, known: &str| {
        let headers = [("accept", accept), ("if-none-match", known)];
        server
            .send(Method::GET, "/openapi/v2", &headers, Vec::new())
            .await
    };
    let protobuf = fetch(
        "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
        "\"other\"",
    )
    .await;
    assert_eq!(
        protobuf.headers["content-type"],
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    );
    let tag = protobuf.headers["etag"].to_str().expect("ASCII").to_owned();
    let again = fetch("application/com.github.proto-openapi.spec.v2@v1.0+protobuf", &tag).await;
    assert_eq!(again.code, 304);
    assert_eq!(fetch("text/html", "").await.code, 406);
}

#[tokio::test]
async fn openapi_index_supports_if_modified_since() {
    let manual = ManualClock::new("2026-01-02T03:04:05Z".parse().expect("a time"));
    let server = TestServer::start_with(Options {
        clock: Clock::Manual(manual.clone()),
        ..Options::default()
    })
    .await;
    let fetch = async |since: &str| {
        let headers = [("if-modified-since", since)];
        server
            .send(Method::GET, "/openapi/v3", &headers, Vec::new())
            .await
    };
    let modified = |got: &ApiResponse| got.headers.get("last-modified").cloned();
    let fresh = fetch("").await;
    assert_eq!(
        (fresh.code, modified(&fresh)),
        (200, None),
        "the index may change within this second"
    );
    manual.advance(Duration::from_secs(1));
    let date = "Fri, 02 Jan 2026 03:04:05 GMT";
    let dated = fetch("").await;
    assert_eq!(modified(&dated).expect("a date"), date);
    let known = fetch(date).await;
    assert_eq!((known.code, &known.body), (304, &json!("")));
    let mut other = gizmos();
    other["metadata"]["name"] = json!("widgets.example.org");
    other["spec"]["group"] = json!("example.org");
    other["spec"]["names"] = json!({"plural": "widgets", "kind": "Widget"});
    server
        .post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &other)
        .await;
    until(&server, "/openapi/v3", "the new group", |_, body| {
        body["paths"]["apis/example.org/v1"].is_object()
    })
    .await;
    assert_eq!(modified(&fetch("").await), None);
    manual.advance(Duration::from_secs(1));
    assert_eq!(fetch(date).await.code, 200);
    assert_eq!(fetch("Fri, 02 Jan 2026 03:04:06 GMT").await.code, 304);
    assert_eq!(fetch("yesterday").await.code, 200);
}

#[tokio::test]
async fn large_responses_are_compressed_on_request() {
    let server = TestServer::start().await;
    let fetch = async |path: &str, encoding: &str| {
        let url = format!("{}{path}", server.url);
        let request = reqwest::Client::new().get(url).bearer_auth(&server.token);
        let response = request
            .header("accept-encoding", encoding)
            .send()
            .await
            .expect("a response");
        let is_gzip = response
            .headers()
            .get("content-encoding")
            .is_some_and(|value| value == "gzip");
        (
            is_gzip,
            response.headers().clone(),
            response.bytes().await.expect("a body"),
        )
    };
    let mut large = gizmo("large");
    large["metadata"]["annotations"] = json!({"note": "0123456789".repeat(14_000)});
    assert_eq!(server.post(GIZMOS, &large).await.code, 201);
    let path = format!("{GIZMOS}/large");
    let (is_gzip, _, plain) = fetch(&path, "br").await;
    assert!(!is_gzip && plain.len() > 140_000);
    let (is_gzip, headers, packed) = fetch(&path, "br, gzip").await;
    assert!(is_gzip && packed.len() < plain.len() / 10, "{}", packed.len());
    assert_eq!(headers["vary"], "Accept-Encoding");
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_end(&mut text)
        .expect("gzip");
    assert_eq!(text, plain);
    let (is_gzip, ..) = fetch("/version", "gzip").await;
    assert!(!is_gzip, "small responses are not compressed");
    let (is_gzip, ..) = fetch(&format!("{GIZMOS}?watch=1&timeoutSeconds=1"), "gzip").await;
    assert!(!is_gzip, "a watch is never compressed");
}

#[tokio::test]
async fn all_pages_have_the_resource_version_of_the_first() {
    let server = TestServer::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        server.post(GIZMOS, &gizmo(name)).await;
    }
    let first = server.get(&format!("{GIZMOS}?limit=2")).await;
    assert_eq!(first.body["metadata"]["remainingItemCount"], 3);
    server.delete(&format!("{GIZMOS}/d")).await;
    let mut names: Vec<String> = Vec::new();
    let mut page = first;
    let version = page.version();
    loop {
        assert_eq!(page.version(), version);
        let items = page.body["items"].as_array().expect("items");
        names.extend(
            items
                .iter()
                .map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned()),
        );
        let Some(token) = page.body["metadata"]["continue"]
            .as_str()
            .filter(|token| !token.is_empty())
        else {
            break;
        };
        page = server.get(&format!("{GIZMOS}?limit=2&continue={token}")).await;
    }
    assert_eq!(
        names,
        ["a", "b", "c", "d", "e"],
        "all pages have the version of the first"
    );
    let bad = server.get(&format!("{GIZMOS}?continue=xyz")).await;
    assert_eq!(bad.code, 400);
    let first = server.get(&format!("{GIZMOS}?limit=2")).await;
    let token = first.body["metadata"]["continue"].as_str().expect("a token");
    let both = server
        .get(&format!("{GIZMOS}?continue={token}&resourceVersion=5"))
        .await;
    assert_eq!(
        both.message(),
        "specifying resource version is not allowed when using continue"
    );
    let all = server.get(&format!("{GIZMOS}?limit=2&resourceVersion=0")).await;
    assert_eq!(
        all.body["items"].as_array().map(Vec::len),
        Some(4),
        "version 0 ignores the limit"
    );
}

#[tokio::test]
async fn selects_by_label_and_field() {
    let server = TestServer::start().await;
    for (name, node) in [("a", "n1"), ("b", "n2"), ("c", "n1")] {
        let mut body = gizmo(name);
        body["spec"]["node"] = json!(node);
        body["metadata"]["labels"] = json!({"node": node, name: "yes"});
        server.post(GIZMOS, &body).await;
    }
    let check = async |query: &str, expect: &[&str]| {
        let got = server.get(&format!("{GIZMOS}?{query}")).await;
        let names: Vec<_> = got.body["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|item| &item["metadata"]["name"])
            .collect();
        assert_eq!(names, expect, "{query}");
    };
    check("fieldSelector=spec.node%3Dn1", &["a", "c"]).await;
    check("fieldSelector=metadata.name%3Db", &["b"]).await;
    check("labelSelector=node+in+(n1,n3),!c", &["a"]).await;
    check("labelSelector=node%21%3Dn1", &["b"]).await;
    let paged = server
        .get(&format!("{GIZMOS}?limit=1&labelSelector=node%3Dn1"))
        .await;
    assert_eq!(paged.body["metadata"].get("remainingItemCount"), None);
    let token = paged.body["metadata"]["continue"]
        .as_str()
        .expect("more follows")
        .to_owned();
    check(
        &format!("limit=1&labelSelector=node%3Dn1&continue={token}"),
        &["c"],
    )
    .await;
    let bad = server
        .get(&format!("{GIZMOS}?fieldSelector=spec.image%3Da"))
        .await;
    assert_eq!(
        (bad.code, bad.message()),
        (400, "field label not supported: spec.image")
    );
    let bad = server.get(&format!("{GIZMOS}?labelSelector=a+in")).await;
    assert!(
        bad.code == 400 && bad.message().starts_with("unable to parse requirement: "),
        "{bad:?}"
    );
    let elsewhere = server.get("/apis/example.com/v1/namespaces/nowhere/gizmos").await;
    assert_eq!((elsewhere.code, &elsewhere.body["items"]), (200, &json!([])));
}

#[tokio::test]
async fn tables_and_partial_objects() {
    let server = TestServer::start().await;
    server.post(GIZMOS, &gizmo("a")).await;
    let table = server.get_as(GIZMOS, TABLE).await;
    assert_eq!(table.body["kind"], "Table");
    let columns: Vec<_> = table.body["columnDefinitions"]
        .as_array()
        .expect("columns")
        .iter()
        .map(|column| &column["name"])
        .collect();
    assert_eq!(columns, ["Name", "Replicas", "Phase", "Age"]);
    let row = &table.body["rows"][0];
    assert_eq!(
        (&row["cells"][0], &row["cells"][1], &row["cells"][2]),
        (&json!("a"), &json!(1), &json!(null))
    );
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    let full = server
        .get_as(&format!("{GIZMOS}?includeObject=Object"), TABLE)
        .await;
    assert_eq!(full.body["rows"][0]["object"]["spec"]["image"], "a");
    let partial = server
        .get_as(
            &format!("{GIZMOS}/a"),
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        )
        .await;
    assert_eq!(
        (partial.body.get("spec"), &partial.body["metadata"]["name"]),
        (None, &json!("a"))
    );
    let namespaces = server.get_as("/api/v1/namespaces", TABLE).await;
    assert_eq!(namespaces.body["rows"][0]["cells"][1], "Active");
    let rejected = server.get_as(GIZMOS, "application/vnd.kubernetes.protobuf").await;
    assert_eq!(rejected.code, 406);
}

#[tokio::test]
async fn future_resource_version_times_out() {
    let server = TestServer::start().await;
    let got = server
        .get(&format!(
            "{GIZMOS}?resourceVersion=999999&resourceVersionMatch=NotOlderThan"
        ))
        .await;
    assert_eq!(
        (got.code, &got.body["details"]["causes"][0]["reason"]),
        (504, &json!("ResourceVersionTooLarge"))
    );
    assert!(
        got.message()
            .starts_with("Timeout: Too large resource version: 999999, current: "),
        "{got:?}"
    );
}

#[tokio::test]
async fn anonymous_requests_may_read_only_health() {
    let server = TestServer::start().await;
    let client = reqwest::Client::new();
    let code = async |path: &str, token: Option<&str>| {
        let mut request = client.get(format!("{}{path}", server.url));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.send().await.expect("a response").status().as_u16()
    };
    assert_eq!(code("/version", None).await, 200);
    assert_eq!(code("/readyz", None).await, 200);
    assert_eq!(code("/api/v1/secrets", None).await, 403);
    assert_eq!(code("/metrics", None).await, 403);
    assert_eq!(code("/version", Some("wrong")).await, 401);
}

#[tokio::test]
async fn body_beyond_the_limit_returns_413() {
    let server = TestServer::start().await;
    let big = vec![b' '; (3 << 20) + 1];
    let got = server
        .send(Method::POST, GIZMOS, &[("content-type", "application/json")], big)
        .await;
    assert_eq!(
        (got.code, got.message()),
        (413, "Request entity too large: limit is 3145728")
    );
}
