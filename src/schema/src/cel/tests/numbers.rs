//! Numbers of different types, sums and formatted numbers.

use serde_json::json;

use super::{causes, holds};

#[test]
fn limits_the_length_of_expressions() {
    let rule = format!("true{}", " ".repeat(99_996));
    assert!(holds(json!({"type": "string"}), &rule, json!("x")));
    let found = causes(
        json!({"type": "string"}),
        json!({"rule": rule + "\u{e9}"}),
        json!("x"),
        None,
    );
    let text = "ERROR: <input>:-1:0: expression code point size exceeds limit: size: 100001, limit 100000";
    assert!(found[0].ends_with(text), "{}", &found[0][..200]);
}
#[test]
fn precision_of_formatted_numbers_may_exceed_the_limit_of_rust() {
    for rule in [
        "'%.70000f'.format([0.5]).size() == 70002",
        "'%.70000f'.format([-1234.5]).startsWith('-1,234.50') && '%.65536f'.format([1.0]).endsWith('00')",
    ] {
        assert!(holds(json!({"type": "string"}), rule, json!("x")), "{rule}");
    }
}
