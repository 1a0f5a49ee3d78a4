//! Evaluation of rules: typed values, old values, computed messages, evaluation errors.

use serde_json::{Value, json};

use super::escape;
use crate::{FieldError, StructuralSchema};

/// Returns the causes of an update (or create, without `old`) with one rule on a node of the
/// schema. The types of the rule are not checked.
fn causes(schema: Value, rule: Value, value: Value, old: Option<Value>) -> Vec<String> {
    let mut schema = schema;
    schema["x-kubernetes-validations"] = json!([rule]);
    let schema = json!({"type": "object", "properties": {"spec": schema}});
    let schema = StructuralSchema::trusted(&schema);
    let old = old.map(|old| json!({"spec": old}));
    let errors = schema.validate(&json!({"spec": value}), old.as_ref());
    errors.iter().map(FieldError::summary).collect()
}

fn holds(schema: Value, rule: &str, value: Value) -> bool {
    let found = causes(schema, json!({"rule": rule}), value, None);
    assert!(
        found.is_empty() || found[0].ends_with(&format!("failed rule: {rule}")),
        "{rule}: {found:?}"
    );
    found.is_empty()
}

#[test]
fn values_have_the_types_of_their_schema() {
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    let text = |format: &str| json!({"type": "string", "format": format});
    assert!(holds(
        object(json!({"t": text("date-time")})),
        "self.t > timestamp('2024-01-01T00:00:00Z')",
        json!({"t": "2025-01-01T00:00:00Z"})
    ));
    assert!(holds(
        object(json!({"d": text("duration")})),
        "self.d <= duration('1h')",
        json!({"d": "90s"})
    ));
    assert!(holds(
        object(json!({"b": text("byte")})),
        "size(self.b) == 2",
        json!({"b": "aGk="})
    ));
    assert!(holds(
        object(json!({"n": {"type": "number"}})),
        "self.n > 0.5 && self.n < 2.0",
        json!({"n": 1})
    ));
    assert!(holds(
        object(json!({"p": {"x-kubernetes-int-or-string": true}})),
        "self.p == 80",
        json!({"p": 80})
    ));
    assert!(holds(
        object(json!({"a-b": {"type": "integer"}})),
        "self.a__dash__b == 1",
        json!({"a-b": 1})
    ));
    assert!(holds(
        object(json!({"namespace": {"type": "string"}})),
        "self.__namespace__ == 'n' && self.namespace == 'n' && has(self.namespace) && self.?namespace.hasValue()",
        json!({"namespace": "n"})
    ));
    assert!(!holds(
        object(json!({"namespace": {"type": "string"}})),
        "has(self.namespace) || has(self.__namespace__)",
        json!({})
    ));
    let map = json!({"type": "object", "additionalProperties": {"type": "integer"}});
    assert!(holds(map.clone(), "self.all(k, self[k] > 0)", json!({"a-b": 1})));
    assert!(!holds(map, "self.all(k, self[k] > 0)", json!({"a-b": 0})));
    assert!(holds(
        json!({"type": "string"}),
        "self.matches('^[a-z]+$') && quantity('1Gi').isGreaterThan(quantity('1Mi'))",
        json!("abc")
    ));
}

#[test]
fn optional_old_self_is_an_optional_value() {
    let schema = json!({"type": "integer"});
    let rule = json!({"rule": "oldSelf.hasValue() ? self >= oldSelf.value() : self > 0", "optionalOldSelf": true,
        "message": "must grow"});
    let check = |new: i64, old: Option<i64>, expect: &[&str]| {
        assert_eq!(
            causes(schema.clone(), rule.clone(), json!(new), old.map(Value::from)),
            expect
        );
    };
    check(1, None, &[]);
    check(0, None, &["spec: Invalid value: 0: must grow"]);
    check(5, Some(4), &[]);
    check(3, Some(4), &["spec: Invalid value: 3: must grow"]);
}

