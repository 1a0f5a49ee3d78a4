//! Numbers of different types, sums and formatted numbers.

use serde_json::{Value, json};

use super::{causes, holds};

#[test]
fn numbers_of_different_types_are_equal() {
    let schema = json!({"type": "object", "properties": {"port": {"x-kubernetes-int-or-string": true},
        "n": {"type": "integer"}, "d": {"type": "number"}, "any": {"x-kubernetes-preserve-unknown-fields": true},
        "l": {"type": "array", "items": {"type": "integer"}}}});
    let value = json!({"port": 80, "n": 7, "d": 7, "any": 1, "l": [7]});
    for rule in [
        "self.port == 80.0 && self.port != 81.0 && self.port == 80",
        "self.n in [7.0] && !(self.n in [8.0]) && self.n in self.l && 7.0 in self.l",
        "dyn(self.n) == dyn(self.d) && self.d == 7.0 && self.n == 7 && self.any == 1.0",
    ] {
        assert!(holds(schema.clone(), rule, value.clone()), "{rule}");
    }
}

#[test]
fn sum_of_an_empty_list_has_the_type_of_its_items() {
    let list = |item: Value| json!({"type": "array", "items": item});
    let schema = json!({"type": "object", "properties": {"d": list(json!({"type": "number"})),
        "n": list(json!({"type": "integer"})), "t": list(json!({"type": "string", "format": "duration"})),
        "o": list(json!({"type": "object", "properties": {"d": {"type": "number"}}}))}});
    let value = json!({"d": [], "n": [], "t": [], "o": []});
    for rule in [
        "type(self.d.sum()) == double && self.d.sum() + 1.5 == 1.5",
        "type(self.n.sum()) == int && self.n.sum() + 1 == 1",
        "type(self.n.map(n, uint(n)).sum()) == uint",
        "self.t.sum() + duration('1s') == duration('1s') && self.t.map(t, t).sum() < duration('1s')",
        "self.o.map(o, o.d * 2.0).sum() < 1.0 && self.o.filter(o, o.d > 1.0).map(o, o.d).sum() < 1.0",
        "[1.5].filter(d, d > 2.0).sum() < 1.0 && [2.5, 1.0].sum() == 3.5",
        "type(self.n.map(n, double(n) / 2.0).sum()) == double",
    ] {
        assert!(holds(schema.clone(), rule, value.clone()), "{rule}");
    }
}

#[test]
fn computed_numbers_keep_the_comparison_of_sets() {
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "maxItems": 9,
        "items": {"type": "number"}});
    let schema = json!({"type": "object", "properties": {"s": set, "n": {"type": "array", "items": set}}});
    let value = json!({"s": [1.0, 2.0], "n": [[1.0, 2.0]]});
    for rule in [
        "(size(self.s) == 0 ? [0.5] : self.s) == [2.0, 1.0]",
        "(size(self.s) != 0 ? self.s : [0.5]) == [2.0, 1.0]",
        "(size(self.s) == 0 ? [[0.5]] : self.n) == [[2.0, 1.0]]",
        "[[0.5], self.s][1] == [2.0, 1.0] && [self.s, [0.5]][0] == [2.0, 1.0]",
        "([[0.5]] + self.n)[1] == [2.0, 1.0] && ([[0.5]] + [self.s])[1] == [2.0, 1.0]",
        "self.s in [[2.0, 1.0]] && !([1.0, 2.0] == [2.0, 1.0])",
        "[0.5, self.s[0]].filter(d, d > 2.0).sum() < 1.0",
    ] {
        assert!(holds(schema.clone(), rule, value.clone()), "{rule}");
    }
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
