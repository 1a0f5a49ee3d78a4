use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Number;

use super::constraint::Constraint;
use super::matcher::{Automaton, DEAD, StateId};
use super::numbers::{Bound, integers, numbers};
use super::regex::{Encoding, RegexRules, parsed};
use super::unique::UniqueItems;
use super::vocabulary::Vocabulary;
use super::*;
use crate::tokenizer::Tokenizer;

pub(super) fn grammar(build: impl FnOnce(&mut Builder) -> NodeId) -> Arc<Grammar> {
    let mut builder = Builder::new();
    let start = build(&mut builder);
    Arc::new(builder.finish(start).unwrap())
}

pub(super) fn accepts(grammar: &Arc<Grammar>, text: &str) -> bool {
    let mut automaton = Automaton::new(Arc::clone(grammar)).unwrap();
    let (start, mut items) = (automaton.start(), UniqueItems::default());
    let end = automaton.read_unique(start, text.as_bytes(), &mut items).unwrap();
    automaton.positions(end).is_accepting()
}

/// Returns true if these bytes are permitted next.
fn fits(automaton: &mut Automaton, state: StateId, bytes: &[u8]) -> bool {
    automaton.read(state, bytes).unwrap() != DEAD
}

/// Generates a text of the grammar, determined by `seed`. The text ends early with some
/// probability.
pub(super) fn walk(grammar: &Arc<Grammar>, seed: u64) -> String {
    let mut automaton = Automaton::new(Arc::clone(grammar)).unwrap();
    let mut state = automaton.start();
    let (mut text, mut random) = (Vec::new(), seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) as usize % below
    };
    loop {
        let bytes: Vec<u8> = (0..=u8::MAX)
            .filter(|byte| fits(&mut automaton, state, &[*byte]))
            .collect();
        if automaton.positions(state).is_accepting() && (bytes.is_empty() || next(4) == 0) {
            return String::from_utf8(text).unwrap();
        }
        // Quotes and brackets end repetitions.
        let ends: Vec<u8> = bytes
            .iter()
            .copied()
            .filter(|byte| b"\"}]".contains(byte))
            .collect();
        let byte = match ends[..] {
            [end, ..] if next(3) == 0 => end,
            _ => bytes[next(bytes.len())],
        };
        state = automaton.step(state, byte).unwrap();
        text.push(byte);
    }
}

#[test]
fn repetitions_share_their_nodes() {
    let grammar = grammar(|builder| {
        let a = builder.literal(b"a", RETURN);
        builder.repeat(a, 3, Some(50_000), RETURN)
    });
    assert!(grammar.nodes.len() < 10);
    for (count, expected) in [(0, false), (2, false), (3, true), (50_000, true), (50_001, false)] {
        assert_eq!(accepts(&grammar, &"a".repeat(count)), expected, "{count}");
    }
}

#[test]
fn until_ends_at_first_marker() {
    let until = grammar(|builder| {
        let end = builder.literal(b"!", RETURN);
        builder.until(b"<<a>", end)
    });
    for text in ["<<a>!", "x<<<a>!", "<a><<a>!", "é<<<<a>!"] {
        assert!(accepts(&until, text), "{text}");
    }
    for text in ["<<a>x<<a>!", "<<a>", "!", "<<a!"] {
        assert!(!accepts(&until, text), "{text}");
    }
    let mut automaton = Automaton::new(until).unwrap();
    let start = automaton.start();
    assert!(
        !fits(&mut automaton, start, &[SPECIAL, b'x']),
        "text does not match a special token"
    );
}

#[test]
fn text_without_marker_ends_at_any_position() {
    let without = grammar(|builder| {
        let end = builder.literal(b"<a>!", RETURN);
        let end = builder.optional(end, RETURN);
        builder.without(b"<a>", end)
    });
    for text in ["", "<", "<a", "x<b>", "<<a>!", "<a>!", "<a<a>!"] {
        assert!(accepts(&without, text), "{text}");
    }
    for text in ["<a>", "x<a>y", "<a>!x", "<a><a>!"] {
        assert!(!accepts(&without, text), "{text}");
    }
}

#[test]
fn rejects_grammar_with_too_many_positions() {
    let grammar = grammar(|builder| {
        let a = builder.literal(b"a", RETURN);
        let some = builder.repeat(a, 0, Some(90_000), RETURN);
        builder.repeat(some, 0, Some(90_000), RETURN)
    });
    let ended =
        Automaton::new(grammar).and_then(|mut automaton| automaton.read(automaton.start(), &[b'a'; 100]));
    assert!(ended.is_err());
}

pub(super) fn matching(pattern: &str) -> Arc<Grammar> {
    let hir = parsed(pattern).unwrap();
    grammar(|builder| {
        let mut rules = RegexRules {
            builder,
            encoding: Encoding::Plain,
        };
        rules.whole(&hir).unwrap()
    })
}

