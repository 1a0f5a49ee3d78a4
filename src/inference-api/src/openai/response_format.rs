//! Format of an answer's text: `response_format`, and vLLM's `structured_outputs` with its older
//! names.

use super::error::ApiError;
use super::json::{Json, Members};

/// Parameters of this module. Members of schemas keep their order.
pub(super) const NAMES: &[&str] = &[
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
];

/// Maximum number of choices, as in vLLM.
const MAX_CHOICES: usize = 1024;
const MAX_FORMAT_NAME_CHARS: usize = 64;

/// Format, and the parameter that requests it.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseFormat {
    pub content: ContentFormat,
    pub param: String,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ContentFormat {
    /// JSON object.
    Object,
    /// JSON value that the schema accepts.
    Schema(Json),
    /// Text that the regular expression matches completely.
    Pattern(String),
    /// Any of these texts.
    Choice(Vec<String>),
    /// Text that matches the rule `root` of a grammar in EBNF.
    Grammar(String),
}

impl ResponseFormat {
    /// Parses all parameters. `None`: any text.
    pub fn parse(fields: &Members) -> Result<Option<Self>, ApiError> {
        let mut found: Vec<Self> = Vec::new();
        for (name, value) in fields.iter().filter(|(_, value)| **value != Json::Null) {
            let format = match name {
                "response_format" => parse_response_format(value)?,
                "structured_outputs" => Some(parse_structured_outputs(value)?),
                _ => {
                    let kind = name.trim_start_matches("guided_");
                    Some(Self::of(kind, value, name.to_owned())?)
                }
            };
            found.extend(format);
        }
        if found.len() > 1 {
            let param = found.swap_remove(1).param;
            let message = format!("'{param}' requests a second format; only one is supported.");
            return Err(ApiError::invalid_value(&param, message));
        }
        Ok(found.pop())
    }

    fn of(kind: &str, value: &Json, param: String) -> Result<Self, ApiError> {
        let invalid =
            |expected: &str| ApiError::invalid_value(&param, format!("'{param}' must be {expected}."));
        let content = match kind {
            "json_object" if *value == Json::Bool(true) => ContentFormat::Object,
            "json_object" => return Err(invalid("true")),
            "json" => ContentFormat::Schema(match value {
                Json::Object(_) | Json::Bool(true) => value.clone(),
                // Some clients send the schema as text.
                Json::String(text) => Json::parse(text).map_err(|_| invalid("a JSON Schema"))?,
                Json::Null | Json::Bool(false) | Json::Number(_) | Json::Array(_) => {
                    return Err(invalid("a JSON Schema"));
                }
            }),
            "regex" => ContentFormat::Pattern(value.as_str().ok_or_else(|| invalid("a string"))?.to_owned()),
            "grammar" => {
                ContentFormat::Grammar(value.as_str().ok_or_else(|| invalid("a string"))?.to_owned())
            }
            "choice" => {
                let expected = || invalid(&format!("a list of 1 to {MAX_CHOICES} strings, none empty"));
                let Json::Array(texts) = value else {
                    return Err(expected());
                };
                if texts.is_empty() || texts.len() > MAX_CHOICES {
                    return Err(expected());
                }
                let text = |text: &Json| text.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
                ContentFormat::Choice(
                    texts
                        .iter()
                        .map(text)
                        .collect::<Option<_>>()
                        .ok_or_else(expected)?,
                )
            }
            _ => {
                return Err(ApiError::unsupported(
                    &param,
                    format!("'{param}' is not supported by this server."),
                ));
            }
        };
        Ok(Self { content, param })
    }
}

fn parse_response_format(value: &Json) -> Result<Option<ResponseFormat>, ApiError> {
    const TYPE: &str = "response_format.type";
    let invalid = |param: &str, expected: &str| {
        ApiError::invalid_value(param, format!("'{param}' must be {expected}."))
    };
    if value.as_object().is_none() {
        return Err(invalid("response_format", "an object"));
    }
    let format = match value.get("type").and_then(Json::as_str) {
        Some("text") => return Ok(None),
        // Extension of llama.cpp and others: a schema next to the type.
        Some("json_object") => match value.get("schema").filter(|schema| **schema != Json::Null) {
            None => ResponseFormat {
                content: ContentFormat::Object,
                param: "response_format".to_owned(),
            },
            Some(schema @ Json::Object(_)) => ResponseFormat {
                content: ContentFormat::Schema(schema.clone()),
                param: "response_format.schema".to_owned(),
            },
            Some(_) => return Err(invalid("response_format.schema", "a JSON Schema object")),
        },
        Some("json_schema") => {
            const OWN: &str = "response_format.json_schema";
            let own = value.get("json_schema").filter(|own| own.as_object().is_some());
            let own = own.ok_or_else(|| ApiError::missing(OWN))?;
            let is_name = |name: &str| {
                let usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
                !name.is_empty() && name.len() <= MAX_FORMAT_NAME_CHARS && name.chars().all(usual)
            };
            match own.get("name") {
                None => return Err(ApiError::missing(&format!("{OWN}.name"))),
                Some(name) if name.as_str().is_some_and(is_name) => {}
                Some(_) => {
                    let expected =
                        format!("a name of 1 to {MAX_FORMAT_NAME_CHARS} letters, digits, '_' and '-'");
                    return Err(invalid(&format!("{OWN}.name"), &expected));
                }
            }
            match own.get("strict") {
                // Schemas are always enforced.
                None | Some(Json::Null | Json::Bool(_)) => {}
                Some(_) => return Err(invalid(&format!("{OWN}.strict"), "true or false")),
            }
            let param = format!("{OWN}.schema");
            let schema = own.get("schema").ok_or_else(|| ApiError::missing(&param))?;
            if schema.as_object().is_none() {
                return Err(invalid(&param, "a JSON Schema object"));
            }
            ResponseFormat {
                content: ContentFormat::Schema(schema.clone()),
                param,
            }
        }
        Some(_) | None => return Err(invalid(TYPE, "'text', 'json_object' or 'json_schema'")),
    };
    Ok(Some(format))
}