#[test]
fn message_expression_computes_the_message() {
    let schema = json!({"type": "integer"});
    let check = |expression: &str, expect: &str| {
        let rule = json!({"rule": "self < 3", "message": "too big", "messageExpression": expression});
        assert_eq!(
            causes(schema.clone(), rule, json!(7), None),
            [expect],
            "{expression}"
        );
    };
    check(
        "'must be under 3, is ' + string(self)",
        "spec: Invalid value: 7: must be under 3, is 7",
    );
    // If the result is unusable, the static message is used.
    check("'  '", "spec: Invalid value: 7: too big");
    check("'a\\nb'", "spec: Invalid value: 7: too big");
}

#[test]
fn evaluation_errors_are_reported_as_causes() {
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
    let check = |rule: &str, expect: &str| {
        let found = causes(
            schema.clone(),
            json!({"rule": rule, "message": "m"}),
            json!({"a": 0}),
            None,
        );
        assert_eq!(found, [expect], "{rule}");
    };
    check(
        "self.b > 1",
        r#"spec: Invalid value: "object": no such key: b evaluating rule: m"#,
    );
    check(
        "1 / self.a > 1",
        r#"spec: Invalid value: "object": division by zero evaluating rule: m"#,
    );
    check(
        "-(self.a - 9223372036854775807 - 1) > 0",
        r#"spec: Invalid value: "object": integer overflow evaluating rule: m"#,
    );
}

#[test]
fn items_of_list_maps_correlate_by_key() {
    let items = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.v >= oldSelf.v", "message": "must not shrink"}]});
    let schema = json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"], "items": items}}});
    let schema = StructuralSchema::compile("s", &schema, false).unwrap();
    let old = json!({"l": [{"k": "a", "v": 1}, {"k": "b", "v": 5}]});
    let new = json!({"l": [{"k": "b", "v": 4}, {"k": "c", "v": 0}, {"k": "a", "v": 1}]});
    let errors: Vec<String> = schema
        .validate(&new, Some(&old))
        .iter()
        .map(FieldError::summary)
        .collect();
    assert_eq!(errors, ["l[0]: Invalid value: must not shrink"]);
}

#[test]
fn rejects_old_self_on_uncorrelatable_items() {
    let schema = json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string",
        "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}});
    assert_eq!(
        StructuralSchema::compile("s", &schema, false).unwrap_err()[0].summary(),
        r#"s.properties[l].items.x-kubernetes-validations[0].rule: Invalid value: "self == oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[l]"#
    );
}

/// According to https://kubernetes.io/docs/reference/using-api/cel/, `==` ignores the order and `+`
/// is a union that preserves positions.
#[test]
fn comparison_of_sets_and_maps_ignores_order() {
    let text = json!({"type": "string"});
    let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k-1", "p"],
        "items": {"type": "object", "required": ["k-1", "p"], "properties": {"k-1": text, "p": {"type": "integer"}, "v": text}}});
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": text});
    let plain = json!({"type": "array", "items": text});
    let groups =
        json!({"type": "array", "items": {"type": "object", "properties": {"own": set, "other": set}}});
    let schema = json!({"type": "object", "properties": {"s": set, "t": set, "l": plain, "m": map, "n": map, "g": groups,
        "a": {"type": "object", "additionalProperties": set}}});
    let entry = |k: &str, p: i64, v: &str| json!({"k-1": k, "p": p, "v": v});
    let value = json!({"s": ["a", "b"], "t": ["b", "a"], "l": ["b", "a"],
        "m": [entry("a", 1, "x"), entry("a", 2, "y")], "n": [entry("a", 2, "y"), entry("a", 1, "x")],
        "g": [{"own": ["x", "y"], "other": ["y", "x"]}], "a": {"c": ["a", "b"]}});
    let holds = |rule: &str| holds(schema.clone(), rule, value.clone());
    for rule in [
        "self.s == self.t && !(self.s != self.t) && self.s == ['b', 'a'] && self.s == self.l",
        "self.m == self.n && self.g.all(g, g.own == g.other) && self.a['c'] == self.t && self.a.c == self.t",
        "self.s != ['a', 'c'] && self.s != ['a'] && self.s != ['a', 'b', 'c'] && self.g[0].own != self.s",
        "self.s + ['c', 'a', 'd'] == ['d', 'c', 'b', 'a'] && (self.s + self.t).size() == 2",
        "[] + (self.s + ['c', 'a', 'd']) == ['a', 'b', 'c', 'd']",
        // As in Kubernetes, unstructuredSetList.Add removes duplicates of appended items, and
        // unstructuredMapList.Add does not.
        "[] + (self.s + ['c', 'a', 'c', 'd', 'c']) == ['a', 'b', 'c', 'd']",
        "(self.m + ['z', 'w'].map(v, {'k__dash__1': 'b', 'p': 1, 'v': v})).map(e, e.v) == ['x', 'y', 'z', 'w']",
        "(self.m + [{'k__dash__1': 'a', 'p': 1, 'v': 'z'}, {'k__dash__1': 'b', 'p': 1, 'v': 'w'}]).map(e, e.v) == ['z', 'y', 'w']",
        "self.m != self.m + [{'k__dash__1': 'a', 'p': 1, 'v': 'z'}]",
        // The left operand decides. A list that a macro builds has no schema.
        "self.l != self.s && self.l + self.s == ['b', 'a', 'a', 'b'] && self.s.map(x, x) != self.t.map(x, x)",
    ] {
        assert!(holds(rule), "{rule}");
    }
    let rule = json!({"rule": "self.s == oldSelf.s", "message": "s is immutable"});
    let update = |s: Value| causes(schema.clone(), rule.clone(), json!({"s": s}), Some(value.clone()));
    assert_eq!(update(json!(["b", "a"])), Vec::<String>::new());
    assert_eq!(update(json!(["b"])), ["spec: Invalid value: s is immutable"]);
    let immutable = json!({"rule": "self == oldSelf"});
    assert_eq!(
        causes(set, immutable, json!(["b", "a"]), Some(json!(["a", "b"]))),
        Vec::<String>::new()
    );
}

