//! Sign-in and sign-out.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::body::to_bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tracing::{info, warn};

use super::client_certificate;
use super::error::WebError;
use super::failures::Failures;
use super::sessions::{LIFETIME, random_secret};
use super::signed_in::SignedIn;
use super::state::Web;
use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;
use rooflet_client::{UserCredential, bearer_token, connect_as};

/// Maximum size of a sign-in body.
const MAX_BODY_BYTES: usize = 64 << 10;
/// User of requests without credentials.
const ANONYMOUS: &str = "system:anonymous";

/// Body of a sign-in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignIn {
    token: Option<String>,
    code: Option<String>,
    /// Client certificate with its private key, in PEM.
    certificate: Option<String>,
}

/// Credential of a sign-in.
enum Credential {
    Token(String),
    Code(String),
    Certificate(UserCredential),
}

/// User that the API server found.
struct User {
    name: String,
    groups: Vec<String>,
    client: Client,
}

/// Handler of `POST /session`.
pub(crate) async fn sign_in(
    State(web): State<Arc<Web>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    request: Request,
) -> Result<Response, WebError> {
    let previous = web.secret(request.headers()).map(str::to_owned);
    let credential = parse(request).await?;
    let user = authenticate(&web, &web.failures, credential, from.ip()).await?;
    start_session(&web, user, previous.as_deref())
}

/// Returns the user of a bearer token. Later requests with the token find the user in `scrapers`.
pub(crate) async fn with_token(web: &Web, token: String, from: IpAddr) -> Result<Arc<SignedIn>, WebError> {
    let credential = Credential::Token(token.clone());
    let user = authenticate(web, &web.scrape_failures, credential, from).await?;
    let user = Arc::new(signed_in(web, user)?);
    for other in lock(&web.scrapers).insert(&token, Arc::clone(&user), &web.clock) {
        other.ended.cancel();
    }
    Ok(user)
}

/// Limits and logs the attempts of a client.
async fn authenticate(
    web: &Web,
    failures: &Mutex<Failures>,
    credential: Credential,
    from: IpAddr,
) -> Result<User, WebError> {
    lock(failures)
        .attempt(from, &web.clock)
        .map_err(WebError::TooManyFailures)?;
    let outcome = user_of(web, credential).await;
    let is_wrong = matches!(
        outcome,
        Err(WebError::InvalidToken | WebError::InvalidCode | WebError::InvalidCertificate)
    );
    if !is_wrong {
        lock(failures).succeeded(from);
    }
    let user = outcome.inspect_err(|err| warn!(client = %from, reason = err.reason(), "sign-in failed"))?;
    info!(client = %from, user = user.name, "signed in");
    Ok(user)
}

async fn parse(request: Request) -> Result<Credential, WebError> {
    let invalid = |what: &str| WebError::InvalidRequest(what.to_owned());
    let type_ = request.headers().get(CONTENT_TYPE);
    if !type_.is_some_and(|type_| type_.as_bytes().starts_with(b"application/json")) {
        return Err(invalid("the header Content-Type must be application/json"));
    }
    let body = to_bytes(request.into_body(), MAX_BODY_BYTES)
        .await
        .map_err(|_| WebError::RequestTooLarge(MAX_BODY_BYTES))?;
    // The error of the parser would contain a part of the body.
    let sign_in: Option<SignIn> = serde_json::from_slice(&body).ok();
    match sign_in {
        Some(SignIn {
            token: Some(token),
            code: None,
            certificate: None,
        }) => Ok(Credential::Token(token.trim().to_owned())),
        Some(SignIn {
            token: None,
            code: Some(code),
            certificate: None,
        }) => Ok(Credential::Code(code.trim().to_owned())),
        Some(SignIn {
            token: None,
            code: None,
            certificate: Some(text),
        }) => client_certificate::parse(&text).map(Credential::Certificate),
        Some(_) | None => Err(invalid(
            "the body must be {\"token\": \"…\"}, {\"code\": \"…\"} or {\"certificate\": \"…\"}",
        )),
    }
}

