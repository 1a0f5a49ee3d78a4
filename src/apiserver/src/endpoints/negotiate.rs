//! Content negotiation: form of responses (Accept) and encoding of bodies (Content-Type).

use crate::status::ApiError;
use rooflet_apimachinery::protobuf::PROTOBUF;

pub(crate) const JSON: &str = "application/json";
pub(crate) const YAML: &str = "application/yaml";
/// Media types of responses.
pub(crate) const SERVED: [&str; 3] = [JSON, YAML, PROTOBUF];
/// Media types of lists of built-in kinds, which can be watched.
pub(crate) const SERVED_BY_LISTS: [&str; 5] = [JSON, YAML, PROTOBUF, JSON_WATCH, PROTOBUF_WATCH];
pub(crate) const JSON_WATCH: &str = "application/json;stream=watch";
pub(crate) const PROTOBUF_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";
const META_GROUP: &str = "meta.k8s.io";

/// Requested form of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conversion {
    Object,
    Table(MetaVersion),
    PartialObjectMetadata(MetaVersion),
    PartialObjectMetadataList(MetaVersion),
}

/// Version of group `meta.k8s.io` for a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetaVersion {
    V1,
    V1Beta1,
}

impl MetaVersion {
    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// Encoding of bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
    /// For built-in kinds, and for the metadata of all kinds.
    Protobuf,
}

impl Encoding {
    /// Returns the encoding for a media type of an Accept header.
    pub(crate) fn of(media_type: &str) -> Option<Self> {
        match media_type {
            JSON | "*/*" | "application/*" => Some(Self::Json),
            YAML => Some(Self::Yaml),
            PROTOBUF => Some(Self::Protobuf),
            _ => None,
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => JSON,
            Self::Yaml => YAML,
            Self::Protobuf => PROTOBUF,
        }
    }

    /// Returns the type of the frames of a watch, or `None` if watches do not use the encoding.
    pub(crate) fn watch_content_type(self) -> Option<&'static str> {
        match self {
            Self::Json => Some(JSON),
            Self::Yaml => None,
            Self::Protobuf => Some(PROTOBUF_WATCH),
        }
    }
}

/// Result of parsing an Accept header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputMedia {
    pub encoding: Encoding,
    pub conversion: Conversion,
}

impl OutputMedia {
    pub(crate) const JSON: Self = Self {
        encoding: Encoding::Json,
        conversion: Conversion::Object,
    };
}

/// Clause of an Accept header.
#[derive(Debug, PartialEq)]
pub(crate) struct Clause<'a> {
    pub media_type: &'a str,
    pub parameters: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl Clause<'_> {
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| *value)
    }
}

/// Returns the clauses of an Accept header by descending quality. The sort is stable.
pub(crate) fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = accept
        .split(',')
        .map(str::trim)
        .filter(|clause| !clause.is_empty())
        .map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let mut quality = 1.0;
            let mut parameters = Vec::new();
            for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                if key == "q" {
                    quality = value.parse().unwrap_or(1.0);
                } else {
                    parameters.push((key, value.trim_matches('"')));
                }
            }
            Clause {
                media_type,
                parameters,
                quality,
            }
        })
        .collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    clauses
}

/// Selects the response form for a resource: the first supported clause. `in_protobuf` is true for
/// resources whose objects have a protobuf form.
pub(crate) fn output(accept: &str, in_protobuf: bool) -> Result<OutputMedia, ApiError> {
    if accept.is_empty() || accept == JSON {
        return Ok(OutputMedia::JSON);
    }
    clauses(accept)
        .iter()
        .filter_map(output_of)
        .find(|media| {
            media.encoding != Encoding::Protobuf
                || match media.conversion {
                    Conversion::Object => in_protobuf,
                    Conversion::Table(_) => false,
                    Conversion::PartialObjectMetadata(_) | Conversion::PartialObjectMetadataList(_) => true,
                }
        })
        .ok_or_else(|| ApiError::not_acceptable(&SERVED))
}