/// Values that contain sets and maps are compared without order, too, because in Kubernetes every
/// value carries its schema.
#[test]
fn comparison_of_nested_sets_and_maps_ignores_order() {
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    let part = json!({"type": "object", "properties": {"a-b": set, "n": {"type": "integer"}}});
    let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": set, "part": part}}});
    let schema = json!({"type": "object", "properties": {"o": part, "p": part, "m": map, "n": map,
        "l": {"type": "array", "items": part}, "r": {"type": "array", "items": part},
        "d": {"type": "object", "additionalProperties": set}, "e": {"type": "object", "additionalProperties": set},
        "w": {"type": "array", "items": set}}});
    let part = |items: [&str; 2]| json!({"a-b": items, "n": 1});
    let (one, other) = (part(["x", "y"]), part(["y", "x"]));
    let value = json!({"o": one, "p": other, "l": [one, other], "r": [other, one],
        "m": [{"k": "1", "v": ["x", "y"], "part": one}, {"k": "2"}], "n": [{"k": "2"}, {"k": "1", "v": ["y", "x"], "part": other}],
        "d": {"c": ["x", "y"]}, "e": {"c": ["y", "x"]}, "w": [["x", "y"]]});
    for (rule, expect) in [
        ("self.o == self.p && !(self.o != self.p)", true),
        ("self.l == self.r && self.l[0] == self.r[0]", true),
        ("self.m == self.n && self.d == self.e", true),
        (
            "self.?o == self.?p && self.?o.?a__dash__b == self.?p.?a__dash__b",
            true,
        ),
        (
            "self.?o.a__dash__b.value() == ['y', 'x'] && self.?o.?a__dash__b.value() == ['y', 'x'] && self.?z.orValue(self.o) == self.p",
            true,
        ),
        (
            "self.d[?'c'].orValue([]) == ['y', 'x'] && self.l[?0] == self.r[?0]",
            true,
        ),
        ("optional.of(self.o) == optional.of(self.p)", true),
        ("self.?o == optional.none()", false),
        (
            "self.p in self.l && !({'a__dash__b': ['x'], 'n': 1} in self.l)",
            true,
        ),
        (
            "['y', 'x'] in self.w && self.e.c in [['z'], self.d.c] && 'c' in self.d",
            true,
        ),
        (
            "self.l.filter(i, i.n == 1) == self.r && self.l.map(i, i.a__dash__b) == self.r.map(i, i.a__dash__b)",
            true,
        ),
        (
            "[self.o] == [self.p] && (self.l.size() > 0 ? self.o : self.p) == self.p && dyn(self.o) == self.p",
            true,
        ),
        (
            "self.l.all(i, self.r.exists(j, j == i)) && self.m.all(i, i in self.n)",
            true,
        ),
        (
            "self.o.n == self.p.n && self.o != {'a__dash__b': ['x', 'z'], 'n': 1} && self.o != {'n': 1}",
            true,
        ),
        // A list of keys that a macro builds is ordered.
        ("self.m.map(i, i.k) == self.n.map(i, i.k)", false),
    ] {
        assert_eq!(holds(schema.clone(), rule, value.clone()), expect, "{rule}");
    }
    let immutable = |optional: bool, rule: &str, new: &Value| {
        let rule = json!({"rule": rule, "message": "immutable", "optionalOldSelf": optional});
        causes(schema.clone(), rule, new.clone(), Some(value.clone()))
    };
    let mut turned = value.clone();
    turned["m"] = value["n"].clone();
    turned["o"] = value["p"].clone();
    assert_eq!(immutable(false, "self == oldSelf", &turned), Vec::<String>::new());
    assert_eq!(
        immutable(true, "oldSelf.value() == self", &turned),
        Vec::<String>::new()
    );
    turned["m"][1]["v"] = json!(["x"]);
    assert_eq!(immutable(false, "self == oldSelf", &turned).len(), 1);
}

