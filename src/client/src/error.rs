//! Errors of the API server, classified by the required reaction.

use std::error::Error;
use std::io;

use rooflet_base::local_network::explain;

/// Failed request to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The object, its kind or its namespace does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// The object was changed concurrently; read it again.
    #[error("object was modified concurrently: {0}")]
    Conflict(String),
    /// An object with this name exists.
    #[error("{0}")]
    AlreadyExists(String),
    /// The server rejects the object; the message contains the fields.
    #[error("{0}")]
    Invalid(String),
    /// The server does not accept the credentials. The message contains the server and the remedy.
    #[error("{0}")]
    Unauthorized(String),
    /// The credentials lack permission.
    #[error("forbidden by the API server: {0}")]
    Forbidden(String),
    /// No server listens at the address.
    #[error("{server} refused the connection; check that it is running at this address")]
    Refused { server: String },
    /// The server's certificate does not match the kubeconfig, or the clock.
    #[error("certificate of {server} is not trusted: {problem}; {remedy}")]
    Untrusted {
        server: String,
        problem: String,
        remedy: &'static str,
    },
    /// No complete response arrived.
    #[error("API server is unreachable: {0}")]
    Unreachable(String),
    /// The server returned an internal error.
    #[error("API server returned {code}: {message}")]
    Server { code: u16, message: String },
}

impl ApiError {
    /// Returns the kind of the error in CamelCase, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "NotFound",
            Self::Conflict(_) => "Conflict",
            Self::AlreadyExists(_) => "AlreadyExists",
            Self::Invalid(_) => "Invalid",
            Self::Unauthorized(_) => "Unauthorized",
            Self::Forbidden(_) => "Forbidden",
            Self::Refused { .. } => "Refused",
            Self::Untrusted { .. } => "Untrusted",
            Self::Unreachable(_) => "Unreachable",
            Self::Server { .. } => "ServerError",
        }
    }

    /// Returns whether a retry of the same request can succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Unreachable(_) => true,
            Self::Server { code, .. } => *code >= 500 || *code == 429,
            Self::NotFound(_)
            | Self::Conflict(_)
            | Self::AlreadyExists(_)
            | Self::Invalid(_)
            | Self::Unauthorized(_)
            | Self::Forbidden(_)
            | Self::Untrusted { .. } => false,
        }
    }
}

/// Failed request with the address of its server.
#[derive(Debug, thiserror::Error)]
#[error("request to API server {url}")]
pub(crate) struct AtServer {
    pub url: String,
    #[source]
    pub err: kube::Error,
}

/// Explains the status 401 of the server at `url`. The server's own message for unknown credentials is
/// `Unauthorized`.
pub(crate) fn explain_unauthorized(message: &str, url: &str) -> String {
    let problem = match message {
        "" | "Unauthorized" => {
            "they are unknown to the server or have expired; join again or replace the kubeconfig"
        }
        other => other,
    };
    format!("API server {url} rejected the credentials: {problem}")
}