/// Rejects a request that accepts none of the media types of a built-in kind's route, whatever its
/// parameters are.
pub(crate) fn check_route(accept: &str, available: &[&str]) -> Result<(), ApiError> {
    let is_known = |clause: &Clause<'_>| available.contains(&clause.media_type) || clause.media_type == "*/*";
    match accept.is_empty() || clauses(accept).iter().any(is_known) {
        true => Ok(()),
        false => Err(ApiError::no_representation(available)),
    }
}

/// Selects the encoding of a discovery document.
pub(crate) fn document(accept: &str) -> Result<Encoding, ApiError> {
    if accept.is_empty() {
        return Ok(Encoding::Json);
    }
    plain_encoding(accept).ok_or_else(|| ApiError::not_acceptable(&SERVED))
}

/// Returns the encoding of an error.
pub(crate) fn error_encoding(accept: &str) -> Encoding {
    plain_encoding(accept).unwrap_or(Encoding::Json)
}

/// Returns the encoding of the first supported clause without a conversion.
fn plain_encoding(accept: &str) -> Option<Encoding> {
    let clauses = clauses(accept);
    let mut supported = clauses.iter().filter_map(output_of);
    let plain = supported.find(|media| media.conversion == Conversion::Object);
    plain.map(|media| media.encoding)
}

fn output_of(clause: &Clause<'_>) -> Option<OutputMedia> {
    let encoding = Encoding::of(clause.media_type)?;
    let version = match (clause.parameter("g"), clause.parameter("v")) {
        (Some(META_GROUP), Some("v1")) => Some(MetaVersion::V1),
        (Some(META_GROUP), Some("v1beta1")) => Some(MetaVersion::V1Beta1),
        (None, None) => None,
        _ => return None,
    };
    let conversion = match (clause.parameter("as"), version) {
        (None, None) => Conversion::Object,
        (Some("Table"), Some(version)) => Conversion::Table(version),
        (Some("PartialObjectMetadata"), Some(version)) => Conversion::PartialObjectMetadata(version),
        (Some("PartialObjectMetadataList"), Some(version)) => Conversion::PartialObjectMetadataList(version),
        _ => return None,
    };
    Some(OutputMedia { encoding, conversion })
}

/// Returns the encoding of a request body. `in_protobuf` is true for resources whose objects have a
/// protobuf form.
pub(crate) fn input(content_type: &str, in_protobuf: bool) -> Result<Encoding, ApiError> {
    match essence(content_type).as_str() {
        "" | JSON => Ok(Encoding::Json),
        YAML => Ok(Encoding::Yaml),
        PROTOBUF if in_protobuf => Ok(Encoding::Protobuf),
        _ => Err(ApiError::unsupported_media_type(&[JSON, YAML, PROTOBUF])),
    }
}