#[test]
fn character_classes_follow_ecma_262() {
    let word = matching("\\w\\d?[^\\D]");
    assert!(accepts(&word, "a12") && accepts(&word, "_3"));
    assert!(!accepts(&word, "é1") && !accepts(&word, "a٣"));
    assert!(accepts(&matching("\\S\\s\\W"), "é\u{a0}!"));
}

#[test]
fn class_operators_are_only_negation_and_ranges() {
    let each = |class: &str, good: &str, bad: &str| {
        let grammar = matching(class);
        let all = |text: &str, fits| {
            for c in text.chars() {
                assert_eq!(accepts(&grammar, &c.to_string()), fits, "{c:?} of {class}");
            }
        };
        all(good, true);
        all(bad, false);
    };
    each("[a-c&&x]", "abc&x", "d");
    each("[a~~b]", "a~b", "}");
    each("[!--]", "!#-", ".a");
    each("[--/]", "-./", ",0");
    each("[-a-]", "-a", "b");
    each("[\\w-.]", "a-.", "/");
    each("[\\p{L}-.]", "é-.", "/");
    each("[a-\\d]", "a-5", "b");
    each("[a-c-e]", "abc-e", "d");
    each("[\\u0041-\\u005a]", "AZ", "a");
    each("[^[&]", "a", "[&");
    each("[^]", "a\n", "");
    each(".", "aé\u{85}", "\n\r\u{2028}\u{2029}");
    let posix = matching("[[:digit:]]");
    assert!(accepts(&posix, ":]") && !accepts(&posix, "5"));
}

#[test]
fn drops_unsatisfiable_branches() {
    for pattern in ["a[^\\s\\S]", "[]", "(a[]|[])b", "([]){2}", "(?=[])a"] {
        assert_eq!(
            parsed(pattern).unwrap_err(),
            super::regex::RegexError::Empty,
            "{pattern}"
        );
    }
    let branches = matching("(a[]|b?){2,3}(c[])?(?![])d[]*");
    for (text, fits) in [
        ("d", true),
        ("bbbd", true),
        ("ad", false),
        ("bcd", false),
        ("bbbbd", false),
    ] {
        assert_eq!(accepts(&branches, text), fits, "{text}");
    }
}

#[test]
fn small_integer_ranges_are_complete() {
    let edges = [-111, -100, -99, -10, -9, -1, 0, 1, 5, 9, 10, 11, 99, 100, 105];
    for (min, max) in edges
        .iter()
        .flat_map(|min| edges.iter().map(move |max| (*min, *max)))
    {
        let bounds = [min, max].map(|value: i32| Bound::new(&value.into(), false).unwrap());
        let mut builder = Builder::new();
        let rule = integers(&mut builder, Some(&bounds[0]), Some(&bounds[1]));
        assert_eq!(rule.is_some(), min <= max, "{min}..={max}");
        let Some(rule) = rule else { continue };
        let mut automaton = Automaton::new(Arc::new(builder.finish(rule).unwrap())).unwrap();
        for value in -120..=120 {
            let end = automaton
                .read(automaton.start(), value.to_string().as_bytes())
                .unwrap();
            let accepted = automaton.positions(end).is_accepting();
            assert_eq!(accepted, (min..=max).contains(&value), "{value} in {min}..={max}");
        }
    }
}

#[test]
fn ranges_of_all_doubles_are_small_and_exact() {
    for (largest, less) in [
        (f64::from(f32::MAX), f64::from(f32::MAX) / 2.0),
        (f64::MAX, 1e-300),
    ] {
        let bound = |value: f64| Bound::new(&Number::from_f64(value).unwrap().into(), false).unwrap();
        let numbers =
            grammar(|builder| numbers(builder, Some(&bound(-largest)), Some(&bound(largest))).unwrap());
        assert!(numbers.nodes.len() < 10_000, "{} nodes", numbers.nodes.len());
        let text = |value: f64| format!("{value}");
        for good in [0.0, 1.5, -less, less, largest, -largest] {
            assert!(accepts(&numbers, &text(good)), "{good}");
        }
        for bad in [format!("{largest}.1"), format!("-{}0", text(largest))] {
            assert!(!accepts(&numbers, &bad), "{bad}");
        }
    }
}

pub(super) fn guide() -> Tokenizer {
    let file = concat!(
        concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
        "/examples/models/guide/tokenizer.json"
    );
    Tokenizer::new(&std::fs::read(file).unwrap(), None, None, &[1]).unwrap()
}

