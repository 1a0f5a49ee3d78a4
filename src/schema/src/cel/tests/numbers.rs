//! Numbers of different types, sums and formatted numbers.

use serde_json::json;

use super::holds;

#[test]
fn precision_of_formatted_numbers_may_exceed_the_limit_of_rust() {
    for rule in [
        "'%.70000f'.format([0.5]).size() == 70002",
        "'%.70000f'.format([-1234.5]).startsWith('-1,234.50') && '%.65536f'.format([1.0]).endsWith('00')",
    ] {
        assert!(holds(json!({"type": "string"}), rule, json!("x")), "{rule}");
    }
}