fn parse_structured_outputs(value: &Json) -> Result<ResponseFormat, ApiError> {
    const OWN: &str = "structured_outputs";
    let mut kinds = value
        .as_object()
        .into_iter()
        .flat_map(Members::iter)
        .filter(|(_, value)| **value != Json::Null);
    match (kinds.next(), kinds.next()) {
        (Some((kind, value)), None) => ResponseFormat::of(kind, value, format!("{OWN}.{kind}")),
        (Some(_), Some(_)) | (None, _) => Err(ApiError::invalid_value(
            OWN,
            format!(
                "'{OWN}' must be an object with one of 'json', 'regex', 'choice', 'grammar' and 'json_object'."
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(fields: &str) -> Result<Option<ContentFormat>, String> {
        let Ok(Json::Object(fields)) = serde_json::from_str(fields) else {
            panic!("{fields}");
        };
        let format = ResponseFormat::parse(&fields).map_err(|err| err.param.unwrap_or_default())?;
        Ok(format.map(|format| format.content))
    }

    #[test]
    fn parses_all_format_parameters() {
        let schema = || ContentFormat::Schema(serde_json::from_str(r#"{"type":"integer"}"#).unwrap());
        let choice = || ContentFormat::Choice(vec!["a".to_owned(), "b".to_owned()]);
        for (fields, expected) in [
            ("{}", None),
            (r#"{"response_format": null, "guided_json": null}"#, None),
            (r#"{"response_format": {"type": "text"}}"#, None),
            (
                r#"{"response_format": {"type": "json_object"}}"#,
                Some(ContentFormat::Object),
            ),
            (
                r#"{"response_format": {"type": "json_object", "schema": {"type": "integer"}}}"#,
                Some(schema()),
            ),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": {"type": "integer"}}}}"#,
                Some(schema()),
            ),
            (r#"{"guided_json": {"type": "integer"}}"#, Some(schema())),
            (r#"{"guided_json": "{\"type\": \"integer\"}"}"#, Some(schema())),
            (
                r#"{"structured_outputs": {"json": {"type": "integer"}, "regex": null}}"#,
                Some(schema()),
            ),
            (
                r#"{"structured_outputs": {"json_object": true}}"#,
                Some(ContentFormat::Object),
            ),
            (r#"{"guided_choice": ["a", "b"]}"#, Some(choice())),
            (
                r#"{"structured_outputs": {"grammar": "root ::= \"a\""}}"#,
                Some(ContentFormat::Grammar("root ::= \"a\"".to_owned())),
            ),
            (
                r#"{"guided_regex": "a+"}"#,
                Some(ContentFormat::Pattern("a+".to_owned())),
            ),
        ] {
            assert_eq!(parse(fields), Ok(expected), "{fields}");
        }
    }

    #[test]
    fn errors_name_the_parameter() {
        for (fields, param) in [
            (r#"{"response_format": "json"}"#, "response_format"),
            (r#"{"response_format": {}}"#, "response_format.type"),
            (r#"{"response_format": {"type": "xml"}}"#, "response_format.type"),
            (
                r#"{"response_format": {"type": "json_schema"}}"#,
                "response_format.json_schema",
            ),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {}}}"#,
                "response_format.json_schema.name",
            ),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}}"#,
                "response_format.json_schema.name",
            ),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}"#,
                "response_format.json_schema.schema",
            ),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 1}}}"#,
                "response_format.json_schema.schema",
            ),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": 1}}}"#,
                "response_format.json_schema.strict",
            ),
            (r#"{"structured_outputs": {}}"#, "structured_outputs"),
            (
                r#"{"structured_outputs": {"json": {}, "regex": "a"}}"#,
                "structured_outputs",
            ),
            (
                r#"{"structured_outputs": {"grammar": 1}}"#,
                "structured_outputs.grammar",
            ),
            (
                r#"{"structured_outputs": {"structural_tag": "a"}}"#,
                "structured_outputs.structural_tag",
            ),
            (r#"{"guided_choice": []}"#, "guided_choice"),
            (r#"{"guided_choice": ["a", ""]}"#, "guided_choice"),
            (r#"{"guided_regex": 1}"#, "guided_regex"),
            (r#"{"guided_json": "{"}"#, "guided_json"),
            (
                r#"{"guided_regex": "a", "response_format": {"type": "json_object"}}"#,
                "response_format",
            ),
        ] {
            assert_eq!(parse(fields), Err(param.to_owned()), "{fields}");
        }
    }
}
