//! Error responses.

use super::*;

#[tokio::test]
async fn errors_have_openai_status_code_and_fields() {
    let fixture = Fixture::new().await;
    let early = fixture.chat(json!({"model": "guide"})).await;
    assert_eq!(early.status(), StatusCode::SERVICE_UNAVAILABLE);
    let ready = fixture.send("GET", "/ready", Body::empty()).await;
    assert_eq!(ready.status(), StatusCode::SERVICE_UNAVAILABLE);

    fixture.set_fleet(
        &[
            "guide message=0-of-1-ready:-Loading waits=50ms",
            "broken message=0-of-1-ready:-model.safetensors-is-cut-short has=Degraded=True",
            "unknown message=no-node-has-it has=Admitted=False",
            "off wanted=0 message=spec.replicas-is-0",
        ],
        &["guide-1 on=a", "gone-1 serves=gone on=a"],
        &[("a", "http://127.0.0.1:1")],
    );
    assert_eq!(
        fixture.send("GET", "/ready", Body::empty()).await.status(),
        StatusCode::OK
    );
    let chat = "/v1/chat/completions";
    let too_large = vec![b' '; 4 * rooflet_inference_api::openai::body::MAX_BODY_BYTES];
    let cases: Vec<(&str, &str, Body, u16, &str, &str)> = vec![
        (
            "POST",
            chat,
            r#"{"model":"guide"}"#.into(),
            503,
            "model_loading",
            "0 of 1 ready: Loading",
        ),
        (
            "POST",
            chat,
            r#"{"model":"broken"}"#.into(),
            503,
            "model_unavailable",
            "model.safetensors is cut short",
        ),
        (
            "POST",
            chat,
            r#"{"model":"unknown"}"#.into(),
            503,
            "model_unavailable",
            "no node has it",
        ),
        (
            "POST",
            chat,
            r#"{"model":"off"}"#.into(),
            503,
            "model_unavailable",
            "spec.replicas is 0",
        ),
        (
            "POST",
            chat,
            r#"{"model":"nope"}"#.into(),
            404,
            "model_not_found",
            "`nope`",
        ),
        (
            "POST",
            chat,
            r#"{"model":"gone"}"#.into(),
            404,
            "model_not_found",
            "`gone`",
        ),
        ("POST", chat, r#"{"model":"#.into(), 400, "invalid_json", "JSON"),
        ("POST", chat, "{}".into(), 400, "missing_parameter", "model"),
        ("POST", chat, too_large.into(), 413, "request_too_large", "bytes"),
        ("GET", chat, "".into(), 405, "method_not_allowed", chat),
        ("POST", "/v1/nope", "{}".into(), 404, "unknown_url", "/v1/nope"),
        (
            "GET",
            "/v1/models/nope",
            "".into(),
            404,
            "model_not_found",
            "nope",
        ),
        ("POST", "/nope", "".into(), 404, "unknown_url", "/nope"),
        (
            "POST",
            "/v1/models",
            "".into(),
            405,
            "method_not_allowed",
            "/v1/models",
        ),
    ];
    for (method, path, body, status, code, message) in cases {
        let response = fixture.send(method, path, body).await;
        assert_eq!(response.status().as_u16(), status, "{method} {path} {code}");
        assert_eq!(
            response.headers().contains_key("retry-after"),
            status == 503,
            "{code}"
        );
        assert_eq!(response.headers().contains_key("allow"), status == 405, "{code}");
        let error = json_of(response).await["error"].clone();
        assert_eq!(error["code"], code);
        assert!(
            error["message"].as_str().expect("text").contains(message),
            "{error}"
        );
        assert!(
            error["type"].is_string() && error.get("param").is_some(),
            "{error}"
        );
    }
}

#[tokio::test]
async fn error_reports_expected_start_from_last_start_or_disk() {
    let fixture = Fixture::new().await;
    fixture.set_fleet(
        &[
            "seen waits=50ms started=30",
            "read waits=50ms",
            "unknown waits=50ms",
        ],
        &["read-1 serves=read on=a weighs=46000000000"],
        &[("a", "http://127.0.0.1:1")],
    );
    let by_start = "The next replica is expected in about 30 s, based on the duration of the last start.";
    let by_disk = "The next replica is expected after about 10 s, when its weights are read (at the published speed of Mac disks";
    for (model, seconds, message) in [("seen", 30, by_start), ("read", 10, by_disk)] {
        let response = fixture.chat(json!({"model": model})).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()["retry-after"], seconds.to_string());
        let error = json_of(response).await["error"].clone();
        assert_eq!(error["code"], "model_loading");
        assert!(
            error["message"].as_str().expect("text").contains(message),
            "{error}"
        );
    }
    let error = json_of(fixture.chat(json!({"model": "unknown"})).await).await;
    assert!(!error.to_string().contains("expected"), "{error}");
}
