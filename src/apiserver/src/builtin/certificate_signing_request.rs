//! CertificateSigningRequest. The server sets the requesting user. Approval and certificate are
//! written through separate subresources.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::authentication::User;
use crate::certificates::{APPROVED, DENIED, FAILED, conditions, has_condition};
use crate::object;
use rooflet_apimachinery::time::format_time;
use rooflet_pki::{CertificateRequest, check_certificates};
use rooflet_schema::{FieldError, names};

const EXPIRATION_SECONDS_MIN: i64 = 600;
const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
/// Maximum length of a signer's domain, equal to that of a DNS name.
const DOMAIN_BYTES_MAX: usize = 253;
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// Sets the user that creates the request. `by` is `None` for the server itself.
pub(super) fn prepare_create(csr: &mut Value, by: Option<&User>) {
    csr["status"] = json!({});
    let Some(spec) = csr.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    if let Some(user) = by {
        spec.insert("username".to_owned(), json!(user.name));
        spec.insert("groups".to_owned(), json!(user.groups));
        if !user.uid.is_empty() {
            spec.insert("uid".to_owned(), json!(user.uid));
        }
        if !user.extra.is_empty() {
            spec.insert("extra".to_owned(), json!(user.extra));
        }
    }
}

pub(super) fn prepare_update(csr: &mut Value, old: &Value, subresource: &str, now: Timestamp) {
    let Some(map) = csr.as_object_mut() else { return };
    object::set_or_remove(map, "spec", old.get("spec").cloned());
    let mut status = map.remove("status").unwrap_or_else(|| json!({}));
    let mut merged: Vec<Value> = match subresource {
        "approval" => conditions_of(&status).cloned().collect(),
        "status" => {
            let is_approval =
                |condition: &&Value| [APPROVED, DENIED].contains(&object::text(condition, &["type"]));
            let approvals = conditions(old).filter(is_approval);
            let others = conditions_of(&status).filter(|condition| !is_approval(condition));
            approvals.chain(others).cloned().collect()
        }
        _ => {
            object::set_or_remove(map, "status", old.get("status").cloned());
            return;
        }
    };
    for condition in &mut merged {
        date(condition, old, now);
    }
    if subresource == "approval" {
        status = old.get("status").cloned().unwrap_or_else(|| json!({}));
    }
    let merged = (!merged.is_empty()).then(|| Value::from(merged));
    object::set_or_remove(members(&mut status), "conditions", merged);
    map.insert("status".to_owned(), status);
}

fn conditions_of(status: &Value) -> impl Iterator<Item = &Value> {
    status["conditions"].as_array().into_iter().flatten()
}

fn members(status: &mut Value) -> &mut Map<String, Value> {
    if !status.is_object() {
        *status = json!({});
    }
    status.as_object_mut().expect("set to an object above")
}

/// Sets missing times of a condition.
fn date(condition: &mut Value, old: &Value, now: Timestamp) {
    let kind = object::text(condition, &["type"]).to_owned();
    let before = conditions(old).find(|before| before["type"] == kind.as_str());
    let unchanged = before.filter(|before| before["status"] == condition["status"]);
    let now = format_time(now);
    let Some(map) = condition.as_object_mut() else {
        return;
    };
    let is_missing = |map: &Map<String, Value>, field| map.get(field).is_none_or(Value::is_null);
    if is_missing(map, "lastUpdateTime") {
        map.insert("lastUpdateTime".to_owned(), json!(now));
    }
    if is_missing(map, "lastTransitionTime") {
        let since = unchanged.and_then(|before| before.get("lastTransitionTime"));
        let since = since.cloned().unwrap_or_else(|| json!(now));
        map.insert("lastTransitionTime".to_owned(), since);
    }
}