/// https://kubernetes.io/docs/reference/using-api/cel/#optional-types: missing fields are no error.
#[test]
fn optional_selection_accepts_missing_fields() {
    let inner = json!({"type": "object", "properties": {"b": {"type": "integer"}, "c": {"type": "integer"}}});
    let mut nullable = inner.clone();
    nullable["nullable"] = json!(true);
    let schema = json!({"type": "object", "properties": {"a": inner, "z": inner, "n": nullable,
        "l": {"type": "array", "items": inner}}});
    let value = json!({"a": {"b": 1}, "n": null, "l": [{"b": 2}, {"c": 3}]});
    for rule in [
        "self.?a.?b.orValue(7) == 1 && self.?a.b.orValue(7) == 1 && self.a.?c.orValue(7) == 7",
        "!self.?z.hasValue() && !self.?z.?b.hasValue() && !self.?z.b.hasValue() && !self.?a.c.hasValue()",
        "self.l[?1].?c.orValue(0) == 3 && self.l[?0].c.orValue(0) == 0 && !self.l[?5].c.hasValue()",
        "!self.?n.?b.hasValue() && !self.?n.b.hasValue() && !self.?n.hasValue() && !has(self.n)",
        "self.l.exists(i, i.?c.orValue(0) == 3) && self.?z == optional.none() && self.?a.b == optional.of(1)",
    ] {
        assert!(holds(schema.clone(), rule, value.clone()), "{rule}");
    }
    // Errors of operands propagate through operators and functions.
    for rule in [
        "self.z == self.a",
        "self.l.all(i, i.c + 1 > 0)",
        "self.a.b + self.a.c > 0",
    ] {
        let found = causes(
            schema.clone(),
            json!({"rule": rule, "message": "m"}),
            value.clone(),
            None,
        );
        assert!(
            found.len() == 1 && found[0].contains("no such key: "),
            "{rule}: {found:?}"
        );
    }
}