#[test]
fn masks_agree_with_automaton() {
    let tokenizer = guide();
    let vocabulary = Arc::new(Vocabulary::new(&tokenizer, 1024).unwrap());
    let json = grammar(|builder| super::json::Rules::new(builder).object);
    let mut constraint = Constraint::new(Arc::clone(&json), Arc::clone(&vocabulary)).unwrap();
    let mut automaton = Automaton::new(json).unwrap();
    let mut state = automaton.start();
    for token in tokenizer.encode_chat("{\"a\": [1, \"the \\u00e9\"]}").unwrap() {
        let mask = constraint.mask().unwrap();
        for other in 0..1024 {
            let bytes = tokenizer.standalone_bytes(other);
            let fits =
                !bytes.is_empty() && !tokenizer.is_special(other) && fits(&mut automaton, state, &bytes);
            assert_eq!(mask.allows(other), fits, "token {other}");
        }
        assert!(mask.allows(token));
        constraint.accept(token).unwrap();
        state = automaton.read(state, &tokenizer.standalone_bytes(token)).unwrap();
    }
    assert!(constraint.is_complete());
    let mask = constraint.mask().unwrap();
    let allowed: Vec<u32> = (0..1024).filter(|token| mask.allows(*token)).collect();
    assert_eq!(allowed, [1], "only the end-of-sequence token is permitted");
    assert!(constraint.accept(5).is_err());
}

/// Grammars in which plain text is permitted at no, some or all positions.
fn with_plain_text(which: usize) -> Arc<Grammar> {
    match which {
        0 => grammar(|builder| super::json::Rules::new(builder).value),
        1 => matching("[^\"]{0,9}"),
        2 => matching("(a|[^a]{3,20})x*"),
        3 => matching("[ -~]*|é+"),
        4 => grammar(|builder| builder.until(b"</a>", RETURN)),
        _ => matching("\\w{2,}\\W?.*"),
    }
}

#[test]
fn plain_text_respects_length_limit() {
    let tokens: Vec<Vec<u8>> = (1..=40).map(|length| "é".repeat(length).into_bytes()).collect();
    let vocabulary = Arc::new(Vocabulary::of(tokens, vec![]));
    for most in 1..=40 {
        let bounded = matching(&format!("(.|\n){{0,{most}}}b?"));
        let mask = Constraint::new(bounded, Arc::clone(&vocabulary))
            .unwrap()
            .mask()
            .unwrap();
        let allowed = (0..40).filter(|token| mask.allows(*token)).count();
        assert_eq!(allowed, most);
    }
}