pub(super) fn validate(csr: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &csr["spec"];
    let request = BASE64
        .decode(object::text(spec, &["request"]))
        .unwrap_or_default();
    if let Err(err) = CertificateRequest::from_pem(&request) {
        errors.push(FieldError::invalid(
            "spec.request",
            &spec["request"],
            &err.to_string(),
        ));
    }
    check_usages(&spec["usages"], &mut errors);
    check_signer(object::text(spec, &["signerName"]), &mut errors);
    if let Some(seconds) = spec["expirationSeconds"].as_i64()
        && seconds < EXPIRATION_SECONDS_MIN
    {
        errors.push(FieldError::invalid(
            "spec.expirationSeconds",
            &spec["expirationSeconds"],
            "may not specify a duration less than 600 seconds (10 minutes)",
        ));
    }
    check_conditions(csr, &mut errors);
    check_certificate(csr, &mut errors);
    if let Some(old) = old {
        check_change(csr, old, &mut errors);
    }
    errors
}

fn check_usages(usages: &Value, errors: &mut Vec<FieldError>) {
    let usages = usages.as_array().map(Vec::as_slice).unwrap_or_default();
    if usages.is_empty() {
        errors.push(FieldError::required("spec.usages", ""));
    }
    for (index, usage) in usages.iter().enumerate() {
        let field = format!("spec.usages[{index}]");
        if !USAGES.iter().any(|known| usage == known) {
            errors.push(FieldError::not_supported(&field, usage, USAGES));
        }
        if usages[..index].contains(usage) {
            errors.push(FieldError::duplicate(field, usage));
        }
    }
}

fn check_signer(name: &str, errors: &mut Vec<FieldError>) {
    let field = "spec.signerName";
    let mut wrong = |value: &str, detail: &str| errors.push(FieldError::invalid_text(field, value, detail));
    if name == LEGACY_SIGNER {
        return wrong(name, "the legacy signerName is not allowed via this API version");
    }
    if name.is_empty() {
        return errors.push(FieldError::required(field, ""));
    }
    let Some((domain, path)) = name.split_once('/').filter(|(_, path)| !path.contains('/')) else {
        let form = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return wrong(name, form);
    };
    for (value, labels) in [(domain, domain.split('.')), (path, path.split('.'))] {
        for label in labels {
            for fault in names::dns_label(label) {
                wrong(value, &format!("validating label {label:?}: {fault}"));
            }
        }
    }
    if !domain.contains('.') {
        wrong(
            domain,
            "should be a domain with at least two segments separated by dots",
        );
    }
    if domain.len() > DOMAIN_BYTES_MAX {
        errors.push(FieldError::too_long(field, DOMAIN_BYTES_MAX as u64));
    }
}

fn check_conditions(csr: &Value, errors: &mut Vec<FieldError>) {
    let field = "status.conditions";
    let mut seen = Vec::new();
    for (index, condition) in conditions(csr).enumerate() {
        let field = format!("{field}[{index}]");
        let kind = object::text(condition, &["type"]);
        if kind.is_empty() {
            errors.push(FieldError::required(format!("{field}.type"), ""));
        }
        let statuses: &[&str] = match kind {
            APPROVED | DENIED | FAILED => &["True"],
            _ => &["True", "False", "Unknown"],
        };
        let status = object::text(condition, &["status"]);
        if status.is_empty() {
            errors.push(FieldError::required(format!("{field}.status"), ""));
        } else if !statuses.contains(&status) {
            let field = format!("{field}.status");
            errors.push(FieldError::not_supported(field, &condition["status"], statuses));
        }
        if seen.contains(&kind) {
            errors.push(FieldError::duplicate(format!("{field}.type"), &condition["type"]));
        }
        seen.push(kind);
    }
    if has_condition(csr, APPROVED) && has_condition(csr, DENIED) {
        let detail = "Approved and Denied conditions are mutually exclusive";
        errors.push(FieldError::invalid_text(field, DENIED, detail));
    }
}

fn check_certificate(csr: &Value, errors: &mut Vec<FieldError>) {
    let text = object::text(csr, &["status", "certificate"]);
    if text.is_empty() {
        return;
    }
    let pem = BASE64.decode(text).unwrap_or_default();
    if let Err(err) = check_certificates(&pem) {
        errors.push(FieldError::invalid_text(
            "status.certificate",
            "<certificate data>",
            &err.to_string(),
        ));
    }
}