/// Texts of kube-apiserver. They do not contain the value, which may be secret.
#[test]
fn errors_of_conversions_do_not_contain_the_value() {
    let schema = json!({"type": "object", "properties": {"s": {"type": "string"}, "m": {"type": "object",
        "additionalProperties": {"type": "string"}}}});
    let value = json!({"s": "hunter2", "m": {"pw": "hunter2"}});
    let no_overload = "'no such overload': call arguments did not match a supported operator, function or macro \
         signature for rule: m";
    for (rule, expect) in [
        ("int(self.s) > 0", "type conversion error from 'string' to 'int'"),
        (
            "uint(self.s) > 0u",
            "type conversion error from 'string' to 'uint'",
        ),
        (
            "double(self.s) > 0.0",
            "type conversion error from 'string' to 'double'",
        ),
        (
            "duration(self.s) > duration('1s')",
            "type conversion error from 'string' to 'google.protobuf.Duration'",
        ),
        (
            "timestamp(self.s) > timestamp('2024-01-01T00:00:00Z')",
            "type conversion error from 'string' to 'google.protobuf.Timestamp'",
        ),
        ("string(self.m) != ''", no_overload),
        ("int(self.m) > 0", no_overload),
        ("self.m[self.m] == ''", no_overload),
        ("{self.m: 1}.size() > 0", no_overload),
        ("-self.s == ''", no_overload),
    ] {
        let rule_and_message = json!({"rule": rule, "message": "m"});
        let found = causes(schema.clone(), rule_and_message, value.clone(), None);
        assert!(found.len() == 1 && found[0].contains(expect), "{rule}: {found:?}");
        assert!(!found[0].contains("hunter2"), "{rule}: {found:?}");
    }
}

#[test]
fn names_are_escaped_like_in_kubernetes() {
    assert_eq!(escape("a.b-c/d"), "a__dot__b__dash__c__slash__d");
    assert_eq!(escape("my_field"), "my_field");
    assert_eq!(escape("a__b"), "a__underscores__b");
    assert_eq!(escape("in"), "__in__");
}

#[test]
fn lists_are_sorted_by_keys() {
    let properties = json!({"name": {"type": "string"}, "score": {"type": "integer"}});
    let players = json!({"type": "array", "items": {"type": "object", "properties": properties}});
    let found = |rule: &str| {
        let value = json!([{"name": "foo", "score": 0}, {"name": "bar", "score": -10}, {"name": "baz", "score": 1000}]);
        causes(players.clone(), json!({"rule": rule}), value, None)
    };
    for rule in [
        // From the documentation of cel-go.
        "self.sortBy(e, e.score).map(e, e.name) == ['bar', 'foo', 'baz']",
        "self.sortBy(e, -e.score)[0].name == 'baz'",
        "[].sortBy(x, x) == [] && ['b', 'a'].sortBy(x, x) == ['a', 'b']",
        "[1, 2, 3, 4].sortBy(x, x % 2 == 1) == [2, 4, 1, 3]",
        "[2u, 1u].sortBy(x, x) == [1u, 2u] && [b'b', b'a'].sortBy(x, x) == [b'a', b'b']",
        "[2, 3, 1].sortBy(x, double(x) / 2.0) == [1, 2, 3]",
        "['2h', '1h'].sortBy(x, duration(x)) == ['1h', '2h']",
        "['2026', '2025'].sortBy(y, timestamp(y + '-01-01T00:00:00Z')) == ['2025', '2026']",
        "[[3, 1], [2]].sortBy(x, x.sortBy(y, y)[0]) == [[3, 1], [2]]",
    ] {
        assert_eq!(found(rule), Vec::<String>::new(), "{rule}");
    }
    for (rule, error) in [
        (
            "[dyn(1), 'a'].sortBy(x, x) == []",
            "list elements must have the same type",
        ),
        (
            "[dyn([1])].sortBy(x, x) == []",
            "list elements must be comparable",
        ),
    ] {
        let found = found(rule);
        assert!(found.len() == 1 && found[0].contains(error), "{rule}: {found:?}");
    }
}

fn numbers() -> Value {
    json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"}},
        "t": {"type": "array", "items": {"type": "string"}}}})
}

const SPENT: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

