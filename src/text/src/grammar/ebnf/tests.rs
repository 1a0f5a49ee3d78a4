use std::sync::Arc;

use super::*;
use crate::grammar::Grammar;
use crate::grammar::tests::{accepts, walk};

fn build(text: &str) -> Result<Arc<Grammar>, EbnfError> {
    let mut builder = Builder::new();
    let start = ebnf_rule(&mut builder, text)?;
    Ok(Arc::new(builder.finish(start)?))
}

fn check(text: &str, accepted: &[&str], rejected: &[&str]) {
    let grammar = build(text).unwrap_or_else(|err| panic!("{text}: {err}"));
    for answer in accepted {
        assert!(accepts(&grammar, answer), "{answer:?} of {text}");
    }
    for answer in rejected {
        assert!(!accepts(&grammar, answer), "{answer:?} of {text}");
    }
}

/// The grammar is the example of vLLM's documentation of structured outputs.
#[test]
fn accepts_sql_example_of_vllm() {
    let text = r#"
        root ::= select_statement

        select_statement ::= "SELECT " column " from " table " where " condition

        column ::= "col_1 " | "col_2 "

        table ::= "table_1 " | "table_2 "

        condition ::= column "= " number

        number ::= "1 " | "2 "
    "#;
    check(
        text,
        &["SELECT col_1  from table_2  where col_2 = 1 "],
        &["SELECT col_3  from table_2  where col_2 = 1 ", "SELECT ", ""],
    );
}

/// The grammar is similar to llama.cpp's `arithmetic.gbnf`.
#[test]
fn nested_rules_have_no_depth_limit() {
    let text = r#"
        root  ::= (expr "=" ws term "\n")+
        expr  ::= term ([-+*/] term)*
        term  ::= ident | num | "(" ws expr ")" ws
        ident ::= [a-z] [a-z0-9_]* ws # a name
        num   ::= [0-9]+ ws
        ws    ::= [ \t\n]*
    "#;
    let deep = format!("{}1{}=2\n", "(".repeat(500), ")".repeat(500));
    check(
        text,
        &["x+1=2\n", "a_1 *(2 -b)= c\ny=1\n", &deep],
        &["x+=2\n", "(1=2\n", "1A=2\n"],
    );
}