async fn user_of(web: &Web, credential: Credential) -> Result<User, WebError> {
    let unreachable = |what: String| WebError::UpstreamUnreachable {
        upstream: "the API server",
        what,
    };
    let token = |token: String| {
        let is_plain = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        is_plain
            .then_some(UserCredential::Token(token))
            .ok_or(WebError::InvalidToken)
    };
    let rejected = match credential {
        Credential::Token(_) | Credential::Code(_) => WebError::InvalidToken,
        Credential::Certificate(_) => WebError::InvalidCertificate,
    };
    let credential = match credential {
        Credential::Token(sent) => token(sent)?,
        Credential::Certificate(certificate) => certificate,
        Credential::Code(code) => {
            let known = bearer_token(&web.api_server).await;
            let known = known.map_err(|err| unreachable(Chain(&err).to_string()))?;
            let known = known.ok_or(WebError::InvalidCode)?;
            if !lock(&web.codes).redeem(&code, &known, web.clock.now()) {
                return Err(WebError::InvalidCode);
            }
            token(known)?
        }
    };
    let client = connect_as(&web.api_server, credential, &web.clock).await;
    let client = client.map_err(|err| unreachable(Chain(&err).to_string()))?;
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await;
    let review = review.map_err(|err| {
        let is_wrong = matches!(&err, kube::Error::Api(status) if status.code == 401);
        match is_wrong {
            true => rejected.clone(),
            false => unreachable(Chain(&err).to_string()),
        }
    })?;
    let user = review
        .status
        .and_then(|status| status.user_info)
        .unwrap_or_default();
    match user.username {
        Some(name) if name != ANONYMOUS => Ok(User {
            name,
            groups: user.groups.unwrap_or_default(),
            client,
        }),
        // A server without TLS does not receive the certificate.
        Some(_) | None => Err(rejected),
    }
}

fn random() -> Result<String, WebError> {
    random_secret().map_err(|_| WebError::NoRandomNumber)
}

fn signed_in(web: &Web, user: User) -> Result<SignedIn, WebError> {
    Ok(SignedIn {
        user: user.name,
        groups: user.groups,
        csrf_token: random()?,
        expires_at: web.clock.now() + LIFETIME,
        client: user.client,
        ended: web.stop.child_token(),
        preview: Arc::new(Semaphore::new(1)),
    })
}

fn start_session(web: &Web, user: User, previous: Option<&str>) -> Result<Response, WebError> {
    let secret = random()?;
    let signed_in = Arc::new(signed_in(web, user)?);
    let mut sessions = lock(&web.sessions);
    let replaced = previous.and_then(|previous| sessions.remove(previous));
    let ended = sessions.insert(&secret, Arc::clone(&signed_in), &web.clock);
    drop(sessions);
    for other in ended.into_iter().chain(replaced) {
        other.ended.cancel();
    }
    let mut response = describe(web, &signed_in);
    response
        .headers_mut()
        .insert(SET_COOKIE, cookie(web, &secret, ""));
    Ok(response)
}

/// Returns the cookie of a session. It has no expiry, so that the browser drops it when it closes.
fn cookie(web: &Web, secret: &str, more: &str) -> HeaderValue {
    let secure = if web.has_tls { "; Secure" } else { "" };
    let text = format!(
        "{}={secret}; Path=/; HttpOnly; SameSite=Strict{secure}{more}",
        web.cookie
    );
    HeaderValue::from_str(&text).expect("name and secret are plain ASCII")
}

fn describe(web: &Web, signed_in: &SignedIn) -> Response {
    Json(json!({
        "user": signed_in.user,
        "groups": signed_in.groups,
        "csrfToken": signed_in.csrf_token,
        "expiresAt": signed_in.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "serverVersion": env!("CARGO_PKG_VERSION"),
        "gateway": web.upstreams.has_gateway(),
        "prometheus": web.prometheus.is_some(),
    }))
    .into_response()
}

/// Handler of `GET /session`.
pub(crate) async fn session(State(web): State<Arc<Web>>, headers: HeaderMap) -> Result<Response, WebError> {
    Ok(describe(&web, &*web.signed_in(&headers)?))
}

/// Handler of `DELETE /session`.
pub(crate) async fn sign_out(State(web): State<Arc<Web>>, headers: HeaderMap) -> Result<Response, WebError> {
    let signed_in = web.signed_in_to_write(&headers)?;
    if let Some(secret) = web.secret(&headers) {
        lock(&web.sessions).remove(secret);
    }
    signed_in.ended.cancel();
    info!(user = signed_in.user, "signed out");
    let cleared = cookie(&web, "", "; Max-Age=0");
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, cleared)]).into_response())
}