#[test]
fn rules_beyond_the_cost_budget_fail() {
    let spends = |rule: &str, value: Value| {
        let found = causes(numbers(), json!({"rule": rule, "message": "m"}), value, None);
        assert!(found.len() == 1 && found[0].ends_with(SPENT), "{rule}: {found:?}");
    };
    let many = |count: usize| json!({"l": (0..count).collect::<Vec<_>>()});
    spends(
        "self.l.all(a, self.l.all(b, self.l.all(c, a + b + c >= 0)))",
        many(250),
    );
    spends("self.l.all(a, self.l.exists_one(b, b == a))", many(10_000));
    // A true operand of `||` does not hide the exceeded budget.
    spends(
        "self.l.exists(a, self.l.exists(b, self.l.exists(c, c < 0))) || true",
        many(400),
    );
    spends("self.l.map(a, a).size() > 0", many(50_000));
    spends("sets.contains(self.l, self.l)", many(50_000));
    spends("self.l.distinct().size() > 0", many(50_000));
    spends("lists.range(1000000000000).size() > 0", many(1));
    spends("self.l.all(a, !self.t[0].contains('x' + string(a)))", {
        let mut value = many(20_000);
        value["t"] = json!(["y".repeat(1 << 20)]);
        value
    });
}

/// Operators that are replaced by calls on sets copy their operands.
#[test]
fn calls_on_sets_are_charged() {
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    let sets = json!({"type": "array", "items": set});
    let spends = |count: usize| {
        let rule = json!({"rule": "self.all(i, self[0] in self)", "message": "m"});
        let found = causes(sets.clone(), rule, json!(vec![["a"]; count]), None);
        !found.is_empty() && found[0].ends_with(SPENT)
    };
    assert!(spends(6_000) && !spends(1_000));
}

/// Rules can create large texts and byte strings, because each operation may double the length.
#[test]
fn created_texts_are_charged() {
    let spends = |rule: &str, bytes: usize| {
        let value = json!({"l": [1, 2, 3], "t": ["y".repeat(bytes), "a"]});
        let found = causes(numbers(), json!({"rule": rule, "message": "m"}), value, None);
        !found.is_empty() && found[0].ends_with(SPENT)
    };
    let doubled = |times: usize| format!("[self.t[0]]{}.size() == 1", ".map(a, a + a)".repeat(times));
    assert!(spends(&doubled(12), 100_000) && !spends(&doubled(3), 100_000));
    let added = |times: usize| format!("({}).size() > 0", ["self.t[0]"].repeat(times).join(" + "));
    assert!(spends(&added(100), 100_000) && !spends(&added(10), 100_000));
    let added = |times: usize| format!("({}).size() > 0", ["bytes(self.t[0])"].repeat(times).join(" + "));
    assert!(spends(&added(100), 100_000) && !spends(&added(10), 100_000));
    let made = "lists.range(500).all(n, bytes(self.t[0]).size() > 0)";
    assert!(spends(made, 1_000_000) && !spends(made, 1_000));
    let replaced = "self.t[0].replace('y', self.t[0]).size() > 0";
    assert!(spends(replaced, 20_000) && !spends(replaced, 1_000));
    assert!(!spends(
        "self.t[0].replace('y', self.t[0], 2).size() == 59998",
        20_000
    ));
    let joined = "self.t[0].split('').join(self.t[0]).size() > 0";
    assert!(spends(joined, 20_000) && !spends(joined, 1_000));
    let padded = "self.l.all(n, '%.999999999f'.format([1.5]).size() > 0)";
    assert!(spends(padded, 1) && !spends("'%.3f'.format([1.5]) == '1.500'", 1));
    let copied = "lists.range(1000).map(n, self.t[0].upperAscii()).size() == 1000";
    assert!(spends(copied, 1_000_000) && !spends(copied, 1_000));
}

#[test]
fn replace_and_join_behave_like_in_kubernetes() {
    let value = || json!({"l": [1], "t": ["a", "bb", ""]});
    for rule in [
        "'hello hello'.replace('he', 'we') == 'wello wello' && 'hello hello'.replace('he', 'we', -1) == 'wello wello'",
        "'hello hello'.replace('he', 'we', 1) == 'wello hello' && 'hello'.replace('he', 'we', 0) == 'hello'",
        "'ab'.replace('', '-') == '-a-b-' && 'ab'.replace('', '-', 2) == '-a-b'",
        "self.t.join() == 'abb' && self.t.join('-') == 'a-bb-' && [].join('x') == ''",
    ] {
        assert!(holds(numbers(), rule, value()), "{rule}");
    }
}