fn check_change(csr: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    for kind in [APPROVED, DENIED, FAILED] {
        if has_condition(old, kind) && !has_condition(csr, kind) {
            let detail = format!("updates may not remove a condition of type {kind:?}");
            errors.push(FieldError::forbidden("status.conditions", &detail));
        }
    }
    let certificate = |csr: &Value| object::text(csr, &["status", "certificate"]).to_owned();
    let before = certificate(old);
    if !before.is_empty() && certificate(csr) != before {
        let detail = "updates may not modify existing certificate content";
        errors.push(FieldError::forbidden("status.certificate", detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::certificates::tests::{request_pem, subject};

    fn csr(change: impl FnOnce(&mut Value)) -> Value {
        let pem = request_pem(&subject("system:nodes", "system:node:a"), &[]);
        let mut csr = json!({"metadata": {"name": "a"}, "spec": {"request": BASE64.encode(pem),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["client auth"]}});
        change(&mut csr);
        csr
    }

    fn faults(csr: &Value, old: Option<&Value>) -> Vec<String> {
        let errors = validate(csr, old);
        errors.iter().map(FieldError::summary).collect()
    }

    #[test]
    fn validates_each_field_of_a_request() {
        let check = |change: fn(&mut Value), expect: &[&str]| {
            let got = faults(&csr(change), None);
            assert_eq!(got.len(), expect.len(), "{got:?}");
            for (got, expect) in got.iter().zip(expect) {
                assert!(got.contains(expect), "{got} should contain {expect}");
            }
        };
        check(|_| {}, &[]);
        check(
            |csr| csr["spec"]["request"] = json!(""),
            &["spec.request: Invalid value"],
        );
        check(
            |csr| {
                csr["spec"]["request"] =
                    json!(BASE64.encode("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
            },
            &["PEM block type must be CERTIFICATE REQUEST"],
        );
        check(
            |csr| csr["spec"]["usages"] = json!([]),
            &["spec.usages: Required value"],
        );
        check(
            |csr| csr["spec"]["usages"] = json!(["client auth", "cooking", "client auth"]),
            &[
                r#"spec.usages[1]: Unsupported value: "cooking": supported values: "any", "cert sign""#,
                r#"spec.usages[2]: Duplicate value: "client auth""#,
            ],
        );
        check(
            |csr| csr["spec"]["signerName"] = json!(""),
            &["spec.signerName: Required value"],
        );
        check(
            |csr| csr["spec"]["signerName"] = json!("kubernetes.io/legacy-unknown"),
            &["the legacy signerName is not allowed via this API version"],
        );
        for name in ["a", "a.b/c/d"] {
            let csr = csr(|csr| csr["spec"]["signerName"] = json!(name));
            let expect = format!(
                "spec.signerName: Invalid value: \"{name}\": must be a fully qualified domain and path of the form \
                 'example.com/signer-name'"
            );
            assert_eq!(faults(&csr, None), [expect]);
        }
        check(
            |csr| csr["spec"]["signerName"] = json!("here/it"),
            &["should be a domain with at least two segments separated by dots"],
        );
        check(
            |csr| csr["spec"]["signerName"] = json!("a.b/_"),
            &["validating label \"_\""],
        );
        check(
            |csr| csr["spec"]["expirationSeconds"] = json!(599),
            &[
                "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)",
            ],
        );
        check(|csr| csr["spec"]["expirationSeconds"] = json!(600), &[]);
    }

    #[test]
    fn rejects_request_with_a_foreign_signature() {
        let mine = request_pem(&subject("system:nodes", "system:node:a"), &[]);
        let block = mine.lines().collect::<Vec<_>>();
        let der = BASE64.decode(block[1..block.len() - 1].concat()).expect("base64");
        // The last byte is part of the signature.
        let mut forged = der.clone();
        *forged.last_mut().expect("bytes") ^= 1;
        let pem = |der: &[u8]| {
            let text = BASE64.encode(der);
            format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n")
        };
        let with = |der: &[u8]| csr(|csr| csr["spec"]["request"] = json!(BASE64.encode(pem(der))));
        assert_eq!(faults(&with(&der), None), Vec::<String>::new());
        let got = faults(&with(&forged), None);
        assert!(
            got.len() == 1 && got[0].contains("the signature does not match the request's key"),
            "{got:?}"
        );
    }

    #[test]
    fn conditions_and_certificate_are_immutable_once_set() {
        let with = |conditions: Value| csr(|csr| csr["status"] = json!({"conditions": conditions}));
        let one = |kind: &str| json!([{"type": kind, "status": "True"}]);
        let approved = with(one("Approved"));
        assert_eq!(faults(&approved, None), Vec::<String>::new());
        assert_eq!(
            faults(&with(one("Denied")), Some(&approved)),
            ["status.conditions: Forbidden: updates may not remove a condition of type \"Approved\""]
        );
        assert_eq!(
            faults(
                &with(json!([{"type": "Approved", "status": "True"}, {"type": "Denied", "status": "True"}])),
                None
            ),
            [
                "status.conditions: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive"
            ]
        );
        assert_eq!(
            faults(&with(json!([{"type": "Failed", "status": "False"}])), None),
            ["status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\""]
        );
        assert_eq!(
            faults(&with(json!([{"type": "Mine", "status": "False"}])), None),
            Vec::<String>::new()
        );
        assert_eq!(
            faults(&with(json!([{"status": "True"}])), None),
            ["status.conditions[0].type: Required value"]
        );
        let junk = csr(|csr| csr["status"] = json!({"certificate": "AAAA"}));
        let got = faults(&junk, None);
        assert!(
            got[0].starts_with("status.certificate: Invalid value: \"<certificate data>\""),
            "{got:?}"
        );
        let got = faults(&csr(|_| {}), Some(&junk));
        assert_eq!(
            got,
            ["status.certificate: Forbidden: updates may not modify existing certificate content"]
        );
    }

    #[test]
    fn server_overwrites_the_requesting_user() {
        let user = User::new("system:bootstrap:abcdef", &["system:bootstrappers"]);
        let mut forged = csr(|csr| {
            csr["spec"]["username"] = json!("system:node:a");
            csr["spec"]["extra"] = json!({"a": ["b"]});
            csr["status"] = json!({"certificate": "AAAA"});
        });
        prepare_create(&mut forged, Some(&user));
        assert_eq!(forged["spec"]["username"], "system:bootstrap:abcdef");
        assert_eq!(forged["spec"]["groups"], json!(["system:bootstrappers"]));
        assert_eq!(
            (&forged["status"], forged["spec"].get("extra")),
            (&json!({}), None)
        );
    }

    #[test]
    fn each_subresource_updates_only_its_own_fields() {
        let now = rooflet_base::clock::at(0);
        let condition = |kind: &str| {
            json!({"type": kind, "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let old = json!({"spec": {"request": "a"}, "status": {"conditions": [condition("Mine")]}});
        let sent = json!({"spec": {"request": "b"}, "status": {"certificate": "c",
            "conditions": [condition("Failed"), condition("Approved")]}});
        let check = |subresource: &str, expect: Value| {
            let mut csr = sent.clone();
            prepare_update(&mut csr, &old, subresource, now);
            assert_eq!(csr["spec"], old["spec"], "{subresource}");
            assert_eq!(csr["status"], expect, "{subresource}");
        };
        check("", old["status"].clone());
        check(
            "approval",
            json!({"conditions": [condition("Failed"), condition("Approved")]}),
        );
        check(
            "status",
            json!({"certificate": "c", "conditions": [condition("Failed")]}),
        );
        let mut undated = json!({"status": {"conditions": [{"type": "Denied", "status": "True"}]}});
        prepare_update(&mut undated, &old, "approval", now);
        let denied = &undated["status"]["conditions"][0];
        assert_eq!(denied["lastUpdateTime"], "1970-01-01T00:00:00Z");
        assert_eq!(denied["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }
}