/// Returns a media type without parameters, in lower case.
pub(crate) fn essence(content_type: &str) -> String {
    content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::BuiltIn;
    use crate::registry::resource::Resource;
    use serde_json::json;

    fn check(accept: &str, expect: Conversion) {
        let media = output(accept, false).expect(accept);
        assert_eq!(media.conversion, expect, "{accept}");
    }

    #[test]
    fn first_supported_clause_applies() {
        check("", Conversion::Object);
        check("*/*", Conversion::Object);
        check(
            "application/vnd.kubernetes.protobuf,application/json",
            Conversion::Object,
        );
        check(
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
            Conversion::Table(MetaVersion::V1),
        );
        check(
            "application/json;as=Table;v=v9;g=meta.k8s.io,application/json",
            Conversion::Object,
        );
        check(
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Conversion::PartialObjectMetadataList(MetaVersion::V1),
        );
        check(
            "text/html, application/json;q=0.2, application/yaml;q=0.9",
            Conversion::Object,
        );
        let yaml = output("application/json;q=0.2, application/yaml;q=0.9", true).expect("acceptable");
        assert_eq!(yaml.encoding, Encoding::Yaml);
    }

    #[test]
    fn unsupported_accept_returns_406_with_supported_types() {
        let err = output("text/html", true).expect_err("not supported");
        assert_eq!(err.code(), http::StatusCode::NOT_ACCEPTABLE);
        assert_eq!(
            err.message(),
            "only the following media types are accepted: application/json, application/yaml, \
             application/vnd.kubernetes.protobuf"
        );
    }

    #[test]
    fn protobuf_is_for_built_in_objects_and_all_metadata() {
        let check = |accept: &str, in_protobuf: bool, expect: Option<Encoding>| {
            let found = output(accept, in_protobuf).ok().map(|media| media.encoding);
            assert_eq!(found, expect, "{accept} {in_protobuf}");
        };
        let (protobuf, json) = (Some(Encoding::Protobuf), Some(Encoding::Json));
        check(PROTOBUF, true, protobuf);
        check(PROTOBUF, false, None);
        check(
            "application/vnd.kubernetes.protobuf,application/json",
            true,
            protobuf,
        );
        check(
            "application/vnd.kubernetes.protobuf,application/json",
            false,
            json,
        );
        check("application/vnd.kubernetes.protobuf;stream=watch", true, protobuf);
        let partial = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        check(partial, false, protobuf);
        let table = "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1";
        check(table, true, None);
    }

    #[test]
    fn every_built_in_kind_has_a_protobuf_form() {
        for kind in BuiltIn::ALL {
            let resource = Resource::built_in(kind);
            let kind = json!({"apiVersion": resource.api_version(), "kind": resource.kind});
            rooflet_apimachinery::protobuf::from_json(&kind).expect("a protobuf form");
        }
    }

    #[test]
    fn errors_have_the_first_encoding_without_conversion() {
        let partial = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        assert_eq!(error_encoding(PROTOBUF), Encoding::Protobuf);
        assert_eq!(error_encoding(partial), Encoding::Json);
        assert_eq!(error_encoding(&format!("{partial},{YAML}")), Encoding::Yaml);
        assert_eq!(error_encoding(""), Encoding::Json);
        assert_eq!(error_encoding("text/html"), Encoding::Json);
    }

    /// Answers of kube-apiserver 1.36.2 for `/api/v1`.
    #[test]
    fn discovery_documents_have_no_conversion() {
        let check = |accept: &str, expect: Option<Encoding>| {
            assert_eq!(document(accept).ok(), expect, "{accept}");
        };
        check("", Some(Encoding::Json));
        check(
            "application/json;q=0.5,application/vnd.kubernetes.protobuf",
            Some(Encoding::Protobuf),
        );
        check("text/html,*/*", Some(Encoding::Json));
        check("application/json;as=Table;g=meta.k8s.io;v=v1", None);
        let aggregated =
            "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        check(aggregated, None);
        check(&format!("{aggregated},application/json"), Some(Encoding::Json));
    }

    #[test]
    fn routes_reject_other_media_types() {
        let check = |accept: &str| check_route(accept, &SERVED).map_err(|err| err.message().to_owned());
        let text = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, \
                    application/vnd.kubernetes.protobuf";
        assert_eq!(check(""), Ok(()));
        assert_eq!(check("text/html,application/json;as=Table"), Ok(()));
        assert_eq!(check("*/*"), Ok(()));
        assert_eq!(check("application/*"), Err(text.to_owned()));
    }

    #[test]
    fn bodies_default_to_json() {
        assert_eq!(input("", false).expect("default"), Encoding::Json);
        assert_eq!(
            input("Application/JSON; charset=utf-8", false).expect("json"),
            Encoding::Json
        );
        assert_eq!(input("application/yaml", false).expect("yaml"), Encoding::Yaml);
        assert_eq!(
            input("text/plain", true).expect_err("unknown").code(),
            http::StatusCode::UNSUPPORTED_MEDIA_TYPE
        );
        assert_eq!(input(PROTOBUF, true).expect("built-in"), Encoding::Protobuf);
        assert!(input(PROTOBUF, false).is_err());
    }
}