impl From<&kube::Error> for ApiError {
    fn from(err: &kube::Error) -> Self {
        if let kube::Error::Api(status) = err {
            return Self::from(status.as_ref());
        }
        let mut innermost = err.to_string();
        let mut server = "API server".to_owned();
        let mut source: Option<&(dyn Error + 'static)> = Some(err);
        while let Some(err) = source {
            if let Some(AtServer { url, .. }) = err.downcast_ref() {
                server = format!("API server {url}");
            }
            if let Some(io) = err.downcast_ref::<io::Error>() {
                if io.kind() == io::ErrorKind::ConnectionRefused {
                    return Self::Refused { server };
                }
                if let Some(tls) = wrapped_tls(io) {
                    return Self::from_tls(tls, server);
                }
                if io.raw_os_error().is_some() {
                    return Self::Unreachable(format!("{server}: {}", explain(io, "")));
                }
            }
            if let Some(tls) = err.downcast_ref::<rustls::Error>() {
                return Self::from_tls(tls, server);
            }
            innermost = err.to_string();
            source = err.source();
        }
        Self::Unreachable(format!("{server}: {innermost}"))
    }
}

/// Returns the TLS error inside an I/O error. I/O errors can be nested, and `source` does not
/// return the error that they wrap.
fn wrapped_tls(io: &io::Error) -> Option<&rustls::Error> {
    let inner = io.get_ref()?;
    match inner.downcast_ref::<io::Error>() {
        Some(io) => wrapped_tls(io),
        None => inner.downcast_ref(),
    }
}

impl From<kube::Error> for ApiError {
    fn from(err: kube::Error) -> Self {
        Self::from(&err)
    }
}

impl From<&kube::core::Status> for ApiError {
    fn from(status: &kube::core::Status) -> Self {
        let message = if status.message.is_empty() {
            status.reason.clone()
        } else {
            status.message.clone()
        };
        match status.code {
            401 => Self::Unauthorized(message),
            403 => Self::Forbidden(message),
            404 => Self::NotFound(message),
            409 if status.is_already_exists() => Self::AlreadyExists(message),
            409 => Self::Conflict(message),
            400 | 422 => Self::Invalid(message),
            code => Self::Server { code, message },
        }
    }
}

impl From<&kube::runtime::watcher::Error> for ApiError {
    fn from(err: &kube::runtime::watcher::Error) -> Self {
        use kube::runtime::watcher::Error as Watch;
        match err {
            Watch::InitialListFailed(err) | Watch::WatchStartFailed(err) | Watch::WatchFailed(err) => {
                Self::from(err)
            }
            Watch::WatchError(status) => Self::from(status.as_ref()),
            Watch::NoResourceVersion => Self::Server {
                code: 200,
                message: err.to_string(),
            },
        }
    }
}

impl ApiError {
    fn from_tls(err: &rustls::Error, server: String) -> Self {
        if let rustls::Error::InvalidCertificate(why) = err {
            Self::Untrusted {
                server,
                problem: why.to_string(),
                remedy: match is_about_time(why) {
                    true => "set the clocks of this machine and of the server",
                    false => {
                        "if the control plane was rebuilt or its authorities were rotated, replace the kubeconfig, or join \
                         again with a token of `rooflet token create --node NAME`"
                    }
                },
            }
        } else {
            Self::Unreachable(format!("{server}: {err}"))
        }
    }
}

/// Returns whether the validity of a certificate does not include the current time.
fn is_about_time(why: &rustls::CertificateError) -> bool {
    use rustls::CertificateError as Problem;
    matches!(
        why,
        Problem::Expired
            | Problem::ExpiredContext { .. }
            | Problem::NotValidYet
            | Problem::NotValidYetContext { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn classifies_responses_by_required_reaction() {
        let cases = [
            (404, "NotFound", "NotFound", false),
            (409, "Conflict", "Conflict", false),
            (409, "AlreadyExists", "AlreadyExists", false),
            (422, "Invalid", "Invalid", false),
            (401, "Unauthorized", "Unauthorized", false),
            (403, "Forbidden", "Forbidden", false),
            (500, "InternalError", "ServerError", true),
            (429, "TooManyRequests", "ServerError", true),
        ];
        for (code, reason, expect, transient) in cases {
            let status = Status::failure("why", reason).with_code(code);
            let err = ApiError::from(kube::Error::Api(status.boxed()));
            assert_eq!(
                (err.reason(), err.is_transient()),
                (expect, transient),
                "{code} {reason}"
            );
            assert!(err.to_string().contains("why"));
        }
    }

    #[test]
    fn connection_errors_name_server_and_remedy() {
        let at_server = |err: Box<dyn Error + Send + Sync>| {
            let url = "https://10.0.0.1:7443".to_owned();
            let err = kube::Error::Service(err);
            let err = kube::Error::Service(Box::new(AtServer { url, err }));
            ApiError::from(err).to_string()
        };
        let refused = at_server(Box::new(io::Error::from(io::ErrorKind::ConnectionRefused)));
        assert_eq!(
            refused,
            "API server https://10.0.0.1:7443 refused the connection; check that it is running at this address"
        );
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let untrusted = at_server(Box::new(io::Error::other(unknown)));
        assert!(
            untrusted.contains("https://10.0.0.1:7443") && untrusted.contains("join again"),
            "{untrusted}"
        );
        let silent = at_server("the connection was closed".into());
        assert!(
            silent.contains("https://10.0.0.1:7443: the connection was closed"),
            "{silent}"
        );
    }
}