#[test]
fn ordinary_rules_stay_within_the_budget() {
    let many = |count: usize| json!({"l": (0..count).collect::<Vec<_>>()});
    assert!(holds(
        numbers(),
        "self.l.all(a, a >= 0 && a < 1000000)",
        many(20_000)
    ));
    assert!(holds(
        numbers(),
        "self.l.all(a, self.l.exists_one(b, b == a))",
        many(500)
    ));
    assert!(holds(
        numbers(),
        "self.l.map(a, a * 2).all(a, a >= 0)",
        many(2_000)
    ));
    assert!(holds(numbers(), "!self.l.exists(a, a in [-1, -2])", many(10_000)));
}

#[test]
fn metering_does_not_change_results() {
    let value = || json!({"l": [3, 1, 2], "t": ["a", "bb"]});
    for rule in [
        "self.l.filter(a, a > 1).size() == 2 && self.l.filter(a, a > 1)[0] == 3",
        "self.t.map(a, a + 'x') == ['ax', 'bbx']",
        "self.t.map(a, a.size() > 1, a.upperAscii()) == ['BB']",
        "self.t.exists(a, self.l.exists(b, a.size() == b && has(self.t)))",
        "self.l.exists_one(a, a in [3, 4])",
        "{'k': self.l}.all(k, k == 'k')",
        "sets.equivalent(self.l, [1, 2, 3]) && self.l.distinct().size() == 3",
        "self.l.all(a, optional.of(a).hasValue() && [quantity('1Gi')].all(q, q.isGreaterThan(quantity('1Mi'))))",
        "dyn(self.l[0]) == 3",
    ] {
        assert!(holds(numbers(), rule, value()), "{rule}");
    }
}

#[test]
fn size_counts_characters_and_patterns_are_re2() {
    let text = || json!({"type": "string"});
    assert!(holds(
        text(),
        "self.size() == 1 && size(self) <= 1",
        json!("\u{e9}")
    ));
    assert!(holds(text(), "self.matches('^\\\\w+$')", json!("abc")));
    assert!(!holds(text(), "self.matches('^\\\\w+$')", json!("\u{e9}")));
    assert!(!holds(text(), "self.matches('\\\\d')", json!("\u{0663}")));
}

#[test]
fn compares_types() {
    let anything = || {
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
        "p": {"x-kubernetes-int-or-string": true}}})
    };
    let rule = "type(self.p) == string ? self.p.size() > 0 : type(self.p) == int && type(self) == map";
    assert!(holds(anything(), rule, json!({"p": "a"})));
    assert!(holds(anything(), rule, json!({"p": 7})));
    assert!(!holds(anything(), rule, json!({"p": ""})));
    assert!(holds(
        anything(),
        "string(self.p) == '7' && int('7') == self.p",
        json!({"p": 7})
    ));
}

#[test]
fn rejects_undeclared_functions() {
    let rejected = |rule: &str| {
        let schema = json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}]});
        let errors = StructuralSchema::compile("s", &schema, false)
            .err()
            .unwrap_or_default();
        errors.first().map(FieldError::summary).unwrap_or_default()
    };
    for rule in ["undefined(self)", "self.undefined()", "sets.undefined(1) > 0"] {
        let found = rejected(rule);
        assert!(
            found.contains("undeclared reference to 'undefined'"),
            "{rule}: {found}"
        );
    }
    for rule in ["cel.bind(x, 1, x == 1)", "Foo{a: 1} == self"] {
        assert!(rejected(rule).contains("undeclared reference"), "{rule}");
    }
    for rule in ["namespace == 'a'", "let(1)", "[1].all(for, for == 1)"] {
        assert!(rejected(rule).contains("reserved identifier: "), "{rule}");
    }
    for rule in [
        "sets.contains([1], [1]) && optional.none().hasValue()",
        "[1].isSorted() && 'a'.matches('a') && size('a') == 1 && has(self.metadata)",
        "url('https://a').getHost() == 'a' && isIP('::1') && format.dns1123Label().validate('a').hasValue()",
    ] {
        assert_eq!(rejected(rule), "", "{rule}");
    }
}

