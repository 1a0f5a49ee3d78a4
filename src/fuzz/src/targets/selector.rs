//! Label and field selectors, as text and as object.

use rooflet_apimachinery::selector::{FieldSelector, LabelSelector, locate_labels};
use serde_json::{Value, json};

use super::require;
use crate::source::Source;

const TOKENS: [&str; 24] = [
    "a",
    "b",
    "a.io/b",
    "in",
    "notin",
    "(",
    ")",
    ",",
    "=",
    "==",
    "!=",
    "!",
    ">",
    "<",
    " ",
    "1",
    "-1",
    "x",
    "\\",
    "\\,",
    "a in (x,1)",
    "b notin (x)",
    "metadata.name",
    "é",
];

pub(super) fn check(source: &mut Source) -> Result<(), String> {
    let text: String = (0..source.below(10)).map(|_| source.word(&TOKENS)).collect();
    let labels = ["a", "b", "a.io/b"]
        .into_iter()
        .filter(|_| source.one_in(2))
        .collect::<Vec<_>>();
    let labels: serde_json::Map<String, Value> = labels
        .into_iter()
        .map(|key| (key.to_owned(), Value::from(source.word(&["", "x", "1", "-1"]))))
        .collect();
    let mut metadata = source.object(&["annotations", "labels", "name", "{"], 3);
    metadata["labels"] = Value::Object(labels);
    let mut object = source.object(&["apiVersion", "data", "metadata", "labels", "spec"], 3);
    object["metadata"] = metadata;
    source.show("selector", format!("{text:?}"));
    source.show("object", &object);

    let stored = object.to_string();
    let located = locate_labels(stored.as_bytes()).map(|place| &stored.as_bytes()[place]);
    if let Ok(selector) = LabelSelector::parse(&text) {
        let matches = selector.matches(&object);
        if let Some(by_text) = selector.matches_text(located.unwrap_or_default()) {
            require(by_text == matches, "labels as text match like parsed ones")?;
        }
    }
    let any = source.text();
    let _ = locate_labels(any.as_bytes());
    if let Ok(selector) = FieldSelector::parse(&text) {
        let fields: Vec<&str> = selector.fields().collect();
        let _ = selector.matches_with(str::to_owned);
        let _ = selector.required_texts().count();
        require(
            fields.is_empty() == selector.is_empty(),
            "a selector with fields is not empty",
        )?;
    }
    let words = [
        "key",
        "operator",
        "values",
        "In",
        "Exists",
        "a",
        "NotIn",
        "DoesNotExist",
    ];
    let as_object =
        json!({"matchLabels": source.object(&words, 2), "matchExpressions": source.json(&words, 4)});
    source.show("selector object", &as_object);
    if let Ok(selector) = LabelSelector::of_object(&as_object) {
        let _ = selector.matches(&object);
    }
    Ok(())
}
