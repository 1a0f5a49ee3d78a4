//! Lists: complete, paged, and at a resourceVersion.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD, URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use crate::endpoints::options::{ListOptions, VersionMatch};
use crate::engine::Engine;
use crate::engine::selection::Selection;
use crate::registry::resource::Resource;
use crate::status::ApiError;
use rooflet_apimachinery::typed::base64_fault;
use rooflet_schema::gotext::quote;
use rooflet_store as store;
use rooflet_store::{Key, ListError, Record, Revision};

/// Maximum wait for a future resourceVersion.
const FUTURE_VERSION_WAIT: Duration = Duration::from_secs(3);
/// Number of records per step when a selector filters a paged list.
const SCAN_PAGE: usize = 1_000;

/// Page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub records: Vec<Arc<Record>>,
    /// Revision of the list. All pages have the revision of the first page.
    pub version: Revision,
    pub continue_token: Option<String>,
    /// Number of objects that follow. `None` with selectors.
    pub remaining: Option<usize>,
}

/// Decoder of continue tokens. Like Go's, ignores bits of the last symbol that are in no byte.
const TOKEN_DECODER: GeneralPurpose =
    GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// Continue token in the format of kube-apiserver. Opaque to clients.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ContinueToken {
    v: String,
    /// Revision of the list. Negative: continue with the current state.
    rv: i64,
    start: String,
}

impl ContinueToken {
    const VERSION: &'static str = "meta.k8s.io/v1";

    fn encode(prefix: &str, last: &Key, version: i64) -> String {
        let start = format!("{}\0", last.as_str().strip_prefix(prefix).unwrap_or_default());
        let token = Self {
            v: Self::VERSION.to_owned(),
            rv: version,
            start,
        };
        URL_SAFE_NO_PAD
            .encode(serde_json::to_vec(&token).expect("serialising three plain fields cannot fail"))
    }

    /// Returns the revision, and the key after which the list continues.
    fn decode(text: &str, prefix: &str) -> Result<(i64, Key), ApiError> {
        let invalid = |reason: &str| {
            ApiError::bad_request(format!(
                "invalid continue token: continue key is not valid{reason}"
            ))
        };
        let bytes = TOKEN_DECODER
            .decode(text)
            .map_err(|err| invalid(&format!(": {}", base64_fault(&err, text))))?;
        let token: Self = serde_json::from_slice(&bytes)
            .map_err(|err| invalid(&format!(": {}", json_fault(&bytes, &err))))?;
        if token.v != Self::VERSION {
            return Err(invalid(&format!(
                ": server does not recognize this encoded version {}",
                token.v
            )));
        }
        if token.rv == 0 {
            return Err(invalid(
                ": incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ));
        }
        if token.start.is_empty() {
            return Err(invalid(": encoded start key empty (version meta.k8s.io/v1)"));
        }
        if token.start.split('/').any(|part| matches!(part, "." | "..")) {
            return Err(invalid(&format!(": {}", token.start)));
        }
        let start = token.start.trim_start_matches('/').trim_end_matches('\0');
        Ok((token.rv, Key::new(format!("{prefix}{start}"))))
    }
}

/// Returns the message of Go's JSON decoder for bytes that do not start with a value.
fn json_fault(bytes: &[u8], err: &serde_json::Error) -> String {
    let Some(first) = bytes.iter().copied().find(|byte| !byte.is_ascii_whitespace()) else {
        return "unexpected end of JSON input".to_owned();
    };
    if matches!(
        first,
        b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n'
    ) {
        return err.to_string();
    }
    let quoted = quote(&char::from(first).to_string());
    let character = quoted.trim_matches('"');
    format!("invalid character '{character}' looking for beginning of value")
}

/// Range of a list.
struct Range {
    at: Option<Revision>,
    after: Option<Key>,
    limit: Option<usize>,
}

pub(crate) fn parse_version(text: &str) -> Result<u64, ApiError> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        ))
    })
}

/// Waits until the store reaches a revision. Returns 504 after the timeout.
pub(crate) async fn await_version(engine: &Engine, version: u64) -> Result<(), ApiError> {
    if engine.store.revision() >= Revision(version) {
        return Ok(());
    }
    let reached = tokio::time::timeout(FUTURE_VERSION_WAIT, engine.store.wait_for(Revision(version))).await;
    if reached == Ok(true) {
        return Ok(());
    }
    Err(ApiError::too_large_resource_version(
        version,
        engine.store.revision().0,
    ))
}

