//! Named formats: `format.dns1123Label().validate(text)`.

use std::sync::Arc;

use kube_cel::cel::{
    Context, ExecutionError, ResolveResult, Value as Cel,
    extractors::This,
    objects::{Opaque, OptionalValue},
};

use super::conversions::of_crates;
use crate::format::Format;
use crate::names;

/// Names and checks of formats. A check returns the faults of a text.
const FORMATS: [(&str, Check); 13] = [
    ("byte", |text| fault(Format::Byte, text, "invalid base64")),
    ("date", |text| fault(Format::Date, text, "invalid date")),
    ("datetime", |text| {
        fault(Format::DateTime, text, "invalid datetime")
    }),
    ("dns1035Label", names::dns_1035_label),
    ("dns1035LabelPrefix", |text| {
        names::dns_1035_label(&completed(text))
    }),
    ("dns1123Label", names::dns_label),
    ("dns1123LabelPrefix", |text| names::dns_label(&completed(text))),
    ("dns1123Subdomain", names::dns_subdomain),
    ("dns1123SubdomainPrefix", |text| {
        names::dns_subdomain(&completed(text))
    }),
    ("labelValue", names::label_value),
    ("qualifiedName", names::qualified_name),
    ("uri", uri),
    ("uuid", |text| {
        fault(Format::Uuid, text, "does not match the UUID format")
    }),
];

type Check = fn(&str) -> Vec<String>;

/// Format as a value.
#[derive(Debug, PartialEq, Eq)]
struct NamedFormat(&'static str);

impl Opaque for NamedFormat {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.NamedFormat"
    }
}

pub(super) fn register(context: &mut Context<'static>) {
    for (name, _) in FORMATS {
        let format = move || -> ResolveResult { Ok(value(name)) };
        context.add_function(&format!("format.{name}"), format);
    }
    context.add_function("format.named", named);
    context.add_function("validate", validate);
}

fn value(name: &'static str) -> Cel {
    Cel::Opaque(Arc::new(NamedFormat(name)))
}

fn optional(content: Option<Cel>) -> ResolveResult {
    let content = content.map_or_else(OptionalValue::none, OptionalValue::of);
    Ok(Cel::Opaque(Arc::new(content)))
}

/// Returns the format with a name, as an optional.
fn named(name: Arc<String>) -> ResolveResult {
    let found = FORMATS.iter().find(|(known, _)| *known == name.as_str());
    optional(found.map(|(name, _)| value(name)))
}

/// Returns the faults of a text, or an empty optional.
fn validate(This(format): This<Cel>, text: Arc<String>) -> ResolveResult {
    let Cel::Opaque(format) = &format else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let NamedFormat(name) = format.downcast_ref().ok_or(ExecutionError::NoSuchOverload)?;
    let check = FORMATS.iter().find(|(known, _)| known == name);
    let faults = check.map(|(_, check)| check(&text)).unwrap_or_default();
    if faults.is_empty() {
        return optional(None);
    }
    let faults = faults.into_iter().map(|fault| Cel::String(Arc::new(fault)));
    optional(Some(Cel::List(Arc::new(faults.collect()))))
}

fn fault(format: Format, text: &str, fault: &str) -> Vec<String> {
    match format.accepts(text) {
        true => Vec::new(),
        false => vec![fault.to_owned()],
    }
}

/// Returns a prefix with a letter instead of a dash at its end.
fn completed(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(start) if !start.is_empty() => format!("{}a", &start[..start.len() - last_length(start)]),
        Some(_) | None => prefix.to_owned(),
    }
}

/// Returns the length of the last character, in bytes.
fn last_length(text: &str) -> usize {
    text.chars().next_back().map_or(0, char::len_utf8)
}

fn uri(text: &str) -> Vec<String> {
    let is_url = of_crates("isURL", None, Some(Cel::String(Arc::new(text.to_owned()))));
    match is_url {
        Ok(Cel::Bool(true)) => Vec::new(),
        _ => vec![format!(
            "parse {}: invalid URI for request",
            crate::gotext::quote(text)
        )],
    }
}