/// Examples of the CEL specification: fields of timestamps, with and without a time zone.
#[test]
fn timestamps_have_fields_in_time_zones() {
    for rule in [
        "timestamp('2009-02-13T23:31:30Z').getHours() == 23",
        "timestamp('2009-02-13T23:31:30Z').getHours('America/Phoenix') == 16",
        "timestamp('2009-02-13T23:31:30Z').getMonth() == 1",
        "timestamp('2009-02-13T23:31:30Z').getDate() == 13",
        "timestamp('2009-02-13T23:31:30Z').getDate('Australia/Sydney') == 14",
        "timestamp('2009-02-13T23:31:30Z').getDayOfMonth() == 12",
        "timestamp('2009-02-13T23:31:30Z').getDayOfWeek('UTC') == 5",
        "timestamp('2009-02-13T23:31:30Z').getHours('+11:00') == 10",
        "duration('10000s').getHours() == 2",
    ] {
        assert!(holds(json!({"type": "string"}), rule, json!("x")), "{rule}");
    }
    let rule = json!({"rule": "timestamp('2009-02-13T23:31:30Z').getHours(self) >= 0", "message": "m"});
    let found = causes(json!({"type": "string"}), rule, json!("Mars/Base"), None);
    assert_eq!(
        found,
        [r#"spec: Invalid value: "string": unknown time zone Mars/Base evaluating rule: m"#]
    );
}

#[test]
fn macros_have_two_variables() {
    let value = || json!({"l": [3, 1, 2], "t": ["a", "bb"]});
    for rule in [
        "self.l.all(i, n, i < 3 && n > 0) && !self.l.exists(i, n, i == n + 5)",
        "self.l.exists(i, n, i == 1 && n == 1) && self.l.existsOne(i, n, n > i + 1)",
        "self.t.exists_one(i, t, t.size() == 2 && self.l.all(j, n, n > i - 5 && j >= 0))",
        "self.l.transformList(i, n, n * 10 + i) == [30, 11, 22]",
        "self.l.transformList(i, n, n > 1, i) == [0, 2]",
        "self.t.transformMap(i, t, t + '!') == {0: 'a!', 1: 'bb!'}",
        "self.l.transformMap(i, n, n > 1, n) == {0: 3, 2: 2}",
        "self.t.transformMapEntry(i, t, {t: i}) == {'a': 0, 'bb': 1}",
        "{'x': 1, 'y': 2}.transformList(k, v, k + string(v)) == ['x1', 'y2']",
        "{'x': 1}.all(k, v, k == 'x' && v == 1) && {'x': {'y': 1}}.all(k, v, v.all(k, w, k == 'y' && w == 1))",
        "self.l.all(i, n, [7].all(n, n == 7) && n < 4)",
        "optional.of(self.t).optMap(t, t.size()).value() == 2 && !optional.none().optMap(t, t).hasValue()",
        "optional.of(self.l).optFlatMap(l, l[?1]).orValue(0) == 1",
        "self.?t.optMap(t, t[0] + 'x').orValue('') == 'ax'",
    ] {
        assert!(holds(numbers(), rule, value()), "{rule}");
    }
    let rule = "['a', 'a'].transformMapEntry(i, t, {t: i}).size() == 1";
    let found = causes(numbers(), json!({"rule": rule}), value(), None);
    assert!(
        found[0].contains("insert failed: key a already exists"),
        "{found:?}"
    );
}

#[test]
fn macros_with_two_variables_stay_within_the_budget() {
    let many = json!({"l": (0..3_000).collect::<Vec<_>>()});
    let rule = "self.l.all(i, a, self.l.all(j, b, self.l.all(k, c, a + b + c + i + j + k >= 0)))";
    let found = causes(numbers(), json!({"rule": rule}), many, None);
    assert!(found[0].contains("out of cost budget"), "{found:?}");
}

#[test]
fn named_formats_are_optional() {
    for rule in [
        "format.named('dns1123Label').value().validate('a-b') == optional.none()",
        "!format.named('bogus').hasValue() && format.named('uuid').hasValue()",
    ] {
        assert!(holds(json!({"type": "string"}), rule, json!("x")), "{rule}");
    }
}

mod numbers;
mod values;