/// Lists a resource in one namespace, or in all.
pub(crate) async fn list(
    engine: &Engine,
    resource: &Resource,
    namespace: Option<&str>,
    options: &ListOptions,
    selection: &Selection,
) -> Result<Page, ApiError> {
    let prefix = resource.prefix_in(namespace);
    let range = range(engine, options, &prefix).await?;
    let is_paged = options.limit.is_some() || !options.continue_token.is_empty();
    let rejected = |err: ListError| match err {
        ListError::Future { requested, current } => {
            ApiError::too_large_resource_version(requested.0, current.0)
        }
        ListError::Compacted { .. } => expired(is_paged, range.after.as_ref(), &prefix),
    };
    if selection.is_everything() {
        let query = store::ListOptions {
            after: range.after.clone(),
            limit: range.limit,
            at: range.at,
        };
        let listing = engine.store.list(&prefix, &query).map_err(rejected)?;
        let version = range.at.unwrap_or(listing.revision);
        let continues = listing.remaining > 0;
        let token = listing.records.last().filter(|_| continues);
        return Ok(Page {
            continue_token: token.map(|last| ContinueToken::encode(&prefix, &last.key, to_signed(version))),
            remaining: continues.then_some(listing.remaining),
            records: listing.records,
            version,
        });
    }
    if let (Some(name), Some(namespace), None) = (selection.name(), scope_of(resource, namespace), range.at) {
        // A single name is looked up directly.
        let revision = engine.store.revision();
        let record = engine.store.get(&resource.key(Some(namespace), name));
        let records: Vec<_> = record
            .into_iter()
            .filter(|record| selection.matches(resource, record))
            .collect();
        let newest = records
            .iter()
            .map(|record| record.modified)
            .max()
            .unwrap_or(revision);
        return Ok(Page {
            records,
            version: newest.max(revision),
            continue_token: None,
            remaining: None,
        });
    }
    let mut page = Page {
        records: Vec::new(),
        version: Revision(0),
        continue_token: None,
        remaining: None,
    };
    let mut at = range.at;
    let mut after = range.after.clone();
    loop {
        let query = store::ListOptions {
            after: after.clone(),
            limit: range.limit.map(|_| SCAN_PAGE),
            at,
        };
        let listing = engine.store.list(&prefix, &query).map_err(rejected)?;
        let version = *at.get_or_insert(listing.revision);
        page.version = version;
        let count = listing.records.len();
        for (index, record) in listing.records.into_iter().enumerate() {
            after = Some(record.key.clone());
            if !selection.matches(resource, &record) {
                continue;
            }
            page.records.push(record);
            let is_full = range.limit.is_some_and(|limit| page.records.len() >= limit);
            if is_full {
                if index + 1 < count || listing.remaining > 0 {
                    let last = &page.records[page.records.len() - 1].key;
                    page.continue_token = Some(ContinueToken::encode(&prefix, last, to_signed(version)));
                }
                return Ok(page);
            }
        }
        if listing.remaining == 0 {
            return Ok(page);
        }
    }
}

/// Returns the namespace for the lookup of a single name.
fn scope_of<'a>(resource: &Resource, namespace: Option<&'a str>) -> Option<&'a str> {
    if resource.namespaced { namespace } else { Some("") }
}

fn to_signed(version: Revision) -> i64 {
    i64::try_from(version.0).unwrap_or(i64::MAX)
}

async fn range(engine: &Engine, options: &ListOptions, prefix: &str) -> Result<Range, ApiError> {
    if !options.continue_token.is_empty() {
        let (version, after) = ContinueToken::decode(&options.continue_token, prefix)?;
        if !matches!(options.resource_version.as_str(), "" | "0") {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let at = u64::try_from(version).ok().map(Revision);
        return Ok(Range {
            at,
            after: Some(after),
            limit: options.limit,
        });
    }
    let version = parse_version(&options.resource_version)
        .map_err(|err| ApiError::bad_request(format!("invalid resource version: {}", err.message())))?;
    let is_exact = match options.version_match {
        VersionMatch::Exact => true,
        VersionMatch::NotOlderThan => false,
        VersionMatch::Unset => version > 0 && options.limit.is_some(),
    };
    await_version(engine, version).await?;
    let at = is_exact.then_some(Revision(version));
    // `resourceVersion=0` accepts any version. Like kube-apiserver, the limit is ignored then.
    let is_any = options.resource_version == "0" && options.version_match == VersionMatch::Unset;
    Ok(Range {
        at,
        after: None,
        limit: options.limit.filter(|_| !is_any),
    })
}

fn expired(is_paged: bool, after: Option<&Key>, prefix: &str) -> ApiError {
    match after {
        Some(after) => {
            let message = "The provided continue parameter is too old to display a consistent list result. You can start \
                a new list without the continue parameter, or use the continue token in this response to retrieve the \
                remainder of the results. Continuing with the provided token results in an inconsistent list - objects \
                that were created, modified, or deleted between the time the first chunk was returned and now may show \
                up in the list.";
            ApiError::expired(message.to_owned()).with_continue(ContinueToken::encode(prefix, after, -1))
        }
        None if is_paged => ApiError::expired(
            "The provided continue parameter is too old to display a consistent list result. You must start a new list \
             without the continue parameter."
                .to_owned(),
        ),
        None => ApiError::expired("The resourceVersion for the provided list is too old.".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_continues_after_the_last_key() {
        let key = Key::new("/g/gizmos/n/b");
        let token = ContinueToken::encode("/g/gizmos/n/", &key, 7);
        assert_eq!(
            ContinueToken::decode(&token, "/g/gizmos/n/").expect("own token"),
            (7, key)
        );
    }

    #[test]
    fn rejects_invalid_tokens_and_tokens_outside_the_prefix() {
        let check = |text: &str| {
            ContinueToken::decode(text, "/g/gizmos/n/")
                .expect_err(text)
                .message()
                .to_owned()
        };
        assert!(check("%%%").starts_with("invalid continue token: continue key is not valid"));
        // Texts of kube-apiserver 1.36.2.
        assert!(check("garbage").ends_with(r": invalid character '\u0081' looking for beginning of value"));
        let without_start = URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":0}"#);
        assert!(
            check(&without_start)
                .ends_with(": incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
        );
        let escape = ContinueToken {
            v: ContinueToken::VERSION.to_owned(),
            rv: 1,
            start: "../../secrets/".to_owned(),
        };
        let escape = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&escape).expect("serialises"));
        assert!(check(&escape).contains("not valid"));
    }
}
