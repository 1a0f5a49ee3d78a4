//! Error texts and matching rules of selectors.

use super::*;
use serde_json::json;

fn matches(selector: &str, labels: Value) -> bool {
    LabelSelector::parse(selector)
        .unwrap()
        .matches(&json!({"metadata": {"labels": labels}}))
}

#[test]
fn label_selectors_match_like_kubernetes() {
    let check = |selector: &str, yes: Value, no: Value| {
        assert!(matches(selector, yes.clone()), "{selector} should match {yes}");
        assert!(!matches(selector, no.clone()), "{selector} should not match {no}");
    };
    check("a=b", json!({"a": "b"}), json!({"a": "c"}));
    check("a==b,c=d", json!({"a": "b", "c": "d"}), json!({"a": "b"}));
    check("a!=b", json!({}), json!({"a": "b"}));
    check("a in (x, y)", json!({"a": "y"}), json!({}));
    check("a notin (x,y)", json!({}), json!({"a": "x"}));
    check("a", json!({"a": ""}), json!({}));
    check("!a", json!({}), json!({"a": ""}));
    check("a=", json!({"a": ""}), json!({"a": "b"}));
    check("a in ()", json!({"a": ""}), json!({"a": "b"}));
    check("a>5", json!({"a": "6"}), json!({"a": "5"}));
    check("in in (notin)", json!({"in": "notin"}), json!({"in": "x"}));
    check("example.com/x=1", json!({"example.com/x": "1"}), json!({}));
    assert!(matches("", json!({})));
}

#[test]
fn selector_objects_match_like_their_text() {
    let matches = |selector: Value, labels: Value| {
        let selector = LabelSelector::of_object(&selector).unwrap();
        selector.matches(&json!({"metadata": {"labels": labels}}))
    };
    assert!(matches(json!({}), json!({})));
    let equal = json!({"matchLabels": {"a": "b"}});
    assert!(matches(equal.clone(), json!({"a": "b"})) && !matches(equal, json!({"a": "c"})));
    let one = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]});
    for (selector, yes, no) in [
        (one("In", &["x", "y"]), json!({"a": "y"}), json!({})),
        (one("NotIn", &["x"]), json!({}), json!({"a": "x"})),
        (one("Exists", &[]), json!({"a": ""}), json!({})),
        (one("DoesNotExist", &[]), json!({}), json!({"a": ""})),
    ] {
        assert!(matches(selector.clone(), yes), "{selector}");
        assert!(!matches(selector.clone(), no), "{selector}");
    }
    for selector in [
        one("Near", &["x"]),
        one("In", &[]),
        json!({"matchLabels": {"-": "x"}}),
    ] {
        assert!(LabelSelector::of_object(&selector).is_err(), "{selector}");
    }
}

#[test]
fn label_selector_errors_match_kubernetes_wording() {
    let check = |selector: &str, expect: &str| {
        assert_eq!(
            LabelSelector::parse(selector).unwrap_err().to_string(),
            expect,
            "{selector}"
        );
    };
    check("a in x", "unable to parse requirement: found 'x' expected: '('");
    check("a,,b", "found ',', expected: identifier after ','");
    check("=a", "found '=', expected: !, identifier, or 'end of string'");
    check(
        "a b",
        "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
    );
    check("a=b c", "found 'c', expected: ',' or 'end of string'");
    check("!=b", "found '!=', expected: !, identifier, or 'end of string'");
    check(
        "a=-b",
        r#"unable to parse requirement: values[0][a]: Invalid value: "-b": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"#,
    );
    check(
        "-a=b",
        r#"unable to parse requirement: <nil>: Invalid value: "-a": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"#,
    );
}

#[test]
fn field_selectors_compare_text_values() {
    let field = |field: &str| {
        let text = match field {
            "metadata.name" => "a,b",
            "spec.n" => "3",
            "spec.on" => "true",
            _ => "",
        };
        text.to_owned()
    };
    let check = |selector: &str, expect: bool| {
        assert_eq!(
            FieldSelector::parse(selector).unwrap().matches_with(field),
            expect,
            "{selector}"
        );
    };
    check(r"metadata.name=a\,b", true);
    check("metadata.name!=a", true);
    check("spec.n==3,spec.on=true", true);
    check("spec.absent=", true);
    check("spec.n!=3", false);
    check("", true);
    assert_eq!(
        FieldSelector::parse("a=b,metadata.name").unwrap_err().to_string(),
        "invalid selector: 'a=b,metadata.name'; can't understand 'metadata.name'"
    );
    assert_eq!(FieldSelector::parse("a!=b,c=d").unwrap().exact("c"), Some("d"));
    assert_eq!(FieldSelector::parse("a!=b").unwrap().exact("a"), None);
}

#[test]
fn required_texts_are_in_the_json_of_selected_objects() {
    let fields = FieldSelector::parse(r"spec.n=3,spec.m!=4,spec.a=b\,c").unwrap();
    assert_eq!(fields.required_texts().collect::<Vec<_>>(), ["3"]);
}

proptest::proptest! {
    #[test]
    fn parsing_never_panics(text in "[ a=!,()<>inot\\\\-]{0,24}") {
        let _ = LabelSelector::parse(&text);
        let _ = FieldSelector::parse(&text);
    }

    #[test]
    fn notin_matches_exactly_when_in_does_not(label in proptest::option::of("[ab]{0,2}")) {
        let labels = label.map_or_else(|| json!({}), |label| json!({"k": label}));
        proptest::prop_assert_ne!(matches("k in (a,b,)", labels.clone()), matches("k notin (a,b,)", labels));
    }

    #[test]
    fn labels_as_text_match_like_parsed_ones(
        labels in proptest::collection::btree_map("[a-c]{1,2}", "[ab1]{0,2}", 0..3),
        selector in "(a|b|!c|a=b|a!=1|b in \\(a,b1\\)|c notin \\(1\\)|a>0)(,(b|!a|c=1))?",
    ) {
        let object = json!({"metadata": {"labels": labels, "name": "n"}, "kind": "K"});
        let text = object.to_string();
        let located = locate_labels(text.as_bytes()).map(|place| &text.as_bytes()[place]);
        let selector = LabelSelector::parse(&selector).unwrap();
        proptest::prop_assert_eq!(selector.matches_text(located.unwrap_or_default()), Some(selector.matches(&object)));
    }
}