proptest! {
    /// Includes plain tokens, which are not walked, and tokens with the same bytes.
    #[test]
    fn masks_of_any_vocabulary_agree_with_automaton(
        which in 0_usize..6,
        tokens in proptest::collection::vec(
            prop_oneof![
                "[a-c\"é]{1,3}".prop_map(String::into_bytes),
                "[ -~é☃😀]{1,20}".prop_map(String::into_bytes),
                proptest::collection::vec(any::<u8>(), 0..4),
            ],
            1..40,
        ),
        choices in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let vocabulary = Arc::new(Vocabulary::of(tokens.clone(), vec![]));
        let grammar = with_plain_text(which);
        let mut automaton = Automaton::new(Arc::clone(&grammar)).unwrap();
        let mut state = automaton.start();
        let mut constraint = Constraint::new(grammar, vocabulary).unwrap();
        for choice in choices {
            let fitting: Vec<bool> = tokens
                .iter()
                .map(|bytes| !bytes.is_empty() && fits(&mut automaton, state, bytes))
                .collect();
            let masked = constraint.clone().mask().map_or(vec![false; tokens.len()], |mask| {
                let mut allowed = Vec::new();
                mask.append_to(&mut allowed);
                allowed
            });
            prop_assert_eq!(&masked, &fitting);
            let allowed: Vec<usize> = (0..tokens.len()).filter(|token| fitting[*token]).collect();
            if allowed.is_empty() {
                break;
            }
            let token = *choice.get(&allowed);
            constraint.accept(u32::try_from(token).unwrap()).unwrap();
            state = automaton.read(state, &tokens[token]).unwrap();
        }
    }

    #[test]
    fn expressions_agree_with_regex_crate(
        pattern in prop_oneof![
            Just("a*b?"), Just("(a|bc){2,3}"), Just("^[^a]+$"), Just("a.c|b"), Just("(ab?)*c"),
            Just("é+|(a|b){0,2}$"), Just("(a?){2}b"), Just("[a-cé]{1,}"),
        ],
        text in "[abc1é]{0,6}",
    ) {
        let reference = ::regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
        prop_assert_eq!(accepts(&matching(pattern), &text), reference.is_match(&text), "{} {}", pattern, text);
    }

    #[test]
    fn integer_rule_matches_its_range(
        min in proptest::option::of((-1200_i32..1200, any::<bool>())),
        max in proptest::option::of((-1200_i32..1200, any::<bool>())),
        near in -3_i32..4, of_min: bool, other in -2000_i32..2000,
    ) {
        let bound = |(value, exclusive): (i32, bool)| Bound::new(&value.into(), exclusive).unwrap();
        let (least, most) = (min.map(bound), max.map(bound));
        let inside = |value: i32| {
            min.is_none_or(|(min, exclusive)| value > min || (value == min && !exclusive))
                && max.is_none_or(|(max, exclusive)| value < max || (value == max && !exclusive))
        };
        let mut builder = Builder::new();
        let rule = integers(&mut builder, least.as_ref(), most.as_ref());
        let grammar = rule.map(|rule| Arc::new(builder.finish(rule).unwrap()));
        let edge = if of_min { min } else { max }.map_or(0, |(value, _)| value);
        for value in [edge + near, other] {
            let accepted = grammar.as_ref().is_some_and(|grammar| accepts(grammar, &value.to_string()));
            prop_assert_eq!(accepted, inside(value), "{} in {:?}..{:?}", value, min, max);
        }
    }

    #[test]
    fn wide_integer_ranges_are_exact(
        one: i64, other: i64, shift in 0_u32..63, near in -3_i128..4, of_min: bool, exclusive: bool, value: i64,
    ) {
        let (min, max) = (one.min(other) >> shift, one.max(other));
        let bounds = [min, max].map(|value| Bound::new(&value.into(), exclusive).unwrap());
        let mut builder = Builder::new();
        let rule = integers(&mut builder, Some(&bounds[0]), Some(&bounds[1]));
        let grammar = rule.map(|rule| Arc::new(builder.finish(rule).unwrap()));
        prop_assert!(grammar.as_ref().is_none_or(|grammar| grammar.nodes.len() < 1_000));
        let (min, max) = (i128::from(min), i128::from(max));
        for value in [if of_min { min } else { max } + near, value.into(), i128::from(value) >> shift] {
            let inside = if exclusive { min < value && value < max } else { min <= value && value <= max };
            let accepted = grammar.as_ref().is_some_and(|grammar| accepts(grammar, &value.to_string()));
            prop_assert_eq!(accepted, inside, "{} in {}..{}", value, min, max);
        }
    }

    #[test]
    fn number_rule_matches_its_range(
        min in proptest::option::of((-1500_i32..1500, any::<bool>())),
        max in proptest::option::of((-1500_i32..1500, any::<bool>())),
        scale in prop_oneof![Just(1), Just(10), Just(100), Just(1000)],
        near in -12_i32..13, of_min: bool, other in -20_000_i32..20_000, zeros in 0_usize..3,
    ) {
        // Units of a ten-thousandth keep all values exact.
        let unit = 10_000 / scale;
        let bound = |(value, exclusive): (i32, bool)| {
            let value = Number::from_f64(f64::from(value) / f64::from(scale)).unwrap();
            Bound::new(&value.into(), exclusive).unwrap()
        };
        let (least, most) = (min.map(bound), max.map(bound));
        let inside = |value: i32| {
            min.is_none_or(|(min, exclusive)| value > min * unit || (value == min * unit && !exclusive))
                && max.is_none_or(|(max, exclusive)| value < max * unit || (value == max * unit && !exclusive))
        };
        let mut builder = Builder::new();
        let rule = numbers(&mut builder, least.as_ref(), most.as_ref());
        let grammar = rule.map(|rule| Arc::new(builder.finish(rule).unwrap()));
        let edge = if of_min { min } else { max }.map_or(0, |(value, _)| value * unit);
        for value in [edge, edge + near, other] {
            let sign = if value < 0 { "-" } else { "" };
            let (whole, part) = (value.abs() / 10_000, value.abs() % 10_000);
            let part = format!("{part:04}");
            let mut texts = vec![format!("{sign}{whole}.{part}{}", "0".repeat(zeros))];
            let short = part.trim_end_matches('0');
            texts.push(if short.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{short}") });
            for text in texts {
                let accepted = grammar.as_ref().is_some_and(|grammar| accepts(grammar, &text));
                prop_assert_eq!(accepted, inside(value), "{} in {:?}..{:?} / {}", text, min, max, scale);
            }
        }
    }

    #[test]
    fn json_rule_accepts_all_json(value in any_json(), pretty: bool) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let json = grammar(|builder| super::json::Rules::new(builder).value);
        prop_assert!(accepts(&json, &text), "{}", text);
        let cut: String = text.chars().take(text.chars().count() - 1).collect();
        prop_assert_eq!(accepts(&json, &cut), serde_json::from_str::<serde_json::Value>(&cut).is_ok(), "{}", cut);
    }
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        any::<String>().prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            proptest::collection::btree_map("[a-c\"é]{0,3}", inner, 0..4)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}