/// The syntax is that of llama.cpp's grammars.
#[test]
fn supports_operators_classes_and_escapes() {
    let cases: [(&str, &[&str], &[&str]); 14] = [
        (r#"root ::= "a"{3}"#, &["aaa"], &["aa", "aaaa"]),
        (r#"root ::= "a"{2,}"#, &["aa", "aaaaa"], &["a"]),
        (r#"root ::= "a"{0,2}"#, &["", "a", "aa"], &["aaa"]),
        (
            r#"root ::= ("a" | "b")* "c"?"#,
            &["", "abba", "bc"],
            &["cc", "ca"],
        ),
        (r#"root ::= [^\n"]+"#, &["aé😀"], &["", "a\n", "\""]),
        (r#"root ::= [a-cx\]^-]"#, &["b", "x", "]", "^", "-"], &["d", "["]),
        (r#"root ::= "\x41\u00e9\U0001F600\"\\""#, &["Aé😀\"\\"], &["A"]),
        (r#"root ::= [\u3040-\u309f]{2}"#, &["ひら"], &["ひA", "ひ"]),
        ("root ::= . .", &["ab", "é\n"], &["a", "abc"]),
        ("root ::= my-rule_2\nmy-rule_2 ::= \"a\"", &["a"], &["b"]),
        (
            "root ::= (\n  \"a\" | # first\n  \"b\"\n)\n  \"c\"",
            &["ac", "bc"],
            &["a", "abc"],
        ),
        ("root ::= \"a\" |", &["a"], &["b"]),
        ("root ::= (\"a\"?){3} \"b\"", &["b", "ab", "aaab"], &["aaaab"]),
        ("root ::= a\na::=\"#\"\n# end", &["#"], &["a"]),
    ];
    for (text, accepted, rejected) in cases {
        check(text, accepted, rejected);
    }
}

#[test]
fn direct_left_recursion_becomes_repetition() {
    check(
        "root ::= root \"+\" num | root \"-\" num | num\nnum ::= [0-9]",
        &["1", "1+2", "1-2+3-4"],
        &["+1", "1+", "12"],
    );
    check(
        "root ::= root root | \"a\" | root",
        &["a", "aa", "aaaa"],
        &["", "b"],
    );
}

#[test]
fn rejects_left_recursion_through_other_rules() {
    for (text, rule) in [
        ("root ::= a\na ::= b \"x\" | \"y\"\nb ::= a \"z\"", ["a", "b"]),
        ("root ::= \"x\"? root \"y\" | \"z\"", ["root", "root"]),
        ("root ::= ws root \"y\" | \"z\"\nws ::= \" \"*", ["root", "root"]),
        ("root ::= (root \"+\")* \"z\"", ["root", "root"]),
    ] {
        match build(text) {
            Err(EbnfError::LeftRecursive(name)) => assert!(rule.contains(&name.as_str()), "{name}: {text}"),
            other => panic!("{other:?} of {text}"),
        }
    }
}

#[test]
fn branches_without_end_are_removed() {
    check(
        "root ::= \"a\" endless | \"b\"\nendless ::= \"c\" endless",
        &["b"],
        &["a", "ac"],
    );
    let grammar = build("root ::= \"a\" endless | \"b\"\nendless ::= \"c\" endless").unwrap();
    assert_eq!(walk(&grammar, 1), "b");
    assert_eq!(build("root ::= \"a\" root"), Err(EbnfError::Empty));
    assert_eq!(build("root ::= []"), Err(EbnfError::Empty));
}

#[test]
fn generated_texts_match_their_grammar() {
    let text = r#"root ::= list
        list ::= "[" ws (value ("," ws value)*)? "]" ws
        value ::= list | [0-9]{1,3} ws | "\"" [^"\\]* "\"" ws
        ws ::= " "?"#;
    let grammar = build(text).unwrap();
    for seed in 0..50 {
        let text = walk(&grammar, seed);
        assert!(accepts(&grammar, &text), "{text}");
    }
}

#[test]
fn errors_name_line_or_rule() {
    for (text, expected) in [
        ("", "the rule 'root' is not defined"),
        ("root ::= a", "the rule 'a' is not defined"),
        (
            "root ::= \"a\"\nroot ::= \"b\"",
            "the rule 'root' is defined twice",
        ),
        ("root ::= \"a", "line 1: a text has no closing '\"'"),
        (
            "root ::= \"a\"\n\nb ::= [a",
            "line 3: a character class has no ']'",
        ),
        (
            "root ::= [b-a]",
            "line 1: a range of characters ends before it begins",
        ),
        ("root ::= (\"a\"", "line 1: a group has no ')'"),
        (
            "root ::= \"a\")",
            "line 1: expected a rule 'name ::= …', found ')'",
        ),
        ("root ::= *", "line 1: unexpected '*'"),
        ("root ::= \"\\q\"", "line 1: unknown escape '\\q'"),
        (
            "root ::= \"\\ud800\"",
            "line 1: an escape needs 4 hexadecimal digits of a character",
        ),
        (
            "root ::= \"a\"{3,2}",
            "line 1: the maximum number of repetitions is less than the minimum",
        ),
        (
            "root ::= \"a\"{99999}",
            "line 1: a number of repetitions must be an integer from 0 to 10000",
        ),
        (
            "root ::= \"a\" (= \"b\")",
            "line 1: a lookahead assertion is not supported",
        ),
        ("root ::= <[1]>", "line 1: a token such as <[1]> is not supported"),
        (
            "start: \"a\"",
            "line 1: expected a rule 'name ::= …', found 'start: \\\"a\\\"'",
        ),
    ] {
        assert_eq!(build(text).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn sizes_are_limited() {
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(60), ")".repeat(60));
    assert!(matches!(build(&deep), Err(EbnfError::Syntax { .. })));
    let deepest = format!("root ::= {}\"a\"{}", "(".repeat(50), ")".repeat(50));
    assert!(build(&deepest).is_ok());
    assert_eq!(
        build(&format!("root ::= \"{}\"", "a".repeat(100_001))),
        Err(EbnfError::TooLong)
    );
    let many: String = (0..2001).map(|rule| format!("r{rule} ::= \"a\"\n")).collect();
    assert_eq!(build(&many), Err(EbnfError::TooManyRules));
    // Each level doubles nothing: rules are shared.
    let shared: String = (0..1000)
        .map(|rule| format!("r{rule} ::= r{} r{}\n", rule + 1, rule + 1))
        .collect();
    let shared = format!("root ::= r0 \"x\"\n{shared}r1000 ::= \"\" | \"a\"\n");
    assert!(build(&shared).is_ok());
    let large = format!("root ::= {}", "[\\u0080-\\uffff] ".repeat(6000));
    assert!(build(&large).is_ok());
}
